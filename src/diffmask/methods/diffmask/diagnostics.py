"""What a fit says about itself: does its explanation deserve belief, and if not, why not?"""

import logging
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.distributions import Distribution

from diffmask.core.batch import Batch
from diffmask.core.distributions import agreement, average, concatenate, divergence
from diffmask.core.explainer import ForwardTrace, iter_traces
from diffmask.errors import FitWarning
from diffmask.methods.diffmask.base import MaskExplainer, binarize
from diffmask.methods.diffmask.lagrangian import Multiplier

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class SiteDiagnosis:
    """One site's mask on held-out rows; divergences in nats, shares of 1."""

    margin: float
    expected_divergence: float
    """With every gate at its mean."""
    expected_agreement: float
    hard_divergence: float
    """With every gate open or shut: the claim a reader is given."""
    hard_agreement: float
    open_share: float
    """Mean P(z > 0) over maskable tokens."""
    open_spread: float
    """Standard deviation of P(z > 0) over maskable tokens: 0 is a mask that does not look."""
    multiplier: float | None
    """Of the constraint, where the fit had one."""
    multiplier_at_bound: bool
    multiplier_swing: float
    """Standard deviation of the multiplier's logarithm over the last third of the fit."""
    baseline_distance: float
    """How far the baseline lies from the mean state, in standard deviations of the states."""
    baseline_information: float
    """KL(answer to the baseline alone || average answer) over that of real rows: 1 is as telling as a real row."""
    swapped_divergence: float
    """Hard masks with the mean state as baseline: large if the baseline, not what is kept, makes the answer."""

    @property
    def problems(self) -> dict[str, str]:
        """What is wrong, by name."""
        return {name: text for name, wrong, text in _judge(self) if wrong}


def _judge(site: SiteDiagnosis) -> Iterator[tuple[str, bool, str]]:
    """Every problem looked for: its name, whether it is there, and what to tell a person."""
    broken = site.hard_divergence > 1.05 * site.margin + 1e-9
    leak = 4 * max(site.margin, site.hard_divergence) + 0.1
    yield "margin", broken, f"masks change the answer by {site.hard_divergence:.3g} nats, the margin is {site.margin:g}"
    yield "margin of zero", site.margin == 0, "only the unmasked input satisfies it: raise the margin"
    yield "unreachable", site.multiplier_at_bound, "the multiplier is at its bound: the margin cannot be met"
    yield "all closed", site.open_share < 0.01, "every token is masked"
    yield "blind", site.open_spread < 0.01 < site.open_share < 0.97, "the mask ignores the input"
    yield "oscillating", site.multiplier_swing > 1.5, f"the multiplier still swings by e^{site.multiplier_swing:.1f}"
    yield (
        "leaking baseline",
        site.swapped_divergence > leak,
        f"the same masks change the answer by {site.swapped_divergence:.3g} nats when erased states become the mean: "
        "the baseline itself carries the answer",
    )
    yield (
        "telling baseline",
        site.baseline_information > 1.2,
        f"nothing but the baseline is {site.baseline_information:.1f} times as telling as a real row",
    )


@torch.no_grad()
def diagnose(
    explainer: MaskExplainer,
    margin: float,
    multipliers: Mapping[str, Multiplier] | None = None,
    held_out: Batch | None = None,
    rows: int = 192,
) -> dict[str, Any]:
    """Every site's diagnosis, as plain values, on some held-out rows: these, or validation rows."""
    task = explainer.task
    some = (
        held_out if held_out is not None and len(held_out) else task.data["valid" if "valid" in task.data else "train"]
    )
    passes = list(iter_traces(task, some.spread(rows), 32))
    seen = _Seen(explainer, passes, [explainer.opened(clean, explainer.sites) for clean in passes])
    found = {site: _diagnose_site(seen, site, margin, (multipliers or {}).get(site)) for site in explainer.sites}
    plain = {site: {**asdict(diagnosis), "problems": diagnosis.problems} for site, diagnosis in found.items()}
    if all(diagnosis.open_share > 0.97 for diagnosis in found.values()):
        for site in plain:
            plain[site]["problems"]["all open"] = (
                "no token is masked at any site: raise the margin, or lower the learning rate"
            )
    return plain


@dataclass(frozen=True)
class _Seen:
    """Held-out rows as the model and its masks see them, those of like length together."""

    explainer: MaskExplainer
    passes: list[ForwardTrace]
    opened: list[Tensor]
    """P(token kept) of each pass: row, site, token."""
    information: dict[str, float] = field(default_factory=dict)
    """By place, of its baseline alone; inputs are masked at one place, whatever the site."""

    @cached_property
    def answer(self) -> Distribution:
        """To all rows, nothing erased."""
        return concatenate(*(clean.answer for clean in self.passes))

    def under(
        self, site: str, gates: Iterable[Tensor], baseline: Float[Tensor, " width"] | None = None
    ) -> Distribution:
        """The answer to all rows under masks seen from `site`, one for each pass."""
        masked = zip(self.passes, gates, strict=True)
        return concatenate(*(self.explainer.under(clean, site, gate, baseline) for clean, gate in masked))

    def states(self, site: str) -> Float[Tensor, "token width"]:
        """Those of every real token where the mask seen from `site` is applied."""
        place = self.explainer.place(site)
        return torch.cat([clean.states[place][clean.rows.present] for clean in self.passes])

    def divergence(self, changed: Distribution) -> float:
        """Mean KL(original || changed)."""
        return divergence(self.answer, changed).mean().item()

    def agreement(self, changed: Distribution) -> float:
        """Share of rows whose decision is the same."""
        return agreement(self.answer, changed).float().mean().item()


def _diagnose_site(seen: _Seen, site: str, margin: float, multiplier: Multiplier | None) -> SiteDiagnosis:
    explainer, states = seen.explainer, seen.states(site)
    opened = [part[:, explainer.sites.index(site)] for part in seen.opened]
    kept = torch.cat([part[clean.rows.maskable] for part, clean in zip(opened, seen.passes, strict=True)])
    hard = [binarize(part) for part in opened]
    under_expected = seen.under(site, (explainer.expected(clean, site) for clean in seen.passes))
    under_hard = seen.under(site, hard)
    return SiteDiagnosis(
        margin=margin,
        expected_divergence=seen.divergence(under_expected),
        expected_agreement=seen.agreement(under_expected),
        hard_divergence=seen.divergence(under_hard),
        hard_agreement=seen.agreement(under_hard),
        open_share=kept.mean().item(),
        open_spread=kept.std(correction=0).item(),
        multiplier=multiplier.value if multiplier else None,
        multiplier_at_bound=multiplier.at_bound if multiplier else False,
        multiplier_swing=multiplier.swing if multiplier else 0.0,
        baseline_distance=_distance(explainer.baseline(site), states),
        baseline_information=_baseline_information(seen, site),
        swapped_divergence=seen.divergence(seen.under(site, hard, states.mean(dim=0))),
    )


def _distance(baseline: Float[Tensor, " width"], states: Float[Tensor, "token width"]) -> float:
    """From the mean state, in deviations."""
    away = (baseline - states.mean(dim=0)).square().mean()
    return (away / states.var(dim=0, correction=0).mean().clamp(min=1e-12)).sqrt().item()


def _baseline_information(seen: _Seen, site: str) -> float:
    place = seen.explainer.place(site)
    if place not in seen.information:
        seen.information[place] = _information(seen, site)
    return seen.information[place]


def _information(seen: _Seen, site: str) -> float:
    empty = seen.under(site, (torch.zeros(clean.rows.tokens.shape) for clean in seen.passes))
    usual = divergence(seen.answer, average(seen.answer)).mean().item()
    return divergence(empty, average(seen.answer)).mean().item() / max(usual, 1e-9)


def report(diagnostics: Mapping[str, Any], label: str) -> None:
    """Log every site in a line; warn of each problem."""
    for site, found in diagnostics.items():
        logger.info(
            "%s at %s: %.0f %% open, divergence %.4f (margin %g), agreement %.3f",
            label, site, 100 * found["open_share"], found["hard_divergence"], found["margin"], found["hard_agreement"],
        )  # fmt: skip
        for name, text in found["problems"].items():
            warnings.warn(f"{label} at site '{site}': {name}: {text}", FitWarning, stacklevel=4)
