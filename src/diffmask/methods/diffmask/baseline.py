"""Baselines: the states that replace erased ones, as a fit starts with them and as they are learned."""

from collections.abc import Iterator, Mapping

import torch
from jaxtyping import Float
from torch import Tensor, nn

from diffmask.core.baseline_states import SiteStatistics, mask_state, site_statistics
from diffmask.core.batch import Batch
from diffmask.core.distributions import divergence
from diffmask.core.explainer import ForwardTrace
from diffmask.core.progress import progress_bar
from diffmask.core.task import Task
from diffmask.methods.diffmask.base import MaskExplainer, SiteMaskMethod, draw_sites

LEARNING_RATE = 0.1
"""In standard deviations of a site's states: those of an embedding may be a tenth of a later layer's."""


def initial_baselines(
    method: SiteMaskMethod, task: Task, sites: tuple[str, ...], statistics: Mapping[str, SiteStatistics]
) -> dict[str, nn.Parameter]:
    """Return the baseline of each site that is masked; a random one is drawn from torch's own generator."""
    masked = sites if method.mask == "states" else task.sites[:1]
    return {
        site: nn.Parameter(_initial_baseline(method, task, site, statistics[site]), requires_grad=method.learn_baseline)
        for site in masked
    }


def _initial_baseline(
    method: SiteMaskMethod, task: Task, site: str, statistics: SiteStatistics
) -> Float[Tensor, " width"]:
    kind = method.baseline
    if kind == "auto":
        kind = "mask" if method.mask == "inputs" and task.mask_token is not None else "mean"
    if kind == "mask":
        return mask_state(task, site)
    if kind == "zero":
        return torch.zeros_like(statistics.mean)
    return torch.randn_like(statistics.mean) if kind == "random" else statistics.mean.clone()


def learn_baselines(
    explainer: MaskExplainer,
    batches: Iterator[Batch],
    sites_per_batch: int,
    source: torch.Generator,
    updates: int = 64,
    statistics_rows: int = 256,
) -> None:
    """Minimise the mean KL(original || masked) over masks that keep tokens with probability u, u ~ U(0, 1) per row.

    Every step is one forward pass without masks and one per drawn site. Each baseline gets about `updates` updates.
    """
    starts = {explainer.masked_site(site): explainer.baseline(site).detach().clone() for site in explainer.sites}
    statistics = site_statistics(explainer.task, starts, statistics_rows)
    offsets = {site: nn.Parameter(torch.zeros_like(start)) for site, start in starts.items()}
    steps = -(-updates * len(offsets) // min(sites_per_batch, len(offsets)))
    optimizer = torch.optim.Adam(offsets.values(), lr=LEARNING_RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)

    def learned(site: str) -> Float[Tensor, " width"]:
        masked = explainer.masked_site(site)
        return starts[masked] + statistics[masked].deviation * offsets[masked]

    for _ in progress_bar(range(steps), "learn the baseline"):
        rows = next(batches)
        with torch.no_grad():
            trace = ForwardTrace.of(explainer.task, rows)
        optimizer.zero_grad()
        for site in draw_sites(explainer, sites_per_batch, source):
            kept = torch.rand(rows.tokens.shape, generator=source) < torch.rand(len(rows), 1, generator=source)
            divergence(trace.answer, explainer.predict_masked(trace, site, kept, learned(site))).mean().backward()
        optimizer.step()
        schedule.step()
    with torch.no_grad():
        for site in explainer.sites:
            explainer.baseline(site).copy_(learned(site))
    explainer.baselines.requires_grad_(False)
