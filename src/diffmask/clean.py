"""The frozen model's own pass over some rows, nothing erased: what masks are read from and judged against."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.distributions import Distribution

from diffmask.batch import Batch
from diffmask.task import Task

States = dict[str, Float[Tensor, "row token width"]]


@dataclass(frozen=True)
class CleanPass:
    """Some rows, the model's answer to them, and its states at every site."""

    rows: Batch
    answer: Distribution
    states: States

    @staticmethod
    def over(task: Task, rows: Batch) -> "CleanPass":
        """One pass."""
        return CleanPass(rows, *task.trace(rows))


def clean_passes(task: Task, rows: Batch, size: int = 64) -> Iterator[CleanPass]:
    """Rows in order of length, some at a time."""
    order = rows.present.sum(dim=1).argsort(stable=True)
    return (CleanPass.over(task, rows[some].trim()) for some in order.split(size))


def summary(
    state: Float[Tensor, "row token width"], present: Bool[Tensor, "row token"]
) -> tuple[Float[Tensor, "row width"], Float[Tensor, "row width"], Float[Tensor, "row width"]]:
    """A row's states at its first and last real token, where models read their answer, and on average."""
    real = present.to(state.dtype)
    rows = torch.arange(len(state), device=state.device)
    last = present.shape[1] - 1 - present.flip(1).to(torch.uint8).argmax(dim=1)
    mean = ((real / real.sum(dim=1, keepdim=True))[:, None] @ state).squeeze(1)  # no second copy of the states
    return state[rows, present.to(torch.uint8).argmax(dim=1)], state[rows, last], mean
