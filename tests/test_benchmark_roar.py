"""ROAR of the reader's own classifier: trained again from its encoder, forecast, put on the board with a verdict."""

import warnings
from pathlib import Path

import pytest
import torch
from torch import Tensor

import diffmask as dm
from diffmask.core.batch import Batch
from diffmask.core.store import Store
from diffmask.errors import InputError, TrainingWarning
from diffmask.methods.leave_one_out import LeaveOneOut
from diffmask.metrics.roar.roar_metric import Roar
from diffmask.results.benchmark_result import BenchmarkResult
from diffmask.tasks.classification import TextClassification
from diffmask.tasks.text.finetuning import FineTuning
from diffmask.tasks.text.retraining import FineTuningSource, reset_head
from diffmask.tasks.text.text_configs import FineTunedClassificationConfig
from diffmask.workspace.workspace import Workspace
from support.tiny_models import save_encoder, tiny_model, word_pieces

FILLERS = ["the film is", "it was a very", "the plot and acting was", "i loved the movie but it was"]
WORDS = {"good": "yes", "great": "yes", "fun": "yes", "bad": "no", "dull": "no", "mess": "no"}
ROWS = [(f"{filler} {word}", label) for filler in FILLERS for word, label in WORDS.items()]
TUNING = FineTuning(epochs=15, learning_rate=3e-3, batch_size=16)
METRICS = [
    {"name": "roar", "amounts": [0, 50, 100]},
    {"name": "recursive-roar", "amounts": [0, 25, 50, 100]},
]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An encoder, and a classifier fine-tuned from it by our own command's recipe."""
    home = tmp_path_factory.mktemp("own")
    save_encoder(home / "encoder")
    table = "text,label\n" + "\n".join(f"{text},{label}" for text, label in ROWS * 4)
    for split in ("train", "valid", "test"):
        (home / f"{split}.csv").write_text(table)
    config = FineTunedClassificationConfig(
        model=str(home / "encoder"), data=str(home), epochs=15, learning_rate=3e-3, batch_size=16, max_tokens=16
    )
    task = config.load(seed=0)
    assert isinstance(task, TextClassification)
    task.save_pretrained(home / "clf")
    return home


def own(home: Path, **choices: object) -> TextClassification:
    """The saved classifier with its texts, as a reader would load it."""
    splits = {split: home / f"{split}.csv" for split in ("train", "valid", "test")}
    return TextClassification(home / "clf", **splits, **choices)  # type: ignore[arg-type]


def last_word(model: object, batch: Batch) -> Tensor:
    """The truth: the later a word, the higher its score, and the last one decides."""
    return batch.maskable.cumsum(dim=1).float()


@pytest.fixture(scope="module")
def said() -> list[str]:
    return []


@pytest.fixture(scope="module")
def board(home: Path, said: list[str]) -> BenchmarkResult:
    methods = ["attention", dm.from_function(last_word)]
    return dm.benchmark(own(home), methods, METRICS, texts=96, out=home / "board", say=said.append)


def test_a_saved_classifier_knows_what_it_was_fine_tuned_from(home: Path) -> None:
    assert own(home).source == FineTuningSource(str(home / "encoder"), TUNING)
    other = FineTuningSource("elsewhere", FineTuning(epochs=1))
    assert own(home, source=other).source == other


def test_trained_again_on_the_same_rows_it_is_the_same(home: Path) -> None:
    task = own(home)
    assert task.retrain(task.data, seed=0).fingerprint() == task.fingerprint()


def test_the_forecast_counts_trainings(board: BenchmarkResult, said: list[str]) -> None:
    # Random at 50 and 100 %, each method at 50; recursively random at 25, each method at 25 and 50.
    assert "for 9 trainings" in said[0] and "recursive-roar" in said[0]


def test_racu_stands_on_the_board_beside_a_random_order(board: BenchmarkResult) -> None:
    assert [metric.name for metric in board.metrics] == ["roar_racu", "recursive_roar_racu"]
    found = {method.name: method.estimates for method in board.methods}
    assert found["random"]["recursive_roar_racu"].mean == 0
    truth, other = (found[name]["recursive_roar_racu"] for name in ("last-word", "attention"))
    assert truth.rows == 96 and truth.low < truth.mean < truth.high
    assert truth.low > 0 and truth.mean > other.mean
    (pair,) = [
        one
        for one in board.comparisons
        if one.metric == "recursive_roar_racu" and {one.first, one.second} == {"random", "last-word"}
    ]
    assert pair.winner == "last-word"
    assert "ROAR's RACU" in board.verdict[0]


def test_the_rows_parts_are_the_racu(board: BenchmarkResult, home: Path) -> None:
    workspace = Workspace.over(Store(home / "board" / "store"), own(home).subset("test", torch.arange(96)), 0)
    records = list(Roar(amounts=(0, 50, 100)).run(LeaveOneOut(), workspace))
    (racu,) = [record for record in records if record.metric == "roar_racu"]
    assert sum(racu.per_row) / len(racu.per_row) == pytest.approx(racu.value, abs=1e-6)


def test_curves_are_drawn_of_the_score(board: BenchmarkResult) -> None:
    names = {(curve.metric, curve.method) for curve in board.curves}
    assert names == {
        (f"{variant}_score", method)
        for variant in ("roar", "recursive_roar")
        for method in ("random", "attention", "last-word")
    }
    assert next(curve for curve in board.curves if curve.metric == "roar_score").x == [0.0, 50.0, 100.0]


def test_other_choices_are_other_models(home: Path) -> None:
    digests = {
        Workspace.over(Store(home / "none"), task, 0).task_digest()
        for task in (
            own(home),
            own(home, source=FineTuningSource(tuning=FineTuning(epochs=1))),
            own(home, source=FineTuningSource(home / "clf")),
        )
    }
    assert len(digests) == 3


def test_a_classifier_of_unknown_encoder_begins_with_its_body(home: Path) -> None:
    task = own(home)
    with pytest.warns(TrainingWarning, match="name the encoder"):
        fresh = reset_head(task.model, seed=0)
    same = {name: bool((value == fresh.state_dict()[name]).all()) for name, value in task.model.state_dict().items()}
    assert same.pop("classifier.weight") is False
    same.pop("classifier.bias")
    assert all(same.values())


def test_a_model_without_a_body_begins_anew() -> None:
    model = torch.nn.Sequential(torch.nn.Embedding(9, 4), torch.nn.Linear(4, 2))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fresh = reset_head(model, seed=0)
    pairs = zip(model.parameters(), fresh.parameters(), strict=True)
    assert not any(bool((one == other).all()) for one, other in pairs)


def test_an_encoder_of_another_vocabulary_is_refused(home: Path, tmp_path: Path) -> None:
    tiny_model("bert").bert.save_pretrained(tmp_path)
    tokenizer = word_pieces()
    tokenizer.add_tokens(["newest"])
    tokenizer.save_pretrained(tmp_path)
    task = own(home, source=FineTuningSource(tmp_path))
    with pytest.raises(InputError, match="another vocabulary"):
        task.retrain(task.data, seed=0)


def test_rows_without_labels_are_named(home: Path, tmp_path: Path) -> None:
    task = own(home)
    task.data["train"] = task.encode([text for text, _ in ROWS])
    workspace = Workspace.over(Store(tmp_path), task, 0)
    with pytest.raises(InputError, match="24 of 24 rows of 'train' have no label"):
        list(Roar(amounts=(0, 50, 100)).run(LeaveOneOut(), workspace))


@pytest.mark.parametrize("left", ["without labels", "away"])
def test_what_cannot_be_trained_again_is_left_out_with_its_reason(home: Path, left: str) -> None:
    task = own(home)
    if left == "away":
        del task.data["train"]
    else:
        task.data["train"] = task.encode([text for text, _ in ROWS])
    said: list[str] = []
    board = dm.benchmark(task, ["gradient"], [*METRICS, "comprehensiveness"], texts=40, say=said.append)
    assert "trainings" not in said[0]
    assert [metric.name for metric in board.metrics] == ["comprehensiveness", "sufficiency"]
    reason = "has no 'train' rows" if left == "away" else "have no label"
    assert any("recursive-roar of gradient is left out" in warning and reason in warning for warning in board.warnings)


def test_without_validation_rows_the_last_epoch_is_kept(home: Path) -> None:
    task = own(home)
    data = {split: batch for split, batch in task.data.items() if split != "valid"}
    again = task.retrain(data, seed=0)
    assert again.score(data["test"]) > 0.9
