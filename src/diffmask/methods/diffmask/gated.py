"""Masks from votes: a probe for every site says whether a token's gate opens. De Cao et al. 2020."""

from typing import Literal, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from diffmask.core.explainer import ForwardTrace
from diffmask.core.task import Task
from diffmask.methods.diffmask.base import MaskExplainer
from diffmask.methods.diffmask.hard_concrete import HardConcrete
from diffmask.methods.diffmask.probe import Probe


class GatedMaskExplainer(MaskExplainer):
    """A token is kept with the product of the probabilities that its sites' probes vote for."""

    def __init__(
        self,
        task: Task,
        mask: Literal["inputs", "states"],
        probes: dict[str, Probe],
        baselines: dict[str, nn.Parameter],
        *,
        reads_first: bool,
        temperature: float,
    ) -> None:
        super().__init__(task, mask, tuple(probes), baselines)
        self.reads_first = reads_first
        self.temperature = temperature
        self.probes = nn.ModuleList(probes.values())

    def probe(self, site: str) -> Probe:
        """The network that votes at a site."""
        return cast(Probe, self.probes[self.sites.index(site)])

    def voters(self, site: str) -> tuple[str, ...]:
        """The sites that have a say in the mask seen from `site`: what was erased as an input stays erased."""
        return (site,) if self.mask == "states" else self.sites[: self.sites.index(site) + 1]

    def votes(self, clean: ForwardTrace, site: str) -> HardConcrete:
        """What this site's probe says of every token."""
        state = clean.states[site]
        seen = torch.cat([clean.states[self.task.sites[0]], state], dim=-1) if self.reads_first else state
        return HardConcrete(self.probe(site)(seen), self.temperature)

    def gates(self, clean: ForwardTrace, site: str, *, own: bool = False) -> HardConcrete:
        """The gates of the mask seen from `site`: open with the product of the votes' probabilities.

        De Cao et al. draw every vote and multiply the draws. One draw from the product keeps P(z > 0) as it is, has
        less noise, and passes its gradient to every vote: a product of draws passes none where two votes are shut.
        With `own`, only the vote of `site` itself gets a gradient.
        """
        *below, last = (self.votes(clean, voter) for voter in self.voters(site))
        if not below:
            return last
        inherited = sum((vote.log_open() for vote in below[1:]), below[0].log_open())
        return HardConcrete.opening((inherited.detach() if own else inherited) + last.log_open(), self.temperature)

    def expected(self, clean: ForwardTrace, site: str) -> Float[Tensor, "row token"]:
        """The mean of each gate, which is not P(z > 0): an open gate may be half open."""
        return self.gates(clean, site).mean()

    def opened(self, clean: ForwardTrace, sites: tuple[str, ...]) -> Float[Tensor, "row site token"]:
        """The product of the votes, each of which is asked for once."""
        asked = [voter for voter in self.sites if any(voter in self.voters(site) for site in sites)]
        votes = {voter: self.votes(clean, voter).log_open() for voter in asked}
        logs = [sum(votes[voter] for voter in self.voters(site)) for site in sites]
        return torch.stack([cast(Tensor, log) for log in logs], dim=1).exp()
