"""Functions of a model and a batch as methods."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import diffmask
from diffmask.core.batch import Batch
from diffmask.core.config import parse
from diffmask.errors import ConfigError, InputError, MethodError, NumericsError
from diffmask.experiments.experiment import Experiment
from diffmask.methods.custom import from_function
from diffmask.workspace.persistence import load_explainer, save_explainer
from support.linear import VALUES, LinearTask, Sum


def contribution(model: nn.Module, batch: Batch) -> Tensor:
    """Contribution of each token to the logit, from the model's weights."""
    assert isinstance(model, Sum)
    return (2 * batch.target[:, None] - 1) * (model.embedding(batch.tokens) @ model.weights)


def task() -> LinearTask:
    return LinearTask([[1, 2, 3], [3, 1]])


def test_a_function_of_the_model_and_a_batch_is_a_method() -> None:
    linear = task()
    explainer = from_function(contribution).fit(linear)
    batch = linear.data["test"]
    torch.testing.assert_close(explainer(batch, 1).scores, torch.tensor(VALUES)[batch.tokens])
    torch.testing.assert_close(explainer(batch, 0).scores, -torch.tensor(VALUES)[batch.tokens])


def test_from_function_is_a_name_of_the_package() -> None:
    made = diffmask.from_function(contribution, name="mine")
    assert made.to_dict() == from_function(contribution, name="mine").to_dict()
    assert made.digest == from_function(contribution, name="mine").digest


def test_experiments_know_it_by_its_name() -> None:
    made = from_function(contribution, name="by-weight")
    node = {"tasks": ["toy"], "methods": ["by-weight"], "metrics": ["fidelity"]}
    assert Experiment.from_dict(node).methods == (made,)


def test_another_function_of_the_same_name_is_another_config() -> None:
    first = from_function(contribution, name="either").to_dict()
    second = from_function(lambda model, batch: batch.tokens, name="either")
    assert second.to_dict() != first
    with pytest.raises(ConfigError, match="was saved with code"):
        parse("method", first, "kept")


def test_it_can_be_saved_and_loaded(tmp_path: Path) -> None:
    linear, made = task(), from_function(contribution)
    save_explainer(made.fit(linear), made, tmp_path / "kept")
    loaded = load_explainer(tmp_path / "kept", linear)
    assert loaded(linear.data["test"]).scores.shape == (2, 3)


def test_scores_of_another_shape_or_not_finite_are_refused() -> None:
    linear = task()
    with pytest.raises(InputError, match=r"returned scores of shape \(2, 2\) for tokens of shape \(2, 3\)"):
        from_function(lambda model, batch: batch.tokens[:, :2], name="short").fit(linear)(linear.data["test"])
    with pytest.raises(NumericsError, match="broken returned scores that are not finite: inf at token 0 of row 0"):
        from_function(lambda model, batch: batch.tokens / 0.0, name="broken").fit(linear)(linear.data["test"])


def test_nan_is_named_with_its_place_and_nan_at_padding_is_not_an_error() -> None:
    linear = task()
    batch = linear.data["test"]

    def missing(model: nn.Module, batch: Batch) -> Tensor:
        return torch.where(batch.tokens == 3, torch.nan, 1.0)

    with pytest.raises(NumericsError, match="missing returned scores that are not finite: nan at token"):
        from_function(missing).fit(linear)(batch)

    def outside(model: nn.Module, batch: Batch) -> Tensor:
        return torch.where(batch.maskable, 1.0, torch.nan)

    assert from_function(outside).fit(linear)(batch).scores.tolist() == [[1.0, 1.0, 1.0], [1.0, 1.0, 0.0]]


def test_an_error_inside_the_function_names_the_method_and_keeps_its_cause() -> None:
    def broken(model: nn.Module, batch: Batch) -> Tensor:
        raise KeyError("layer 7")

    linear = task()
    with pytest.raises(MethodError, match="method 'broken' raised KeyError: 'layer 7'; it is called as") as caught:
        from_function(broken).fit(linear)(linear.data["test"])
    assert isinstance(caught.value.__cause__, KeyError)


def test_lists_and_integers_are_scores_too() -> None:
    linear = task()
    identity = from_function(lambda model, batch: batch.tokens.tolist(), name="ids")
    scores = identity.fit(linear)(linear.data["test"]).scores
    assert scores.tolist() == [[1.0, 2.0, 3.0], [3.0, 1.0, 0.0]]


def test_a_function_without_a_name_must_be_given_one() -> None:
    with pytest.raises(ConfigError, match="cannot name a method; pass name="):
        from_function(lambda model, batch: batch.tokens)
