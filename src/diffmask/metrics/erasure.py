"""Texts without some of their tokens, and what the model then says: the part that every erasure measure shares.

Copies go through the model in order of length, as many at once as their tokens allow.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor
from torch.distributions import Distribution

from diffmask.core.baselines import baseline_state
from diffmask.core.batch import Batch, delete_tokens, hide_tokens, ranking
from diffmask.core.config import digest_of
from diffmask.core.distributions import predicted_outcome, target_score
from diffmask.core.hooks import erase_states
from diffmask.core.resources import AdaptiveBatchSize
from diffmask.core.store import Artefact
from diffmask.core.task import Task
from diffmask.errors import InputError, TaskError
from diffmask.workspace.workspace import Workspace

Mode = Literal["mask", "delete", "attention-mask"]
"""Put the mask token in a token's place (or the mean state), take it out of the text, or hide it from attention."""
Goal = Literal["predicted", "gold"]
"""Whose probability is followed: of the class that the model says, or of the label."""

TOKENS_AT_ONCE = 16_384
ROWS_AT_ONCE = 256
ENOUGH_TOKENS = 1024
"""Tokens that keep a processor busy: a run of so many may end to save padding."""
PADDING = 0.1
"""Share of padding, to the real tokens, that such a run may have."""


@dataclass(frozen=True)
class Clean:
    """What the model says of whole texts."""

    target: Shaped[Tensor, "row *event"]
    """The outcome that is followed."""
    probability: Float[Tensor, " row"]
    """Of that outcome."""


@dataclass(frozen=True)
class Eraser:
    """A way to take tokens out of a task's texts."""

    task: Task
    mode: Mode = "mask"
    baseline: Float[Tensor, " width"] | None = None
    """Stands for an erased token's embedding where the vocabulary has no mask token; the mean where none is given."""

    @staticmethod
    def on(workspace: Workspace, mode: Mode) -> "Eraser":
        """An eraser of a bench's task; what stands for an erased token is computed once for all methods."""
        task = workspace.task()
        if task.mask_token is not None:
            return Eraser(task, mode)
        digest = digest_of(["baseline", workspace.task_digest()])
        kept = workspace.store.get_or_make("baseline", digest, lambda: Artefact({"mean": mean_embedding(task)}))
        return Eraser(task, mode, kept.tensors["mean"])

    def __post_init__(self) -> None:
        if self.mode == "attention-mask" and not self.task.attention_masked:
            raise TaskError(f"{type(self.task).__name__} has no attention mask; erase by 'mask' or 'delete'")

    @torch.no_grad()
    def ask(
        self,
        batch: Batch,
        gone: Bool[Tensor, "copy token"],
        question: Callable[[Distribution, Int[Tensor, " some"]], Tensor],
        rows: Int[Tensor, " copy"] | None = None,
    ) -> Shaped[Tensor, "copy ..."]:
        """What `question(answer, copies)` says of each copy, a row without the tokens that are gone.

        Copy i is of row `rows[i]`; where none are named, of row i.
        """
        copied = torch.arange(len(batch)) if rows is None else rows
        portion = AdaptiveBatchSize(ROWS_AT_ONCE)
        left = batch.present.sum(dim=1)[copied] - (gone.sum(dim=1) if self.mode == "delete" else 0)
        asked, told = list(_by_length(left)), []
        for copies in asked:

            def work(items: slice, copies: Tensor = copies) -> Tensor:
                some = copies[items]
                return question(self.answer(batch[copied[some]], gone[some]), some)

            told += portion.split(len(copies), work)
        return torch.cat(told)[torch.cat(asked).argsort()]

    def probability(
        self,
        batch: Batch,
        target: Shaped[Tensor, "row *event"],
        rows: Int[Tensor, " copy"],
        gone: Bool[Tensor, "copy token"],
    ) -> Float[Tensor, " copy"]:
        """p(target | row without the tokens that are gone), for any number of copies of any rows."""

        def question(answer: Distribution, copies: Int[Tensor, " some"]) -> Tensor:
            return target_score(answer, target[rows[copies]], "probability")

        return self.ask(batch, gone, question, rows).to(torch.get_default_dtype())

    def decisions(self, batch: Batch) -> Shaped[Tensor, "row *event"]:
        """What the model decides of each row with nothing gone."""
        return self.ask(batch, torch.zeros_like(batch.present), lambda answer, _rows: predicted_outcome(answer))

    def answer(self, batch: Batch, gone: Bool[Tensor, "row token"]) -> Distribution:
        """One pass. A row of which nothing would be left is masked: a model must be given something."""
        nothing = ~(batch.present & ~gone).any(dim=1, keepdim=True)
        replaced = gone if self.mode == "mask" else gone & nothing
        removed = gone & ~replaced
        masked, edits = batch, {}
        if self.task.mask_token is not None:
            masked = replace(batch, tokens=batch.tokens.masked_fill(replaced, self.task.mask_token))
        shorter = (
            hide_tokens(masked, removed) if self.mode == "attention-mask" else delete_tokens(masked, removed)
        ).trim()
        if self.task.mask_token is None and replaced.any():
            baseline = mean_embedding(self.task) if self.baseline is None else self.baseline
            edits = {self.task.sites[0]: erase_states(replaced[:, : shorter.tokens.shape[1]], baseline)}
        return self.task.predict(shorter, edits)


def mean_embedding(task: Task) -> Float[Tensor, " width"]:
    """The mean embedding of the training rows' tokens."""
    return baseline_state(task, task.sites[0], "mean")


def _by_length(lengths: Int[Tensor, " copy"]) -> Iterator[Int[Tensor, " copy"]]:
    """Copies in order of length, in runs of so many tokens at once, little of them padding."""
    order = lengths.argsort(stable=True)
    start = real = 0
    for place, length in enumerate(lengths[order].tolist()):
        real += length
        if place > start and _is_too_much((place + 1 - start) * length, real):
            yield order[start:place]
            start, real = place, length
    yield order[start:]


def _is_too_much(padded: int, real: int) -> bool:
    """Whether a run of so many tokens, with and without padding, is too large or too wasteful."""
    return padded > TOKENS_AT_ONCE or padded > max(ENOUGH_TOKENS, (1 + PADDING) * real)


def clean(workspace: Workspace, split: str, goal: Goal) -> Clean:
    """The model's answers to the whole texts of a split, computed once for all methods and measures."""
    task = workspace.task()
    batch = task.data[split]

    def make() -> Artefact:
        target = Eraser(task).decisions(batch) if goal == "predicted" else batch.target
        if goal == "gold" and bool((target < 0).any() if not target.is_floating_point() else target.isnan().any()):
            raise InputError("some texts have no label; follow the predicted class instead, goal='predicted'")
        rows = torch.arange(len(batch))
        probability = Eraser(task).probability(batch, target, rows, torch.zeros_like(batch.present))
        return Artefact({"target": target, "probability": probability})

    kept = workspace.store.get_or_make("clean", digest_of(["clean", workspace.task_digest(), split, goal]), make)
    return Clean(kept.tensors["target"], kept.tensors["probability"])


def counts(maskable: Bool[Tensor, "row token"], ratios: tuple[float, ...]) -> Int[Tensor, "row ratio"]:
    """How many tokens a share of a row is: rounded up, so that at 5 % a short text loses one and not none.

    >>> counts(torch.ones(1, 11, dtype=torch.bool), (0.05, 0.2, 0.5))
    tensor([[1, 3, 6]])
    """
    there = maskable.sum(dim=1, keepdim=True)
    # The small number: 10 % of 30 is 3, also where 0.1 * 30 is a little more.
    return (there.double() * torch.tensor(ratios, dtype=torch.float64) - 1e-9).ceil().long().clamp(min=0)


def places(scores: Float[Tensor, "row token"], maskable: Bool[Tensor, "row token"]) -> Int[Tensor, "row token"]:
    """Each token's place in its row's order, the most needed first, from 0.

    >>> places(torch.tensor([[0.1, 0.7, 0.3]]), torch.tensor([[True, True, True]]))
    tensor([[2, 0, 1]])
    """
    return ranking(scores, maskable).argsort(dim=1)


def top_k_mask(
    scores: Float[Tensor, "row token"], maskable: Bool[Tensor, "row token"], count: Int[Tensor, " row"]
) -> Bool[Tensor, "row token"]:
    """The `count` tokens of each row that score highest; ties by position.

    >>> top_k_mask(torch.tensor([[0.1, 0.9, 0.5]]), torch.tensor([[True, True, True]]), torch.tensor([2]))
    tensor([[False,  True,  True]])
    """
    return (places(scores, maskable) < count[:, None]) & maskable


def fraction_to_count(maskable: Bool[Tensor, "row token"], share: float) -> Int[Tensor, " row"]:
    """That share of each row's maskable tokens, rounded to whole tokens."""
    return (maskable.sum(dim=1) * share).round().long()
