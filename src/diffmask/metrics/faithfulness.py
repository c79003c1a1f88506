"""The best and the worst order of a text's tokens that a beam search finds: what a score can be held against.

Edin et al. 2025: how far an answer can fall at all depends on the model and the text, so that an average over texts is
led by those that can fall far; they normalise each text's by the bounds.

Comprehensiveness and sufficiency: what happens without the tokens that score highest, and with nothing else.

DeYoung et al. 2020 (ERASER), averaged over a grid of ratios. Hsia et al. 2024 show that both can be raised without a
better explanation, Crothers et al. 2023 that they vary between models: compare methods on one model, not models.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from diffmask.core.batch import Batch
from diffmask.core.config import digest_of
from diffmask.core.explainer import Method
from diffmask.core.store import Artefact
from diffmask.errors import ConfigError
from diffmask.metrics.base import Metric, record_of
from diffmask.metrics.erasure import Clean, Eraser, Goal, Mode, clean, counts, places
from diffmask.results.benchmark_result import MetricInfo
from diffmask.results.records import Record
from diffmask.workspace.workspace import Workspace

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


COMPREHENSIVENESS = MetricInfo(
    name="comprehensiveness",
    title="Comprehensiveness",
    higher_is_better=True,
    interpretation="The answer falls when the words that score highest are erased: they were needed.",
    limitation="Erased texts are unlike any the model was trained on; part of the fall may be surprise.",
)
SUFFICIENCY = MetricInfo(
    name="sufficiency",
    title="Sufficiency",
    higher_is_better=False,
    interpretation="The answer hardly falls when only the words that score highest are left: they were enough.",
    limitation="A model can be sure of a text that says nothing; few words left may suffice for the wrong reason.",
)
NORMALISED = tuple(
    replace(measure, name=f"normalised_{measure.name}", title=f"Normalised {measure.title.lower()}")
    for measure in (COMPREHENSIVENESS, SUFFICIENCY)
)


@dataclass(frozen=True, kw_only=True)
class Comprehensiveness(Metric):
    """comp_k = p(y|x) - p(y|x without the top k), suff_k = p(y|x) - p(y|the top k alone); both averaged over k."""

    name: ClassVar[str] = "comprehensiveness"
    infos: ClassVar[tuple[MetricInfo, ...]] = (COMPREHENSIVENESS, SUFFICIENCY, *NORMALISED)
    perturbs_input: ClassVar[bool] = True

    split: str = "test"
    ratios: tuple[float, ...] = (0.05, 0.1, 0.2, 0.5)
    """Shares of a text's tokens, each rounded up to whole tokens."""
    mode: Mode = "mask"
    """How tokens are erased."""
    goal: Goal = "predicted"
    """Whose probability is followed."""
    beam: int = 0
    """Orders kept while each text's best and worst are searched, to place the mean between them; 0: no search.

    The search costs about beam x tokens x tokens rows a text, once for all methods. Nothing is clipped: an order better
    than the best found is above 1.
    """

    def __post_init__(self) -> None:
        if not self.ratios or not all(0 < ratio <= 1 for ratio in self.ratios):
            raise ConfigError(f"comprehensiveness: ratios are shares from above 0 to 1; found {list(self.ratios)}")

    def run(self, method: Method, workspace: Workspace) -> Iterator[Record]:
        """Two means, a point of a curve for each ratio, and the means between the bounds where there are any."""
        explained = workspace.explained(method, self.split)
        batch = workspace.task().data[self.split]
        whole = clean(workspace, self.split, self.goal)
        order = places(explained.attribution.scores, batch.maskable)
        sizes, eraser = counts(batch.maskable, self.ratios), Eraser.on(workspace, self.mode)
        for keep, (measure, normalised) in enumerate(zip(self.infos[:2], NORMALISED, strict=True)):
            drop = drops(eraser, batch, whole, order, sizes, bool(keep))
            mean = drop.mean(dim=1)
            yield record_of(workspace, method, explained, "input", measure.name, mean, keep_rows=True)
            for ratio, values in zip(self.ratios, drop.T.contiguous(), strict=True):
                yield record_of(workspace, method, explained, "input", measure.name, values, at=ratio, keep_rows=True)
            if self.beam:
                low, high = self._bounds(workspace, eraser, whole, sizes, bool(keep))
                # A text whose answer no order changes says nothing: 0 / 0.
                between = (mean - low) / (high - low)
                yield record_of(workspace, method, explained, "input", normalised.name, between, keep_rows=True)

    def _bounds(
        self, workspace: Workspace, eraser: Eraser, whole: Clean, sizes: Int[Tensor, "row ratio"], keep: bool
    ) -> tuple[Float[Tensor, " row"], Float[Tensor, " row"]]:
        """Each text's smallest and largest mean drop, searched once for all methods."""
        batch = workspace.task().data[self.split]

        def make() -> Artefact:
            low, high = (
                extreme(eraser, batch, whole, sizes, keep=keep, sign=sign, width=self.beam) for sign in (-1, 1)
            )
            return Artefact({"low": low, "high": high})

        kept = workspace.store.get_or_make(
            "orders", digest_of(["orders", workspace.task_digest(), self.digest, keep]), make
        )
        return kept.tensors["low"], kept.tensors["high"]


def drops(
    eraser: Eraser,
    batch: Batch,
    whole: Clean,
    order: Int[Tensor, "row token"],
    sizes: Int[Tensor, "row ratio"],
    keep: bool,
) -> Float[Tensor, "row ratio"]:
    """p(y|x) - p(y|x with the first k of the order erased, or with only those kept); equal k are asked once."""
    rows = torch.arange(len(batch))[:, None].expand_as(sizes)
    asked, which = torch.unique(torch.stack([rows.flatten(), sizes.flatten()]), dim=1, return_inverse=True)
    first = order[asked[0]] < asked[1][:, None]
    gone = batch.maskable[asked[0]] & (~first if keep else first)
    left = eraser.probability(batch, whole.target, asked[0], gone)
    return (whole.probability[:, None] - left[which].reshape(sizes.shape)).float()
