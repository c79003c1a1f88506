"""Comprehensiveness and sufficiency, optionally normalised by each text's best and worst order of tokens.

DeYoung et al. 2020 (ERASER), averaged over a grid of ratios. Hsia et al. 2024 show that both can be raised without a
better explanation, Crothers et al. 2023 that they vary between models: compare methods on one model, not models.

Edin et al. 2025: the largest possible drop depends on the model and the text, so an average over texts is dominated by
texts with a large possible drop. They normalise the value of each text by bounds that a beam search finds.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from diffmask.core.batch import Batch
from diffmask.core.config import digest_of
from diffmask.core.explainer import Method
from diffmask.core.store import Artefact
from diffmask.errors import ConfigError
from diffmask.methods.subset_search import TokenBeam, TokenSet
from diffmask.metrics.erasure import (
    Eraser,
    Mode,
    TargetChoice,
    UnmaskedPrediction,
    rank_positions,
    tokens_to_erase,
    unmasked_predictions,
)
from diffmask.metrics.metric import Metric, record_of
from diffmask.results.benchmark_result import MetricInfo
from diffmask.results.records import Record
from diffmask.workspace.workspace import Workspace

COMPREHENSIVENESS = MetricInfo(
    name="comprehensiveness",
    title="Comprehensiveness",
    higher_is_better=True,
    definition="fall of the predicted class's probability when the highest-scoring words are erased",
    interpretation="The probability of the predicted class falls when the highest-scoring words are erased: the "
    "model needs these words.",
    limitation="Texts with erased words may be out of distribution, which can cause part of the fall.",
)
SUFFICIENCY = MetricInfo(
    name="sufficiency",
    title="Sufficiency",
    higher_is_better=False,
    definition="fall of the predicted class's probability when only the highest-scoring words are kept",
    interpretation="The probability of the predicted class hardly falls when only the highest-scoring words are kept: "
    "these words are enough.",
    limitation="A model can be confident about a text without content; few words may suffice for the wrong reason.",
)
NORMALISED = tuple(
    replace(
        info,
        name=f"normalised_{info.name}",
        title=f"Normalised {info.title.lower()}",
        definition=f"{info.definition}, relative to each text's smallest and largest possible value",
    )
    for info in (COMPREHENSIVENESS, SUFFICIENCY)
)


@dataclass(frozen=True, kw_only=True)
class Comprehensiveness(Metric):
    """comp_k = p(y|x) - p(y|x without the top k), suff_k = p(y|x) - p(y|only the top k), both averaged over k."""

    name: ClassVar[str] = "comprehensiveness"
    infos: ClassVar[tuple[MetricInfo, ...]] = (COMPREHENSIVENESS, SUFFICIENCY, *NORMALISED)
    perturbs_input: ClassVar[bool] = True

    split: str = "test"
    ratios: tuple[float, ...] = (0.05, 0.1, 0.2, 0.5)
    """Shares of the tokens of a text, each rounded up to whole tokens."""
    mode: Mode = "mask"
    """How tokens are erased."""
    target: TargetChoice = "predicted"
    """Class whose probability is measured."""
    beam: int = 0
    """Beam width of the search for each text's best and worst order, which normalises the mean. 0: no search.

    The search costs about beam x tokens x tokens rows per text, once for all methods. Nothing is clipped: an order
    better than the best one found has a value above 1.
    """

    def __post_init__(self) -> None:
        if not self.ratios or not all(0 < ratio <= 1 for ratio in self.ratios):
            raise ConfigError(f"comprehensiveness: ratios are shares from above 0 to 1; found {list(self.ratios)}")

    def run(self, method: Method, workspace: Workspace) -> Iterator[Record]:
        """Yield both means, a point of a curve per ratio, and the normalised means if there is a search."""
        explained = workspace.explained(method, self.split)
        batch = workspace.task().data[self.split]
        unmasked = unmasked_predictions(workspace, self.split, self.target)
        order = rank_positions(explained.attribution.scores, batch.maskable)
        sizes, eraser = tokens_to_erase(batch.maskable, self.ratios), Eraser.on(workspace, self.mode)
        for keep, (info, normalised) in enumerate(zip(self.infos[:2], NORMALISED, strict=True)):
            drops = probability_drops(eraser, batch, unmasked, order, sizes, bool(keep))
            mean = drops.mean(dim=1)
            yield record_of(workspace, method, explained, "input", info.name, mean, keep_rows=True)
            for ratio, values in zip(self.ratios, drops.T.contiguous(), strict=True):
                yield record_of(workspace, method, explained, "input", info.name, values, at=ratio, keep_rows=True)
            if self.beam:
                low, high = self._bounds(workspace, eraser, unmasked, sizes, bool(keep))
                # NaN (0 / 0) for a text whose prediction no order changes: it is left out of the comparison.
                relative = (mean - low) / (high - low)
                yield record_of(workspace, method, explained, "input", normalised.name, relative, keep_rows=True)

    def _bounds(
        self,
        workspace: Workspace,
        eraser: Eraser,
        unmasked: UnmaskedPrediction,
        sizes: Int[Tensor, "row ratio"],
        keep: bool,
    ) -> tuple[Float[Tensor, " row"], Float[Tensor, " row"]]:
        """Return the smallest and largest mean drop of each text, searched once for all methods."""
        batch = workspace.task().data[self.split]

        def make() -> Artefact:
            low, high = (
                search_bound(eraser, batch, unmasked, sizes, keep=keep, sign=sign, width=self.beam) for sign in (-1, 1)
            )
            return Artefact({"low": low, "high": high})

        digest = digest_of(["orders", workspace.task_digest(), self.digest, keep])
        artefact = workspace.store.get_or_make("orders", digest, make)
        return artefact.tensors["low"], artefact.tensors["high"]


def probability_drops(
    eraser: Eraser,
    batch: Batch,
    unmasked: UnmaskedPrediction,
    order: Int[Tensor, "row token"],
    sizes: Int[Tensor, "row ratio"],
    keep: bool,
) -> Float[Tensor, "row ratio"]:
    """Compute p(y|x) - p(y|x without the first k tokens of the order), or, with `keep`, p(y|x) - p(y|only those)."""
    rows = torch.arange(len(batch))[:, None].expand_as(sizes)
    # Short texts have equal sizes at several ratios: each distinct pair of row and size is run once.
    pairs, inverse = torch.unique(torch.stack([rows.flatten(), sizes.flatten()]), dim=1, return_inverse=True)
    first = order[pairs[0]] < pairs[1][:, None]
    erased = batch.maskable[pairs[0]] & (~first if keep else first)
    probability = eraser.probability(batch, unmasked.target, pairs[0], erased)
    return (unmasked.probability[:, None] - probability[inverse].reshape(sizes.shape)).float()


@dataclass
class _OrderSearch:
    """Beam search for one text over orders of its tokens; a set's value is `sign` times its sum of drops."""

    beam: TokenBeam
    sizes: tuple[int, ...]
    """Numbers of tokens at which the drop counts. A number that occurs twice counts twice."""
    sign: int

    def advance(self, drops: Mapping[TokenSet, float], size: int) -> None:
        """Add the drops and keep the sets with the best final sum if the drop stayed as it is."""
        now, later = self.sizes.count(size), sum(other > size for other in self.sizes)
        inherited = self.beam.expand()
        values = {tokens: inherited[tokens] + self.sign * now * drop for tokens, drop in drops.items()}
        final = {tokens: inherited[tokens] + self.sign * (now + later) * drop for tokens, drop in drops.items()}
        self.beam.prune(values, priority=final)

    def best_mean(self) -> float:
        """Return the mean drop of the best order."""
        return self.sign * max(self.beam.values.values()) / len(self.sizes)


def search_bound(
    eraser: Eraser,
    batch: Batch,
    unmasked: UnmaskedPrediction,
    sizes: Int[Tensor, "row ratio"],
    *,
    keep: bool,
    sign: int,
    width: int,
) -> Float[Tensor, " row"]:
    """Search the order of each row with the largest (`sign=1`) or smallest (`sign=-1`) mean drop; return that drop."""
    searches = [
        _OrderSearch(TokenBeam(row.nonzero().flatten().tolist(), width), tuple(row_sizes), sign)
        for row, row_sizes in zip(batch.maskable, sizes.tolist(), strict=True)
    ]
    for size in range(1, int(sizes.max()) + 1):
        sets = {row: list(search.beam.expand()) for row, search in enumerate(searches) if size <= max(search.sizes)}
        drops = _drops_of_sets(eraser, batch, unmasked, sets, keep)
        for row, row_sets in sets.items():
            searches[row].advance({tokens: next(drops) for tokens in row_sets}, size)
    return torch.tensor([search.best_mean() for search in searches])


def _drops_of_sets(
    eraser: Eraser,
    batch: Batch,
    unmasked: UnmaskedPrediction,
    sets: Mapping[int, Sequence[TokenSet]],
    keep: bool,
) -> Iterator[float]:
    """Yield p(y|x) - p(y|x without, or with only, each set of tokens)."""
    pairs = [(row, tokens) for row, row_sets in sets.items() for tokens in row_sets]
    rows = torch.tensor([row for row, _ in pairs])
    first = torch.zeros(len(pairs), batch.tokens.shape[1], dtype=torch.bool)
    for copy, (_, tokens) in enumerate(pairs):
        first[copy, list(tokens)] = True
    erased = batch.maskable[rows] & (~first if keep else first)
    probability = eraser.probability(batch, unmasked.target, rows, erased)
    return iter((unmasked.probability[rows] - probability).tolist())
