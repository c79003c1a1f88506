"""Functions as methods."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import diffmask
from diffmask.core.batch import Batch
from diffmask.core.config import parse
from diffmask.errors import ConfigError, InputError, NumericsError
from diffmask.experiments.experiment import Experiment
from diffmask.methods.custom import method
from diffmask.workspace.persistence import load_explainer, save_explainer
from support.linear import VALUES, LinearTask, Sum


def worth(model: nn.Module, batch: Batch) -> Tensor:
    """What each token adds, by the model's own weights."""
    assert isinstance(model, Sum)
    return (2 * batch.target[:, None] - 1) * (model.embedding(batch.tokens) @ model.weights)


def task() -> LinearTask:
    return LinearTask([[1, 2, 3], [3, 1]])


def test_a_function_of_the_model_and_a_batch_is_a_method() -> None:
    linear = task()
    explainer = method(worth).fit(linear)
    batch = linear.data["test"]
    torch.testing.assert_close(explainer(batch, 1).scores, torch.tensor(VALUES)[batch.tokens])
    torch.testing.assert_close(explainer(batch, 0).scores, -torch.tensor(VALUES)[batch.tokens])


def test_the_package_itself_makes_methods() -> None:
    made = diffmask.method(worth, name="mine")
    assert made.to_dict() == method(worth, name="mine").to_dict()
    assert made.digest == method(worth, name="mine").digest


def test_experiments_know_it_by_its_name() -> None:
    made = method(worth, name="by-weight")
    node = {"tasks": ["toy"], "methods": ["by-weight"], "metrics": ["fidelity"]}
    assert Experiment.from_dict(node).methods == (made,)


def test_another_function_of_the_same_name_is_another_recipe() -> None:
    first = method(worth, name="either").to_dict()
    second = method(lambda model, batch: batch.tokens, name="either")
    assert second.to_dict() != first
    with pytest.raises(ConfigError, match="was written by code"):
        parse("method", first, "kept")


def test_it_can_be_saved_and_loaded(tmp_path: Path) -> None:
    linear, made = task(), method(worth)
    save_explainer(made.fit(linear), made, tmp_path / "kept")
    loaded = load_explainer(tmp_path / "kept", linear)
    assert loaded(linear.data["test"]).scores.shape == (2, 3)


def test_scores_of_another_shape_or_no_number_are_refused() -> None:
    linear = task()
    with pytest.raises(InputError, match=r"gave scores of shape \(2, 2\) for tokens of shape \(2, 3\)"):
        method(lambda model, batch: batch.tokens[:, :2], name="short").fit(linear)(linear.data["test"])
    with pytest.raises(NumericsError, match="not finite"):
        method(lambda model, batch: batch.tokens / 0.0, name="broken").fit(linear)(linear.data["test"])


def test_lists_and_whole_numbers_are_scores_too() -> None:
    linear = task()
    scores = method(lambda model, batch: batch.tokens.tolist(), name="ids").fit(linear)(linear.data["test"]).scores
    assert scores.tolist() == [[1.0, 2.0, 3.0], [3.0, 1.0, 0.0]]


def test_a_function_without_a_name_must_be_given_one() -> None:
    with pytest.raises(ConfigError, match="cannot name a method; pass name="):
        method(lambda model, batch: batch.tokens)
