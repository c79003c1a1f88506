"""A text without some of its tokens, put to the model again: they are masked, taken out or hidden."""

from collections.abc import Callable
from dataclasses import replace
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor
from torch.distributions import Distribution

from diffmask.answer import decision
from diffmask.batch import Batch, ranking
from diffmask.errors import TaskError
from diffmask.memory import Portion
from diffmask.methods.erasure import delete, fill, hide
from diffmask.probe import baseline_state
from diffmask.task import Task

Mode = Literal["mask", "delete", "attention-mask"]
"""Put the mask token in a token's place (or the mean state), take the token out, or hide it from attention."""

Gone = Bool[Tensor, "row token"]


class Eraser:
    """A task's answers to texts without some of their tokens."""

    def __init__(self, task: Task, mode: Mode, rows_at_once: int = 256) -> None:
        if mode == "attention-mask" and not task.attention_masked:
            raise TaskError(f"{type(task).__name__} has no attention mask; use mode 'mask' or 'delete'")
        self.task, self.mode = task, mode
        self.portion = Portion(rows_at_once)
        self.baseline = baseline_state(task, task.sites[0], "mean") if task.mask_token is None else None

    def answer(self, batch: Batch, gone: Gone) -> Distribution:
        """The answer to a few rows; a row of which nothing would be left is masked instead."""
        emptied = (gone | ~batch.present).all(dim=1, keepdim=True)
        masked = gone if self.mode == "mask" else gone & emptied
        shorter = (hide if self.mode == "attention-mask" else delete)(batch, gone & ~masked)
        return self._replaced(shorter, masked)

    def _replaced(self, batch: Batch, masked: Gone) -> Distribution:
        if self.task.mask_token is not None:
            return self.task.predict(replace(batch, tokens=batch.tokens.masked_fill(masked, self.task.mask_token)))
        assert self.baseline is not None
        return self.task.predict(batch, {self.task.sites[0]: fill(masked, self.baseline)})

    @torch.no_grad()
    def ask(
        self, batch: Batch, gone: Gone, question: Callable[[Distribution, Int[Tensor, " row"]], Tensor]
    ) -> Shaped[Tensor, "row ..."]:
        """What `question(answer, rows)` says of every row, taken in order of length."""
        order = batch.present.sum(dim=1).argsort(stable=True)

        def work(items: slice) -> Tensor:
            part = batch[order[items]].trim()
            return question(self.answer(part, gone[order[items], : part.tokens.shape[1]]), order[items])

        return torch.cat(self.portion.split(len(batch), work))[order.argsort()]

    def decisions(self, batch: Batch, gone: Gone | None = None) -> Shaped[Tensor, "row *event"]:
        """What the model decides of each row without the tokens that are gone."""
        erased = torch.zeros_like(batch.present) if gone is None else gone
        return self.ask(batch, erased, lambda answer, _rows: decision(answer))


def first_tokens(
    scores: Float[Tensor, "row token"], maskable: Bool[Tensor, "row token"], count: Int[Tensor, " row"]
) -> Gone:
    """The `count` tokens of each row that score highest; ties by position.

    >>> first_tokens(torch.tensor([[0.1, 0.9, 0.5]]), torch.tensor([[True, True, True]]), torch.tensor([2]))
    tensor([[False,  True,  True]])
    """
    place = ranking(scores, maskable).argsort(dim=1)
    return (place < count[:, None]) & maskable


def share_of(maskable: Bool[Tensor, "row token"], share: float) -> Int[Tensor, " row"]:
    """That share of each row's maskable tokens, rounded to whole tokens."""
    return (maskable.sum(dim=1) * share).round().long()
