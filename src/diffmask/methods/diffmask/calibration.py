"""Calibration: set one threshold per site so that hard masks satisfy the margin on held-out rows.

Training satisfies the margin on average over sampled masks of training rows. Users read hard masks of other rows,
whose divergence differs. Calibration keeps the learned order of the tokens and moves only the threshold.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from diffmask.core.batch import Batch
from diffmask.core.explainer import ForwardTrace, iter_traces
from diffmask.core.progress import progress_bar
from diffmask.core.task import Task
from diffmask.core.training import split_held_out
from diffmask.methods.diffmask.base import MaskExplainer

LEVELS = (0.95, 0.9, 0.8, 0.7, 0.6, 0.45, 0.3, 0.15)
"""Shares of tokens to try to erase, largest first: the divergence need not grow with the number of erased tokens."""
SLACK = 0.8
"""Share of the margin to calibrate to: the largest of several masks that satisfy it may do so by chance."""


def held_out_rows(task: Task) -> Batch:
    """Return the validation rows or, if there are none, the last half of the training rows."""
    return split_held_out(task, len(task.data["train"]))[1]


def calibration_split(task: Task) -> tuple[Batch, Batch]:
    """Split the held-out rows: every other row for calibration, the rest for diagnostics."""
    rows = held_out_rows(task)
    return (rows[::2], rows[1::2]) if len(rows) > 1 else (rows, rows)


@torch.no_grad()
def calibrate(
    explainer: MaskExplainer,
    rows: Batch,
    margins: Mapping[str, float],
    slack: float = SLACK,
    trained: float | None = None,
    min_agreement: float | None = None,
) -> None:
    """Set the threshold of every site, first to last, as high as hard masks satisfy `slack` times its margin.

    With `min_agreement` they also keep the predictions of that share of the rows. A threshold that the fit itself has
    `trained` is kept exactly, unless it breaks the margin or a higher one holds it.
    """
    traces = list(iter_traces(explainer.task, rows, 32))
    kept = [trace.rows.maskable for trace in traces]
    for site in progress_bar(explainer.sites, "calibrate thresholds"):
        search = ThresholdSearch.at(explainer, site, traces, kept)
        threshold = search.highest(slack * margins[site], trained=trained, min_agreement=min_agreement)
        explainer.set_threshold(site, threshold)
        if explainer.nested:
            kept = search.masks(threshold)


@dataclass(frozen=True)
class ThresholdSearch:
    """Search for the highest threshold of one site whose hard masks satisfy a margin."""

    explainer: MaskExplainer
    site: str
    traces: Sequence[ForwardTrace]
    kept: Sequence[Tensor]
    """Tokens that the sites before have kept, per trace."""
    scores: Sequence[Tensor]
    """Scores to compare with the threshold, per trace."""

    @staticmethod
    def at(
        explainer: MaskExplainer, site: str, traces: Sequence[ForwardTrace], kept: Sequence[Tensor]
    ) -> "ThresholdSearch":
        """Score the tokens of all traces at a site."""
        scores = [explainer.threshold_scores(trace, site) for trace in traces]
        return ThresholdSearch(explainer, site, traces, kept, scores)

    def masks(self, threshold: float) -> list[Tensor]:
        """Return the hard masks at a threshold, one per trace."""
        return [kept & (scores > threshold) for kept, scores in zip(self.kept, self.scores, strict=True)]

    def highest(
        self,
        margin: float,
        halvings: int = 2,
        standard_errors: float = 0.0,
        trained: float | None = None,
        min_agreement: float | None = None,
    ) -> float:
        """Return the threshold of the first of `LEVELS` that satisfies the margin, refined by bisection; or -inf.

        Levels are quantiles of the scores. A trained threshold is one more level, and is returned as it is: it may lie
        in a wide gap between scores, where a quantile is an edge of the gap.
        """
        pooled = torch.cat(
            [scores[trace.rows.maskable] for scores, trace in zip(self.scores, self.traces, strict=True)]
        )
        pooled = pooled[pooled.isfinite()]

        own = [] if trained is None else [(pooled <= trained).double().mean().item()]

        def threshold_at(level: float) -> float:
            return trained if trained is not None and level in own else pooled.quantile(level).item()

        def satisfied(level: float) -> bool:
            masks = self.masks(threshold_at(level))
            return self.explainer.satisfies_margin(
                self.traces, self.site, masks, margin, standard_errors, min_agreement
            )

        if not len(pooled):
            return -torch.inf
        failed = 1.0
        for level in sorted([*LEVELS, *own], reverse=True):
            if satisfied(level):
                break
            failed = level
        else:
            level = 0.0
        for _ in range(halvings):
            middle = (level + failed) / 2
            level, failed = (middle, failed) if satisfied(middle) else (level, middle)
        return threshold_at(level) if level else -torch.inf
