"""The explainer that DiffMask learns: a probe for every site, a baseline for every place that is masked."""

from typing import Literal, cast

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor, nn
from torch.distributions import Distribution

from diffmask.batch import Attribution, Batch
from diffmask.explainer import Explainer
from diffmask.gates import HardConcrete
from diffmask.hooks import Edit
from diffmask.probe import Probe
from diffmask.task import Task

States = dict[str, Float[Tensor, "row token width"]]


class MaskExplainer(Explainer):
    """What the probes say of one clean pass is the explanation: P(z > 0) of every token, seen from every site."""

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
        super().__init__(task)
        self.mask = mask
        self.sites = tuple(probes)
        self.reads_first = reads_first
        self.temperature = temperature
        self.probes = nn.ModuleList(probes.values())
        self.baselines = nn.ParameterList(baselines.values())

    def votes(self, states: States, site: str) -> HardConcrete:
        """What this site's probe says of every token."""
        state = states[site]
        seen = torch.cat([states[self.task.sites[0]], state], dim=-1) if self.reads_first else state
        return HardConcrete(self.probe(site)(seen), self.temperature)

    def probe(self, site: str) -> Probe:
        """The network that votes at a site."""
        return cast(Probe, self.probes[self.sites.index(site)])

    def voters(self, site: str) -> tuple[str, ...]:
        """The sites whose votes are multiplied for the mask seen from `site`."""
        return (site,) if self.mask == "states" else self.sites[: self.sites.index(site) + 1]

    def gates(self, states: States, site: str, *, own: bool = False) -> HardConcrete:
        """The gates of the mask seen from `site`: open with the product of the votes' probabilities.

        De Cao et al. draw every vote and multiply the draws. One draw from the product keeps P(z > 0) as it is, has
        less noise, and passes its gradient to every vote: a product of draws passes none where two votes are shut.
        With `own`, only the vote of `site` itself gets a gradient.
        """
        *below, last = (self.votes(states, voter) for voter in self.voters(site))
        if not below:
            return last
        inherited = sum((vote.log_open() for vote in below[1:]), below[0].log_open())
        return HardConcrete.opening((inherited.detach() if own else inherited) + last.log_open(), self.temperature)

    def log_open(self, states: States, site: str) -> Float[Tensor, "row token"]:
        """log P(token kept), seen from `site`."""
        return self.gates(states, site).log_open()

    def hard(self, states: States, site: str) -> Float[Tensor, "row token"]:
        """The mask a reader is told: 1 where a token is more likely kept than not."""
        return (self.log_open(states, site).exp() > 0.5).to(states[site].dtype)

    def place(self, site: str) -> str:
        """Where the mask seen from `site` is applied."""
        return site if self.mask == "states" else self.task.sites[0]

    def baseline(self, site: str) -> Float[Tensor, " width"]:
        """What the mask seen from `site` puts in place of an erased state."""
        return self.baselines[self.sites.index(site) if self.mask == "states" else 0]

    def edits(
        self,
        site: str,
        gate: Float[Tensor, "row token"],
        maskable: Bool[Tensor, "row token"],
        baseline: Float[Tensor, " width"] | None = None,
    ) -> dict[str, Edit]:
        """h <- z h + (1 - z) b at the maskable tokens, where the mask seen from `site` applies."""
        kept = torch.where(maskable, gate, 1.0)[..., None]
        filler = self.baseline(site) if baseline is None else baseline
        return {self.place(site): lambda state: kept * state + (1 - kept) * filler}

    def outcome(self, batch: Batch) -> Shaped[Tensor, "row *event"]:
        """A mask keeps the whole answer, whatever it is: no pass is spent on asking for it."""
        return batch.target

    @torch.no_grad()
    def explain(self, batch: Batch, target: Shaped[Tensor, "row *event"]) -> Attribution:
        """A token's score is its mean over the sites: for how long it is needed."""
        return self.answer(batch)[1]

    @torch.no_grad()
    def answer(self, batch: Batch) -> tuple[Distribution, Attribution]:
        """One pass serves both."""
        answer, states = self.task.trace(batch)
        votes = torch.stack([self.votes(states, site).log_open() for site in self.sites], dim=1)
        by_layer = (votes.cumsum(dim=1) if self.mask == "inputs" else votes).exp()
        return answer, Attribution(by_layer.mean(dim=1), by_layer, self.sites)

    @torch.no_grad()
    def masked(self, batch: Batch, kept: Bool[Tensor, "row token"], layer: str | None) -> Distribution:
        """The answer under a mask seen from `layer`, with this explainer's own baseline where it masks."""
        site = self.sites[-1] if layer is None else layer
        return self.task.predict(batch, self.edits(site, kept.to(self.baseline(site).dtype), batch.maskable))
