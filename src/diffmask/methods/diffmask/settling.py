"""After a fit: each site's votes moved so that hard masks hold the margin, and use it.

A fit holds the margin on average over draws. What a reader is told is the hard mask, and its divergence is another:
lower where draws are noisy, higher where gates that closed too early did not open again. One number a site, found by
bisection on training rows, puts that right; which tokens are needed more than others stays as it was learned.
"""

from collections.abc import Mapping

import torch

from diffmask.core.batch import Batch
from diffmask.core.explainer import iter_traces
from diffmask.core.training import progress_bar
from diffmask.methods.diffmask.gated import GatedMaskExplainer

FARTHEST = 16.0
"""How far votes may be moved, in logits."""


@torch.no_grad()
def settle(explainer: GatedMaskExplainer, rows: Batch, margins: Mapping[str, float], halvings: int = 6) -> None:
    """Move every site's votes, from the first site to the last, to where hard masks just hold the site's margin."""
    parts = list(iter_traces(explainer.task, rows))
    for site, held in progress_bar(list(margins.items()), "settle the margins"):
        shift = explainer.probe(site).shift
        low, high = shift - FARTHEST, shift + FARTHEST
        for _ in range(halvings):
            shift.copy_((low + high) / 2)
            if explainer.holds(parts, site, (explainer.hard(part, site) for part in parts), held):
                high = shift.clone()
            else:
                low = shift.clone()
        shift.copy_(high)
