"""How many tokens, in the order of the scores, go before the decision changes? Nguyen 2018; Atanasova et al. 2020."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor
from torch.distributions import Distribution

from diffmask.answer import decides
from diffmask.batch import Batch
from diffmask.bench import Bench
from diffmask.board import Measure
from diffmask.errors import RecipeError
from diffmask.evaluate.erasing import Eraser, Mode, first_tokens
from diffmask.evaluation import Evaluation, record_of
from diffmask.explainer import Method
from diffmask.record import Record


@dataclass(frozen=True, kw_only=True)
class DecisionFlip(Evaluation):
    """Share of the maskable tokens erased, highest score first, when the decision first changes; 1 if it never does."""

    name: ClassVar[str] = "decision-flip"
    measures: ClassVar[tuple[Measure, ...]] = (
        Measure(
            name="flip_share",
            title="share of tokens to flip",
            better="lower",
            says="Erasing few tokens, in the method's order, changes the decision.",
            cannot_say="A decision can flip because the erased text is strange to the model; and a class that it "
            "favours for a text of masks never flips.",
        ),
    )

    split: str = "test"
    mode: Mode = "mask"
    steps: int = 100
    """Looks at each text: after each token, or after each hundredth of them in a text that has more."""

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise RecipeError(f"decision-flip: steps is at least 1; found {self.steps}")

    def run(self, method: Method, bench: Bench) -> Iterator[Record]:
        """One number."""
        found = bench.explained(method, self.split)
        batch, eraser = bench.task().data[self.split], Eraser(bench.task(), self.mode)
        share = flip_share(eraser, batch, found.attribution.scores, self.steps)
        yield record_of(bench, method, found, "input", "flip_share", share, keep_rows=True)


def flip_share(eraser: Eraser, batch: Batch, scores: Float[Tensor, "row token"], steps: int) -> Float[Tensor, " row"]:
    """Share of the tokens gone when the decision first changes, 1 where it never does."""
    outcome = eraser.decisions(batch)
    tokens = batch.maskable.sum(dim=1)
    share = torch.ones(len(batch))
    waiting = torch.arange(len(batch))
    for step in range(1, steps + 1):
        count = erased_after(step, tokens, steps)
        waiting = waiting[(step <= tokens[waiting]) | (step == 1)]
        if len(waiting) == 0:
            break
        gone = first_tokens(scores[waiting], batch.maskable[waiting], count[waiting])
        wanted = outcome[waiting]
        same = eraser.ask(batch[waiting], gone, partial(_keeps, wanted))
        flipped = waiting[~same]
        share[flipped] = count[flipped] / tokens[flipped].clamp(min=1)
        waiting = waiting[same]
    return share


def erased_after(step: int, tokens: Int[Tensor, " row"], steps: int) -> Int[Tensor, " row"]:
    """Tokens gone at a look: one more each time, or in long texts as many as come to all of them at the last.

    >>> erased_after(2, torch.tensor([3, 10]), steps=5)
    tensor([2, 4])
    """
    return torch.where(tokens <= steps, step, (tokens * step / steps).ceil().long()).minimum(tokens)


def _keeps(
    wanted: Shaped[Tensor, "text *event"], answer: Distribution, rows: Int[Tensor, " row"]
) -> Bool[Tensor, " row"]:
    return decides(answer, wanted[rows])
