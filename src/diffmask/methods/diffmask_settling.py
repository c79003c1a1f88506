"""After a fit: each site's votes moved so that hard masks hold the margin, and use it.

A fit holds the margin on average over draws. What a reader is told is the hard mask, and its divergence is another:
lower where draws are noisy, higher where gates that closed too early did not open again. One number a site, found by
bisection on training rows, puts that right; which tokens are needed more than others stays as it was learned.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor
from torch.distributions import Distribution

from diffmask.answer import divergence
from diffmask.batch import Batch
from diffmask.mask import MaskExplainer, States
from diffmask.training import track

FARTHEST = 16.0
"""How far votes may be moved, in logits."""


@dataclass(frozen=True)
class _Seen:
    """Some rows with their clean answer and states."""

    rows: Batch
    answer: Distribution
    states: States


@torch.no_grad()
def settle(explainer: MaskExplainer, rows: Batch, margin: float, first: float, halvings: int = 6) -> None:
    """Move every site's votes, from the first site to the last, to where hard masks just hold the margin.

    The first site gets the share `first` of the margin, the last all of it: what an early site erases is erased for all
    that follow.
    """
    parts = _seen(explainer, rows)
    for index, site in enumerate(track(explainer.sites, "settle the margins")):
        part = index / max(1, len(explainer.sites) - 1)
        held = margin * (first + (1 - first) * part)
        shift = explainer.probe(site).shift
        low, high = shift - FARTHEST, shift + FARTHEST
        for _ in range(halvings):
            shift.copy_((low + high) / 2)
            if _divergence(explainer, parts, site) > held:
                low = shift.clone()
            else:
                high = shift.clone()
        shift.copy_(high)


def _seen(explainer: MaskExplainer, rows: Batch, size: int = 64) -> list[_Seen]:
    order = rows.present.sum(dim=1).argsort(stable=True)
    batches = [rows[some].trim() for some in order.split(size)]
    return [_Seen(batch, *explainer.task.trace(batch)) for batch in batches]


def _divergence(explainer: MaskExplainer, parts: list[_Seen], site: str) -> float:
    """Mean over rows of KL(original || hard mask)."""
    caused: list[Float[Tensor, " row"]] = []
    for seen in parts:
        edits = explainer.edits(site, explainer.hard(seen.states, site), seen.rows.maskable)
        caused.append(divergence(seen.answer, explainer.task.resume(seen.rows, seen.states, edits)))
    return torch.cat(caused).mean().item()
