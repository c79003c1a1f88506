"""What erased tokens are replaced by, learned: the vector that disturbs the model least where it stands for tokens."""

from collections.abc import Callable, Iterator

import torch
from jaxtyping import Float
from torch import Tensor, nn

from diffmask.core.baselines import site_statistics
from diffmask.core.batch import Batch
from diffmask.core.distributions import divergence
from diffmask.core.explainer import ForwardTrace
from diffmask.core.training import progress_bar
from diffmask.methods.diffmask.base import MaskExplainer

LEARNING_RATE = 0.1
"""In deviations of a place's states: an embedding's may be a tenth of a later layer's."""


def learn_baselines(
    explainer: MaskExplainer,
    batches: Iterator[Batch],
    drawn: Callable[[], tuple[str, ...]],
    source: torch.Generator,
    updates: int = 64,
    statistics_rows: int = 256,
) -> None:
    """Least mean KL(original || masked) over masks that keep each token with probability u, u ~ U(0, 1) a row.

    Every step is one clean pass, and for each of the sites it draws a masked one; each place has so many updates.
    """
    starts = {explainer.place(site): explainer.baseline(site).detach().clone() for site in explainer.sites}
    known = site_statistics(explainer.task, starts, statistics_rows)
    moved = {place: nn.Parameter(torch.zeros_like(start)) for place, start in starts.items()}
    steps = -(-updates * len(moved) // len(drawn()))
    optimizer = torch.optim.Adam(moved.values(), lr=LEARNING_RATE)
    rates = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)

    def learned(site: str) -> Float[Tensor, " width"]:
        place = explainer.place(site)
        return starts[place] + known[place].deviation * moved[place]

    for _ in progress_bar(range(steps), "learn what erased tokens are replaced by"):
        rows = next(batches)
        with torch.no_grad():
            clean = ForwardTrace.of(explainer.task, rows)
        optimizer.zero_grad()
        for site in drawn():
            kept = torch.rand(rows.tokens.shape, generator=source) < torch.rand(len(rows), 1, generator=source)
            divergence(clean.answer, explainer.under(clean, site, kept, learned(site))).mean().backward()
        optimizer.step()
        rates.step()
    with torch.no_grad():
        for site in explainer.sites:
            explainer.baseline(site).copy_(learned(site))
    explainer.baselines.requires_grad_(False)
