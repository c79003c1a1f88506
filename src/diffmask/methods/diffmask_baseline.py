"""What erased tokens are replaced by, learned: the vector that disturbs the model least where it stands for tokens."""

from collections.abc import Iterator

import torch

from diffmask.answer import divergence
from diffmask.batch import Batch
from diffmask.clean import CleanPass
from diffmask.mask import MaskExplainer
from diffmask.training import track

LEARNING_RATE = 0.03


def learn_baselines(explainer: MaskExplainer, batches: Iterator[Batch], steps: int, source: torch.Generator) -> None:
    """Least mean KL(original || masked) over masks that keep each token with probability u, u ~ U(0, 1) a row."""
    sites = explainer.sites if explainer.mask == "states" else explainer.sites[:1]
    optimizer = torch.optim.Adam(explainer.baselines.parameters(), lr=LEARNING_RATE)
    rates = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in track(range(steps), "learn what erased tokens are replaced by"):
        rows = next(batches)
        with torch.no_grad():
            clean = CleanPass.over(explainer.task, rows)
        optimizer.zero_grad()
        for site in sites:
            kept = torch.rand(rows.tokens.shape, generator=source) < torch.rand(len(rows), 1, generator=source)
            divergence(clean.answer, explainer.under(clean, site, kept)).mean().backward()
        optimizer.step()
        rates.step()
    explainer.baselines.requires_grad_(False)
