"""A pass that resumes at a site answers as a whole pass does, and does not pay for the blocks below."""

import pytest
import torch

from diffmask.core.distributions import logits
from diffmask.core.hooks import record_calls
from diffmask.tasks.classification import TextClassification
from support.tiny_models import FAMILIES, Family, tiny_model, word_pieces

ALL_PAID = {"albert"}
"""One block called many times cannot be skipped."""


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.kind)
def test_resuming_at_a_site_is_predicting_with_it_edited(family: Family) -> None:
    task = TextClassification(tiny_model(family.kind), word_pieces())
    batch = task.encode(["the film is good", "not a very bad movie , but dull", "fun"])
    _, states = task.trace(batch)
    for name in task.sites:
        edits = {name: lambda state: state * torch.linspace(0.5, 1.5, state.shape[1])[:, None]}
        torch.testing.assert_close(logits(task.resume(batch, states, edits)), logits(task.predict(batch, edits)))


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.kind)
def test_blocks_below_the_site_compute_nothing(family: Family) -> None:
    task = TextClassification(tiny_model(family.kind), word_pieces())
    batch = task.encode(["the film is good"])
    _, states = task.trace(batch)
    inner = [path for path, module in task.model.named_modules() if path and not list(module.children())]
    below = task.partial_forward.below.get("output", ())
    assert bool(below) == (family.kind not in ALL_PAID)
    with record_calls(task.model, inner) as calls:
        task.resume(batch, states, {"output": lambda state: state})
    assert not [call for call in calls if call.module.startswith(tuple(f"{path}." for path in below))]


def test_the_model_is_as_before_also_when_an_edit_raises() -> None:
    task = TextClassification(tiny_model("bert"), word_pieces())
    batch = task.encode(["the film is good"])
    answer, states = task.trace(batch)

    def fail(state: torch.Tensor) -> torch.Tensor:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        task.resume(batch, states, {"output": fail})
    torch.testing.assert_close(logits(task.predict(batch)), logits(answer))
