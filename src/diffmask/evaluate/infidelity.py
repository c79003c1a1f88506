"""Do a text's scores add up to what erasing its tokens does? Yeh et al. 2019, definition 2.1."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from diffmask.answer import Quantity, explained
from diffmask.batch import Batch
from diffmask.bench import Bench
from diffmask.board import Measure
from diffmask.errors import RecipeError
from diffmask.evaluate.erasing import Eraser, Mode
from diffmask.evaluation import Evaluation, record_of
from diffmask.explainer import Method
from diffmask.record import Record
from diffmask.training import generator


@dataclass(frozen=True, kw_only=True)
class Infidelity(Evaluation):
    """E_I[(sum of the scores in I - (f(x) - f(x without I)))^2] over random sets I of tokens.

    A text's scores are multiplied by the one number that fits best: methods do not share a unit. So is a text in which
    no set changes anything at 0, whatever the scores.
    """

    name: ClassVar[str] = "infidelity"
    measures: ClassVar[tuple[Measure, ...]] = (
        Measure(
            name="infidelity",
            title="infidelity",
            better="lower",
            says="The scores of any tokens, summed, say how much the answer changes without them.",
            cannot_say="It asks scores to add up, which those of a method that ranks tokens were never meant to; "
            "and the erased texts are unlike those the model was trained on.",
        ),
    )

    split: str = "test"
    samples: int = 20
    """Sets drawn for each text: a share from (0, 1), then each token with that chance; the same for all methods."""
    mode: Mode = "mask"
    quantity: Quantity = "probability"
    scaled: bool = True
    """Multiply each text's scores by the number that fits best, as Captum's `normalize` does."""

    def __post_init__(self) -> None:
        if self.samples < 2:
            raise RecipeError(f"infidelity: samples is at least 2, a fit to one set is perfect; found {self.samples}")

    def run(self, method: Method, bench: Bench) -> Iterator[Record]:
        """One number."""
        found = bench.explained(method, self.split)
        batch, eraser = bench.task().data[self.split], Eraser(bench.task(), self.mode)
        sets = random_sets(batch, self.samples, bench.seed)
        change = changes(eraser, batch, sets, self.quantity)
        said = (sets * found.attribution.scores).sum(dim=2)
        values = infidelity(said, change.to(said.dtype), self.scaled)
        yield record_of(bench, method, found, "input", "infidelity", values, keep_rows=True)


def random_sets(batch: Batch, samples: int, seed: int) -> Bool[Tensor, "sample row token"]:
    """Sets of maskable tokens, of every size."""
    source = generator(seed, "infidelity")
    share = torch.rand(samples, len(batch), 1, generator=source)
    drawn = torch.rand(samples, *batch.tokens.shape, generator=source) < share
    return drawn.to(batch.maskable.device) & batch.maskable


def changes(
    eraser: Eraser, batch: Batch, sets: Bool[Tensor, "sample row token"], quantity: Quantity
) -> Float[Tensor, "sample row"]:
    """f(x) - f(x without I), f being the quantity of the original decision."""
    outcome = eraser.decisions(batch)

    def value(gone: Bool[Tensor, "row token"]) -> Float[Tensor, " row"]:
        return eraser.ask(batch, gone, lambda answer, rows: explained(answer, outcome[rows], quantity))

    whole = value(torch.zeros_like(batch.maskable))
    return torch.stack([whole - value(gone) for gone in sets])


def infidelity(
    said: Float[Tensor, "sample row"], change: Float[Tensor, "sample row"], scaled: bool
) -> Float[Tensor, " row"]:
    """Mean of (b * said - change)^2 over samples, with b = 1 or the number that makes it least.

    >>> infidelity(torch.tensor([[1.0], [2.0]]), torch.tensor([[3.0], [4.0]]), scaled=False)
    tensor([4.])
    """
    size = said.square().sum(dim=0)
    best = (said * change).sum(dim=0) / torch.where(size > 0, size, 1.0)
    factor = best if scaled else torch.ones_like(best)
    return (factor * said - change).square().mean(dim=0)
