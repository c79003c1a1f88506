"""How much a token must be needed to be kept: a threshold for every site, set where hard masks hold the margin."""

from collections.abc import Mapping

import torch
from torch import Tensor

from diffmask.core.batch import Batch
from diffmask.core.explainer import ForwardTrace, iter_traces
from diffmask.core.training import progress_bar
from diffmask.methods.diffmask.surrogate import KEEPS_ALL, SurrogateMaskExplainer

LEVELS = (0.95, 0.9, 0.8, 0.7, 0.6, 0.45, 0.3, 0.15)
"""Shares of tokens to try to erase, most first: what masks cause need not grow with what they erase."""


@torch.no_grad()
def set_thresholds(
    explainer: SurrogateMaskExplainer, rows: Batch, margins: Mapping[str, float], slack: float = 0.8
) -> None:
    """For every site, first to last, the highest threshold with which hard masks hold a little less than its margin.

    Less, as other rows differ from these and as the largest of several masks that hold may hold by chance.
    """
    parts = list(iter_traces(explainer.task, rows, 32))
    before = [part.rows.maskable for part in parts]
    for index, site in enumerate(progress_bar(explainer.sites, "set the thresholds")):
        search = _Search(explainer, site, parts, before, slack * margins[site])
        threshold = search.highest()
        explainer.thresholds[index] = threshold
        if explainer.mask == "inputs":
            before = search.kept(threshold)


class _Search:
    """Hard masks seen from one site, and whether they hold its margin."""

    def __init__(
        self,
        explainer: SurrogateMaskExplainer,
        site: str,
        parts: list[ForwardTrace],
        before: list[Tensor],
        margin: float,
    ) -> None:
        self.explainer, self.site, self.parts, self.before, self.margin = explainer, site, parts, before, margin
        self.needed = [explainer.needs(part, site) for part in parts]
        self.every = torch.cat([need[part.rows.maskable] for need, part in zip(self.needed, parts, strict=True)])

    def highest(self, halvings: int = 2) -> float:
        """The first of `LEVELS` that holds, then halfway to the one that did not; KEEPS_ALL where none does."""
        high = 1.0
        for level in LEVELS:
            if self._holds(level):
                break
            high = level
        else:
            level = 0.0
        for _ in range(halvings):
            middle = (level + high) / 2
            level, high = (middle, high) if self._holds(middle) else (level, middle)
        return self.every.quantile(level).item() if level else KEEPS_ALL

    def kept(self, threshold: float) -> list[Tensor]:
        """What is kept of what the sites before kept."""
        return [old & (need > threshold) for old, need in zip(self.before, self.needed, strict=True)]

    def _holds(self, level: float) -> bool:
        return self.explainer.holds(self.parts, self.site, self.kept(self.every.quantile(level).item()), self.margin)
