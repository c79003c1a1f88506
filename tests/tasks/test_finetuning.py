"""Fine-tuning learns what can be learned, the same from the same seed, and what it saves loads anywhere."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForSequenceClassification

from diffmask.core.config import parse
from diffmask.datasets.tables import Columns
from diffmask.errors import InputError
from diffmask.tasks.classification import TextClassification
from diffmask.tasks.text.text_configs import FineTunedClassificationConfig, TextClassificationConfig
from support.tiny_models import save_encoder

FILLERS = ["the film is", "a very", "it was", "plot and acting", "i loved it but the movie was"]
WORDS = {"good": "yes", "great": "yes", "fun": "yes", "bad": "no", "dull": "no", "mess": "no"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An encoder in `encoder`, and a table of texts whose last word decides."""
    home = tmp_path_factory.mktemp("encoder")
    save_encoder(home / "encoder")
    lines = [f"{filler} {word},{label}" for filler in FILLERS for word, label in WORDS.items()]
    for split in ("train", "valid", "test"):
        (home / f"{split}.csv").write_text("text,label\n" + "\n".join(lines * (4 if split == "train" else 1)) + "\n")
    return home


def make_config(folder: Path) -> FineTunedClassificationConfig:
    return FineTunedClassificationConfig(
        model=str(folder / "encoder"), data=str(folder), epochs=10, learning_rate=3e-3, batch_size=16
    )


@pytest.fixture(scope="module")
def task(folder: Path) -> TextClassification:
    task = make_config(folder).load(seed=0)
    assert isinstance(task, TextClassification)
    return task


def test_it_learns_what_the_last_word_means(task: TextClassification) -> None:
    assert task.score(task.data["test"]) > 0.9
    assert task.head.names == ("no", "yes")


def test_the_same_seed_gives_the_same_classifier(task: TextClassification, folder: Path) -> None:
    assert make_config(folder).load(seed=0).fingerprint() == task.fingerprint()
    assert make_config(folder).load(seed=1).fingerprint() != task.fingerprint()


def test_mixed_precision_multiplies_in_bfloat16_and_learns_the_same(folder: Path) -> None:
    config = replace(make_config(folder), precision="bfloat16")
    untrained = config.build(seed=0)
    head = next(module for name, module in untrained.model.named_modules() if name == "classifier")
    products: set[torch.dtype] = set()
    head.register_forward_hook(lambda _module, _inputs, output: products.add(output.dtype))
    replace(config, epochs=1).train(untrained, 0)
    assert torch.bfloat16 in products, "training"
    assert torch.float32 in products, "validation"
    task = config.load(seed=0)
    assert isinstance(task, TextClassification)
    assert {value.dtype for value in task.model.parameters()} == {torch.float32}
    assert task.score(task.data["test"]) > 0.9


def test_a_saved_classifier_loads_in_transformers_and_here(task: TextClassification, tmp_path: Path) -> None:
    task.save_pretrained(tmp_path / "clf")
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path / "clf").eval()
    assert model.config.id2label == {0: "no", 1: "yes"}
    batch = task.encode(["the film is good"])
    with torch.no_grad():
        logits = model(input_ids=batch.tokens, attention_mask=batch.present).logits
    assert torch.allclose(logits.log_softmax(-1), task.logits(batch), atol=1e-6)
    assert TextClassificationConfig(model=str(tmp_path / "clf"), data=str(tmp_path.parent)).model == str(
        tmp_path / "clf"
    )


def test_a_task_knows_whether_its_model_was_trained_with_masks(folder: Path, tmp_path: Path) -> None:
    assert not make_config(folder).build(seed=0).trained_with_masks
    trained = replace(make_config(folder), masked_fraction=0.5, epochs=1).load(seed=0)
    assert trained.trained_with_masks
    assert isinstance(trained, TextClassification)
    trained.save_pretrained(tmp_path)
    assert TextClassification(tmp_path).trained_with_masks, "the saved model knows it, too"


def test_retraining_starts_from_the_encoder_again(task: TextClassification) -> None:
    again = task.retrain(task.data, seed=0)
    assert again.fingerprint() == task.fingerprint()


def test_configs_survive_yaml(folder: Path) -> None:
    config = make_config(folder)
    assert parse("task", config.to_dict(), "here") == config
    text = TextClassificationConfig(model="clf", data="table.csv", segments="second", label_column="stars")
    assert parse("task", text.to_dict(), "here") == text


def test_numbers_can_be_learned_too(folder: Path, tmp_path: Path) -> None:
    lines = [f"{filler} {word},{float(label == 'yes')}" for filler in FILLERS for word, label in WORDS.items()]
    for split in ("train", "valid", "test"):
        (tmp_path / f"{split}.csv").write_text("text,label\n" + "\n".join(lines * 4) + "\n")
    task = replace(make_config(folder), data=str(tmp_path), problem_type="regression", epochs=12).load(seed=0)
    assert task.data["train"].target.unique().tolist() == [0.0, 1.0]
    assert task.score(task.data["test"]) > 0.5


def test_one_label_is_not_enough(folder: Path, tmp_path: Path) -> None:
    for split in ("train", "valid", "test"):
        (tmp_path / f"{split}.csv").write_text("text,label\ngood,1\n")
    with pytest.raises(InputError, match="the training rows have 1 labels"):
        FineTunedClassificationConfig(model=str(folder / "encoder"), data=str(tmp_path)).build(seed=0)


def test_a_config_reads_the_columns_it_names(folder: Path, tmp_path: Path) -> None:
    for split in ("train", "valid", "test"):
        (tmp_path / f"{split}.csv").write_text("review,stars\ngood,yes\nbad,no\n")
    config = FineTunedClassificationConfig(
        model=str(folder / "encoder"), data=str(tmp_path), text_column="review", label_column="stars", rows=2
    )
    assert config.dataset().classes == ("no", "yes")
    assert isinstance(config, Columns)


def test_some_rows_of_a_sorted_table_are_of_every_label(tmp_path: Path) -> None:
    lines = [f"the film number {number},{'bad' if number < 50 else 'good'}" for number in range(100)]
    (tmp_path / "sorted.csv").write_text("text,label\n" + "\n".join(lines))
    data = FineTunedClassificationConfig(data=str(tmp_path / "sorted.csv"), rows=10).dataset()
    assert len(data.train) == 10
    assert {example.label for example in data.train} == {"bad", "good"}
