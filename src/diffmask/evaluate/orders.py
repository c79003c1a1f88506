"""The best and the worst order of a text's tokens that a beam search finds: what a score can be held against.

Edin et al. 2025: how far an answer can fall at all depends on the model and the text, so that an average over texts is
led by those that can fall far; they normalise each text's by the bounds.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Float, Int
from torch import Tensor

from diffmask.batch import Batch
from diffmask.evaluate.erasing import Clean, Eraser

Tokens = frozenset[int]


@dataclass
class _Search:
    """One text: orders that grow by a token at a time, the most promising kept."""

    tokens: tuple[int, ...]
    sizes: tuple[int, ...]
    """Numbers of tokens at which the drop counts; equal ones count as often."""
    sign: int
    beam: dict[Tokens, float] = field(default_factory=lambda: {frozenset(): 0.0})
    """Sets of first tokens, each with the sum of the drops on the best way to it."""

    def grown(self) -> dict[Tokens, float]:
        """Every set with one token more."""
        found: dict[Tokens, float] = {}
        for first, total in self.beam.items():
            for token in self.tokens:
                if token not in first:
                    larger = first | {token}
                    found[larger] = max(found.get(larger, total), total, key=lambda value: self.sign * value)
        return found

    def advance(self, grown: dict[Tokens, float], drops: Sequence[float], size: int, width: int) -> None:
        """Add what was found, and keep the sets that would end best if nothing changed any more."""
        now, later = self.sizes.count(size), sum(other > size for other in self.sizes)
        ranked = sorted(
            zip(grown, grown.values(), drops, strict=True),
            key=lambda one: (-self.sign * (one[1] + (now + later) * one[2]), sorted(one[0])),
        )
        self.beam = {first: total + now * drop for first, total, drop in ranked[:width]}

    def best(self) -> float:
        """The mean drop of the best order."""
        total = max(self.beam.values(), key=lambda value: self.sign * value)
        return total / len(self.sizes)


def extreme(
    eraser: Eraser, batch: Batch, whole: Clean, sizes: Int[Tensor, "row ratio"], *, keep: bool, sign: int, width: int
) -> Float[Tensor, " row"]:
    """The largest (sign 1) or smallest (-1) mean drop of each row that any order found has."""
    searches = [
        _Search(tuple(row.nonzero().flatten().tolist()), tuple(wanted), sign)
        for row, wanted in zip(batch.maskable, sizes.tolist(), strict=True)
    ]
    for size in range(1, int(sizes.max()) + 1):
        asked = {row: one.grown() for row, one in enumerate(searches) if size <= max(one.sizes)}
        drops = _drops(eraser, batch, whole, asked, keep)
        for row, grown in asked.items():
            searches[row].advance(grown, [next(drops) for _ in grown], size, width)
    return torch.tensor([search.best() for search in searches])


def _drops(
    eraser: Eraser, batch: Batch, whole: Clean, asked: dict[int, dict[Tokens, float]], keep: bool
) -> Iterator[float]:
    """p(y|x) - p(y|x without, or with only, each set), in the order asked."""
    pairs = [(row, first) for row, sets in asked.items() for first in sets]
    rows = torch.tensor([row for row, _ in pairs])
    first = torch.zeros(len(pairs), batch.tokens.shape[1], dtype=torch.bool)
    for copy, (_, tokens) in enumerate(pairs):
        first[copy, list(tokens)] = True
    gone = batch.maskable[rows] & (~first if keep else first)
    left = eraser.probability(batch, whole.target, rows, gone)
    return iter((whole.probability[rows] - left).tolist())
