"""Diagnostics of a fit: measure hard masks on held-out rows and name the problems of a bad fit."""

import logging
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.distributions import Distribution

from diffmask.core.batch import Batch, spread_indices
from diffmask.core.capabilities import HasContext
from diffmask.core.distributions import agreement, average, concatenate, divergence
from diffmask.core.explainer import ForwardTrace, iter_traces
from diffmask.core.progress import progress_bar, stage
from diffmask.errors import FitWarning
from diffmask.methods.diffmask.base import MaskExplainer, binarize
from diffmask.methods.diffmask.lagrangian import Multiplier

logger = logging.getLogger(__name__)

MINIMAL_ROWS = 24
"""Held-out rows whose masks are tested for tokens that can be dropped."""
MINIMAL_TOKENS = 48
"""Kept tokens above which a mask is not tested: too many passes for a mask that is hardly minimal."""


@dataclass(frozen=True, kw_only=True)
class MultiplierDiagnosis:
    """Multiplier of a site's constraint at the end of the fit."""

    value: float
    at_bound: bool
    swing: float
    """Standard deviation of its logarithm over the last third of the fit."""


@dataclass(frozen=True, kw_only=True)
class BaselineDiagnosis:
    """How much a site's baseline tells the model by itself."""

    distance: float
    """Distance from the mean state, in standard deviations of the states."""
    information: float
    """KL(prediction for the baseline alone || average prediction), divided by that of real rows; 0 if rows have
    inputs that are never masked, from which a model predicts without any token."""
    swapped_divergence: float | None
    """Divergence of hard masks with the mean state in place of a learned baseline; large if the baseline carries the
    prediction."""


@dataclass(frozen=True, kw_only=True)
class SiteDiagnosis:
    """One site's mask on held-out rows; divergences in nats, shares in [0, 1]."""

    margin: float
    expected_divergence: float
    """Divergence with every gate at its mean."""
    expected_agreement: float
    hard_divergence: float
    """Divergence with hard masks, which users read."""
    hard_agreement: float
    rows: int
    """Held-out rows."""
    coverage: float | None
    """Share of rows that were to hold the margin and the prediction; None if the margin bounds the mean."""
    holding_share: float
    """Share of rows whose hard mask holds both the margin and the prediction."""
    p90_divergence: float
    """90th percentile of the divergence with hard masks."""
    falsely_empty: float
    """Share of rows whose hard mask erases everything although that breaks the margin or the prediction."""
    minimal_share: float | None
    """Share of a few rows whose hard mask holds and of which no single token can be dropped; at the main site only."""
    open_share: float
    """Mean keep probability over maskable tokens."""
    open_spread: float
    """Standard deviation of the keep probability over maskable tokens; 0 for a mask that ignores the input."""
    nested_share: float
    """Share of tokens erased by the site before that are also erased here; 1 for input masks and nested margins."""
    multiplier: MultiplierDiagnosis | None
    """Multiplier of the constraint; None for a fit without one."""
    baseline: BaselineDiagnosis

    @property
    def problems(self) -> dict[str, str]:
        """Problems of the fit, by name."""
        return {name: text for name, wrong, text in _checks(self) if wrong}


def _checks(site: SiteDiagnosis) -> Iterator[tuple[str, bool, str]]:
    """Yield every check: its name, whether it fails, and the message."""
    broken = site.hard_divergence > 1.05 * site.margin + 1e-9
    leak = 4 * max(site.margin, site.hard_divergence) + 0.1
    text = f"masks change the prediction by {site.hard_divergence:.3g} nats, the margin is {site.margin:g}"
    yield "margin", broken, text
    if site.coverage is not None:
        deviation = (site.coverage * (1 - site.coverage) / max(site.rows, 1)) ** 0.5
        missed = site.holding_share < site.coverage - 2 * deviation
        text = f"{site.holding_share:.0%} of unseen texts hold the margin and the prediction, not {site.coverage:.0%}"
        yield "coverage", missed, text
    yield "margin of zero", site.margin == 0, "only the unmasked input satisfies it: raise the margin"
    at_bound = site.multiplier is not None and site.multiplier.at_bound
    yield "unreachable", at_bound, "the multiplier is at its bound: the margin cannot be met"
    yield "all closed", site.open_share < 0.01, "every token is masked"
    yield "blind", site.open_spread < 0.01 < site.open_share < 0.97, "the mask ignores the input"
    swing = site.multiplier.swing if site.multiplier else 0.0
    yield "oscillating", swing > 1.5, f"the multiplier still swings by e^{swing:.1f}"
    swapped = site.baseline.swapped_divergence or 0.0
    yield (
        "leaking baseline",
        swapped > leak,
        f"the same masks change the prediction by {swapped:.3g} nats when erased states become the mean: the learned "
        "baseline itself carries the prediction",
    )
    yield (
        "informative baseline",
        site.baseline.information > 1.2,
        f"the baseline alone is {site.baseline.information:.1f} times as informative as a real row",
    )


@torch.no_grad()
def diagnose(
    explainer: MaskExplainer,
    held_out: Batch,
    margins: Mapping[str, float],
    multipliers: Mapping[str, Multiplier] | None = None,
    coverage: float | None = None,
    learned_baseline: bool = False,
) -> dict[str, Any]:
    """Return the diagnosis of every site on held-out rows, as plain values."""
    with stage("trace held-out texts"):
        traces = list(iter_traces(explainer.task, held_out, 32))
        keep = [explainer.keep_probability(trace, explainer.sites) for trace in traces]
    rows = _HeldOutRows(explainer, traces, keep)
    diagnoses = {
        site: _diagnose_site(rows, site, margins[site], coverage, (multipliers or {}).get(site), learned_baseline)
        for site in progress_bar(explainer.sites, "check the fit on held-out texts")
    }
    plain = {site: {**asdict(diagnosis), "problems": diagnosis.problems} for site, diagnosis in diagnoses.items()}
    if all(diagnosis.open_share > 0.97 for diagnosis in diagnoses.values()):
        for site in plain:
            plain[site]["problems"]["all open"] = (
                "no token is masked at any site: raise the margin, or lower min_agreement or the learning rate"
            )
    return plain


@dataclass(frozen=True)
class _HeldOutRows:
    """Held-out rows with their traces and keep probabilities."""

    explainer: MaskExplainer
    traces: list[ForwardTrace]
    keep: list[Tensor]
    """Keep probabilities [row, site, token], one tensor per trace."""
    information: dict[str, float] = field(default_factory=dict)
    """Cache by masked site: inputs are masked at one site, whichever the probe's is."""

    @cached_property
    def answer(self) -> Distribution:
        """Prediction for all rows, nothing erased."""
        return concatenate(*(trace.answer for trace in self.traces))

    def keep_at(self, site: str) -> list[Tensor]:
        """Return the keep probabilities of a site, one tensor per trace."""
        index = self.explainer.sites.index(site)
        return [keep[:, index] for keep in self.keep]

    def maskable(self, values: Iterable[Tensor]) -> Float[Tensor, " token"]:
        """Join the values of all maskable tokens."""
        return torch.cat([value[trace.rows.maskable] for value, trace in zip(values, self.traces, strict=True)])

    def predict_masked(
        self, site: str, gates: Iterable[Tensor], baseline: Float[Tensor, " width"] | None = None
    ) -> Distribution:
        """Return the prediction for all rows under masks of `site`, one per trace."""
        pairs = zip(self.traces, gates, strict=True)
        return concatenate(*(self.explainer.predict_masked(trace, site, gate, baseline) for trace, gate in pairs))

    def states(self, site: str) -> Float[Tensor, "token width"]:
        """Return the states of every real token where the mask of `site` is applied."""
        masked = self.explainer.masked_site(site)
        return torch.cat([trace.states[masked][trace.rows.present] for trace in self.traces])

    def divergence(self, changed: Distribution) -> float:
        """Return the mean KL(original || changed)."""
        return divergence(self.answer, changed).mean().item()

    def agreement(self, changed: Distribution) -> float:
        """Return the share of rows with the same decision."""
        return agreement(self.answer, changed).float().mean().item()

    def nested_share(self, site: str) -> float:
        """Return the share of tokens erased by the site before that are also erased at `site`."""
        sites = self.explainer.sites
        kept = binarize(self.maskable(self.keep_at(site)))
        before = binarize(self.maskable(self.keep_at(sites[max(sites.index(site) - 1, 0)])))
        erased = before == 0
        return (kept[erased] == 0).float().mean().item() if erased.any() else 1.0


def _diagnose_site(
    rows: _HeldOutRows,
    site: str,
    margin: float,
    coverage: float | None,
    multiplier: Multiplier | None,
    learned_baseline: bool,
) -> SiteDiagnosis:
    explainer, states = rows.explainer, rows.states(site)
    keep = rows.maskable(rows.keep_at(site))
    hard = [binarize(part) for part in rows.keep_at(site)]
    under_expected = rows.predict_masked(site, (explainer.expected_mask(trace, site) for trace in rows.traces))
    under_hard = rows.predict_masked(site, hard)
    caused = divergence(rows.answer, under_hard)
    holds = (caused <= margin) & agreement(rows.answer, under_hard)
    swapped = rows.predict_masked(site, hard, states.mean(dim=0)) if learned_baseline else None
    empty = torch.cat(
        [(part * trace.rows.maskable).sum(dim=1) == 0 for part, trace in zip(hard, rows.traces, strict=True)]
    )
    return SiteDiagnosis(
        margin=margin,
        expected_divergence=rows.divergence(under_expected),
        expected_agreement=rows.agreement(under_expected),
        hard_divergence=rows.divergence(under_hard),
        hard_agreement=rows.agreement(under_hard),
        rows=len(holds),
        coverage=coverage,
        holding_share=holds.float().mean().item(),
        p90_divergence=caused.quantile(0.9).item(),
        falsely_empty=(empty & ~holds).float().mean().item(),
        minimal_share=_minimal_share(rows, site, margin, hard),
        open_share=keep.mean().item(),
        open_spread=keep.std(correction=0).item(),
        nested_share=rows.nested_share(site),
        multiplier=None if multiplier is None else _diagnose_multiplier(multiplier),
        baseline=BaselineDiagnosis(
            distance=_distance(explainer.baseline(site), states),
            information=_baseline_information(rows, site),
            swapped_divergence=None if swapped is None else rows.divergence(swapped),
        ),
    )


def _diagnose_multiplier(multiplier: Multiplier) -> MultiplierDiagnosis:
    return MultiplierDiagnosis(value=multiplier.value, at_bound=multiplier.at_bound, swing=multiplier.swing)


def _minimal_share(rows: _HeldOutRows, site: str, margin: float, hard: list[Tensor]) -> float | None:
    """Return the share of a few masks that hold and of which every single removal breaks; only at the main site."""
    explainer = rows.explainer
    if site != explainer.sites[0 if explainer.mask == "states" else -1]:
        return None
    places = [(part, row) for part, trace in enumerate(rows.traces) for row in range(len(trace.rows))]
    chosen = [places[index] for index in spread_indices(len(places), MINIMAL_ROWS)]
    minimal = [
        _is_minimal(explainer, rows.traces[part].rows[row : row + 1], hard[part][row] > 0.5, site, margin)
        for part, row in chosen
    ]
    return sum(minimal) / len(minimal)


def _is_minimal(explainer: MaskExplainer, row: Batch, kept: Bool[Tensor, " token"], site: str, margin: float) -> bool:
    """Return whether a mask holds and every removal of one of its tokens breaks the margin or the prediction."""
    tokens = (kept & row.maskable[0]).nonzero().flatten()
    if len(tokens) > MINIMAL_TOKENS:
        return False  # Hardly a mask from which nothing can be dropped.
    masks = kept.repeat(1 + len(tokens), 1)
    masks[torch.arange(1, len(masks)), tokens] = False
    copies = row.repeat(len(masks))
    original, changed = explainer.task.predict(copies), explainer.predict_kept(copies, masks, site)
    holds = (divergence(original, changed) <= margin) & agreement(original, changed)
    return bool(holds[0]) and not bool(holds[1:].any())


def _distance(baseline: Float[Tensor, " width"], states: Float[Tensor, "token width"]) -> float:
    """Return the distance from the mean state, in standard deviations."""
    squared = (baseline - states.mean(dim=0)).square().mean()
    return (squared / states.var(dim=0, correction=0).mean().clamp(min=1e-12)).sqrt().item()


def _baseline_information(rows: _HeldOutRows, site: str) -> float:
    masked = rows.explainer.masked_site(site)
    if isinstance(rows.explainer.task, HasContext):
        return 0.0
    if masked not in rows.information:
        empty = rows.predict_masked(site, (torch.zeros(trace.rows.tokens.shape) for trace in rows.traces))
        usual = divergence(rows.answer, average(rows.answer)).mean().item()
        rows.information[masked] = divergence(empty, average(rows.answer)).mean().item() / max(usual, 1e-9)
    return rows.information[masked]


def report(diagnostics: Mapping[str, Any], label: str) -> None:
    """Log one line per site; warn of each problem."""
    for site, values in diagnostics.items():
        logger.info(
            "%s at %s: %.0f %% open, divergence %.4f, 90th percentile %.4f (margin %g), agreement %.3f; "
            "%.0f %% of texts hold the margin and the prediction, %.1f %% are falsely empty%s",
            label,
            site,
            100 * values["open_share"],
            values["hard_divergence"],
            values["p90_divergence"],
            values["margin"],
            values["hard_agreement"],
            100 * values["holding_share"],
            100 * values["falsely_empty"],
            _minimal_text(values["minimal_share"]),
        )
        for name, text in values["problems"].items():
            warnings.warn(f"{label} at site '{site}': {name}: {text}", FitWarning, stacklevel=4)


def _minimal_text(share: float | None) -> str:
    return "" if share is None else f", {share:.0%} hold and are minimal"
