"""Does the answer survive the masks that a method learned?"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch

from diffmask.answer import agreement, divergence
from diffmask.bench import Bench
from diffmask.evaluation import Evaluation, record_of
from diffmask.explainer import Method
from diffmask.mask import MaskExplainer
from diffmask.record import Record


@dataclass(frozen=True, kw_only=True)
class Fidelity(Evaluation):
    """Divergence and agreement of the answer under hard masks, and the share of tokens kept; learned masks only."""

    name: ClassVar[str] = "fidelity"

    split: str = "test"

    @torch.no_grad()
    def run(self, method: Method, bench: Bench) -> Iterator[Record]:
        """Three numbers a site; none for a method that learns no mask."""
        explainer = bench.explainer(method)
        if not isinstance(explainer, MaskExplainer):
            return
        explained = bench.explained(method, self.split)
        batch = bench.task().data[self.split].trim()
        answer, states = bench.task().trace(batch)
        for site in explainer.sites:
            hard = explainer.hard(states, site)
            masked = bench.task().predict(batch, explainer.edits(site, hard, batch.maskable))
            kept = (hard * batch.maskable).sum(dim=1) / batch.maskable.sum(dim=1).clamp(min=1)
            yield record_of(bench, method, explained, site, "divergence", divergence(answer, masked))
            yield record_of(bench, method, explained, site, "agreement", agreement(answer, masked).float())
            yield record_of(bench, method, explained, site, "kept", kept)
