"""Where the thresholds of several margins must stand for held-out texts to hold them, and whether they do."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.distributions import Distribution

from diffmask.core.batch import Batch
from diffmask.core.distributions import agreement, divergence
from diffmask.core.hooks import erase_states
from diffmask.methods.diffmask.lagrangian import Multiplier
from diffmask.methods.diffmask.nested import NestedMaskExplainer


@dataclass(frozen=True)
class Opened:
    """Some texts with their clean answers and every margin's gates."""

    explainer: NestedMaskExplainer
    rows: Batch
    answer: Distribution
    logits: Float[Tensor, "row margin token"]
    """What each gate's score is above its threshold."""

    def kept(self, margin: int, shift: float = 0.0) -> Bool[Tensor, "row token"]:
        """The hard mask at a margin, were its threshold moved."""
        return (self.logits[:, margin] > shift) & self.rows.maskable

    def masked(self, margin: int, shift: float = 0.0) -> Distribution:
        """The answer under it."""
        erased = self.rows.maskable & ~self.kept(margin, shift)
        site = self.explainer.task.sites[0]
        return self.explainer.task.predict(self.rows, {site: erase_states(erased, self.explainer.baseline)})


@torch.no_grad()
def opened(explainer: NestedMaskExplainer, rows: Batch, size: int = 64) -> list[Opened]:
    """Texts in order of length, some at a time."""
    order = rows.present.sum(dim=1).argsort(stable=True)
    found = []
    for some in order.split(size):
        batch = rows[some].trim()
        answer, states = explainer.task.trace(batch)
        found.append(Opened(explainer, batch, answer, explainer.heights(answer, states, batch)))
    return found


@torch.no_grad()
def calibrate(explainer: NestedMaskExplainer, rows: Batch, halvings: int = 7) -> None:
    """Move each margin's threshold as high as hard masks hold it, and no higher than a looser one's.

    Held is a margin that the mean divergence keeps to by twice its standard error: few texts make most of a small mean.
    """
    parts = opened(explainer, rows)
    highest = torch.inf
    for index in reversed(range(len(explainer.margins))):
        found = _highest(parts, index, explainer.margins[index], halvings)
        highest = min(highest, found)
        explainer.thresholds.shift[index] += highest


def _highest(parts: Sequence[Opened], margin: int, allowed: float, halvings: int) -> float:
    """The largest shift, by bisection, with a mean divergence safely within what is allowed."""
    heights = torch.cat([part.logits[:, margin][part.rows.maskable] for part in parts])
    low, high = heights.min().item() - 1e-3, heights.max().item()
    for _ in range(halvings):
        middle = (low + high) / 2
        caused = _divergences(parts, margin, middle)
        error = caused.std(correction=0) / len(caused) ** 0.5
        low, high = (middle, high) if caused.mean() + 2 * error <= allowed else (low, middle)
    return low


def _divergences(parts: Sequence[Opened], margin: int, shift: float = 0.0) -> Float[Tensor, " row"]:
    return torch.cat([divergence(part.answer, part.masked(margin, shift)) for part in parts])


@torch.no_grad()
def diagnose(explainer: NestedMaskExplainer, rows: Batch, multipliers: Sequence[Multiplier]) -> dict[str, Any]:
    """Each margin's hard masks on held-out texts, as plain values."""
    parts = opened(explainer, rows)
    found = {}
    for index, name in enumerate(explainer.names):
        margin, caused = explainer.margins[index], _divergences(parts, index).mean().item()
        same = torch.cat([agreement(part.answer, part.masked(index)) for part in parts])
        kept = torch.cat([part.kept(index)[part.rows.maskable] for part in parts]).float()
        tighter = torch.cat([part.kept(max(index - 1, 0))[part.rows.maskable] for part in parts]).float()
        found[name] = {
            "margin": margin,
            "hard_divergence": caused,
            "hard_agreement": same.float().mean().item(),
            "open_share": kept.mean().item(),
            "nested_share": (kept <= tighter).float().mean().item(),
            "multiplier": multipliers[index].value,
            "problems": _problems(margin, caused, kept.mean().item()),
        }
    return found


def _problems(margin: float, caused: float, kept: float) -> dict[str, str]:
    found = {}
    if caused > 1.05 * margin:
        found["margin"] = f"masks change the answer by {caused:.3g} nats, the margin is {margin:g}"
    if kept > 0.97:
        found["all open"] = "no token is masked: raise the margin, or the number of steps"
    if kept < 0.01:
        found["all closed"] = "every token is masked"
    return found
