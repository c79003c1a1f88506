"""One call from a model and a text to a verified explanation, without training data."""

from pathlib import Path
from typing import Any

import pytest
import torch

import diffmask as dm
from diffmask.errors import ConfigError, InputError
from diffmask.tasks.classification import TextClassification
from support.tiny_models import byte_pairs, tiny_model, word_pieces

TEXT = "the plot is highly enjoyable"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("classifier")
    tiny_model("bert").save_pretrained(path)
    word_pieces().save_pretrained(path)
    return path


def test_a_folder_and_a_text_are_enough(folder: Path) -> None:
    found = dm.explain(str(folder), TEXT)
    assert found.words == tuple(TEXT.split())
    assert found.verified is not None and found.verified.kl <= 0.1
    assert found.method == "leave-one-out"
    # The same as by hand.
    task = TextClassification(str(folder))
    assert torch.allclose(found.scores, dm.LeaveOneOut().fit(task)(TEXT).scores)


def test_several_texts_a_class_and_a_method(folder: Path) -> None:
    found = dm.explain(folder, ["a dull mess", TEXT], method="integrated-gradients", target=1, n_steps=3)
    assert [one.target.label for one in found] == ["LABEL_1", "LABEL_1"]
    assert found.to_pandas()["text"].tolist() == [0, 0, 0, 1, 1, 1, 1, 1]
    assert found[0].method.startswith("integrated-gradients")


@pytest.mark.parametrize("baseline", ["auto", "mask", "pad", "zero"])
@pytest.mark.parametrize("name", ["integrated-gradients", "leave-one-out", "greedy-search"])
def test_baselines_without_data(folder: Path, name: str, baseline: str) -> None:
    assert dm.explain(folder, TEXT, name, baseline=baseline).scores.isfinite().all()


def test_the_mask_baseline_is_the_mask_tokens_embedding(folder: Path) -> None:
    task = TextClassification(folder)
    explainer: Any = dm.IntegratedGradients(baseline="mask").fit(task)
    assert torch.equal(explainer.baseline, task.model.get_input_embeddings().weight[task.mask_token])


def test_a_vocabulary_without_a_mask_token_uses_padding() -> None:
    found = dm.explain((tiny_model("gpt2", vocab_size=300), byte_pairs()), "bad good")
    assert found.words == ("bad", "good") and found.verified is not None


@pytest.mark.filterwarnings("ignore::diffmask.errors.InputWarning")
def test_long_texts_have_a_cheaper_default(folder: Path) -> None:
    assert dm.explain(folder, "good " * 101, verify=False).method.startswith("integrated-gradients")
    assert dm.explain(folder, ["good", "good " * 101], verify=False)[0].method.startswith("integrated-gradients")


def test_a_task_is_used_as_it_is(folder: Path) -> None:
    task = TextClassification(folder)
    assert dm.explain(task, TEXT, dm.Gradient()).method == "gradient"


def test_what_cannot_work_says_what_does(folder: Path) -> None:
    with pytest.raises(InputError, match=r"surrogate-mask learns from texts: SurrogateMask\(...\).fit"):
        dm.explain(folder, TEXT, "surrogate-mask")
    with pytest.raises(ConfigError, match="explain: there is no method 'leaveoneout'; nearest: 'leave-one-out'"):
        dm.explain(folder, TEXT, "leaveoneout")
    with pytest.raises(InputError, match=r"give n_steps to Gradient\(...\), not to explain"):
        dm.explain(folder, TEXT, dm.Gradient(), n_steps=3)
    with pytest.raises(InputError, match="row 1: expected text, got None"):
        dm.explain(folder, ["good", None])
    with pytest.raises(InputError, match="no 'train' rows"):
        dm.explain(folder, TEXT, "integrated-gradients", baseline="mean")
