"""Training objective of `SurrogateMask`: match the model's predictions for masked copies of texts, at every site."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.distributions import Distribution

from diffmask.core.batch import Batch
from diffmask.core.explainer import ForwardTrace
from diffmask.methods.amortised.network import CachedStates, cache_states
from diffmask.methods.amortised.network_training import Objective
from diffmask.methods.amortised.objectives import masked_logits, sample_mask_pairs
from diffmask.methods.diffmask.base import draw_sites
from diffmask.methods.diffmask.surrogate_target import SurrogateTarget, surrogate_target

if TYPE_CHECKING:
    from diffmask.methods.diffmask.surrogate import LayerwiseAttributor, SurrogateMaskExplainer


@dataclass(frozen=True)
class MaskedCopiesBatch:
    """Texts of similar length, with the model's logits for copies of them that are masked at one site or more."""

    cached: CachedStates
    answer: Distribution
    """Prediction for the unmasked texts, over few classes."""
    target: SurrogateTarget
    """Meaning of the networks' outputs for predictions of this kind."""
    guide: Float[Tensor, "row token"] | None
    """First estimate of the log cost of each token, from gradients; None for targets without one."""
    maskable: Bool[Tensor, "row token"]
    kept: Mapping[str, Bool[Tensor, "row copy token"]]
    """Tokens kept in each copy, by the masked site."""
    masked_logits: Mapping[str, Float[Tensor, "row copy feature"]]
    """Logits of the model for each copy, by the masked site."""


@dataclass(frozen=True)
class MaskedCopies(Objective["LayerwiseAttributor", MaskedCopiesBatch]):
    """Additive surrogate f(kept) = f(all) - sum of the erased tokens' contributions, one prediction per site.

    For an answer whose outcomes are positions f is the divergence, and f(all) = 0.

    The sum starts from the whole text, as masks do. Started from the empty text it would be least exact where most
    tokens are kept.
    """

    explainer: "SurrogateMaskExplainer"
    mask_pairs: int
    """Random masks per text, each with its complement."""
    on_policy_masks: int
    """Masks per text that erase the tokens which the surrogate predicts to be least necessary.

    The surrogate underestimates the effect of the masks it would choose itself, so they are part of the training."""
    sites_per_batch: int
    """Sites whose states are masked in turn; inputs are masked once for all sites."""
    source: torch.Generator

    @torch.no_grad()
    def query_model(self, batch: Batch) -> MaskedCopiesBatch:
        """Run one forward pass without masks, and one over all copies per masked site."""
        trace = ForwardTrace.of(self.explainer.task, batch)
        kept, logits = {}, {}
        for site in draw_sites(self.explainer, self.sites_per_batch, self.source):
            masked = self.explainer.masked_site(site)
            on_policy = [self._on_policy(trace, site)] if self.on_policy_masks else []
            kept[masked] = torch.cat(
                [sample_mask_pairs(batch.maskable, self.mask_pairs, self.source), *on_policy], dim=1
            )
            baseline = self.explainer.baseline(site)
            logits[masked] = masked_logits(self.explainer.task, trace, masked, baseline, kept[masked])
        target = surrogate_target(trace.answer)
        guide = target.token_guide(self.explainer.task, trace)
        states = self.explainer.distances.states(trace)
        cached = cache_states(states, self.explainer.attributor.sites_read, batch.present)
        return MaskedCopiesBatch(cached, trace.coarse_answer, target, guide, batch.maskable, kept, logits)

    def loss(self, network: "LayerwiseAttributor", batch: MaskedCopiesBatch) -> Float[Tensor, "row copy"]:
        """Return the error of the sum of a site's contributions for each masked copy, for all sites."""
        states, present = batch.cached.restore()
        sites = tuple(site for site in self.explainer.sites if self.explainer.masked_site(site) in batch.masked_logits)
        losses = []
        for site, contributions in zip(sites, network(states, present, sites), strict=True):
            masked = self.explainer.masked_site(site)
            erased = batch.maskable[:, None] & ~batch.kept[masked]
            loss = batch.target.loss(batch.answer, batch.masked_logits[masked], contributions, erased)
            if batch.guide is not None:
                loss = loss + batch.target.guide_loss(contributions, batch.guide, batch.maskable)[:, None]
            losses.append(loss)
        return torch.cat(losses, dim=1)

    def _on_policy(self, trace: ForwardTrace, site: str) -> Bool[Tensor, "row copy token"]:
        """Draw masks by the costs of the masked site; for inputs by those of any site, half of the time the last."""
        sites = self.explainer.sites
        if self.explainer.mask == "inputs":
            index = int(torch.randint(2 * len(sites), (), generator=self.source))
            site = sites[min(index, len(sites) - 1)]
        costs = self.explainer.elimination_cost(trace, site)
        return draw_on_policy_masks(costs, trace.rows.maskable, self.on_policy_masks, self.source)


def draw_on_policy_masks(
    costs: Float[Tensor, "row token"], maskable: Bool[Tensor, "row token"], copies: int, source: torch.Generator
) -> Bool[Tensor, "row copy token"]:
    """Draw masks that erase the tokens of lowest cost, any share of a row, in the order of cost * e^(N(0, 1) / 3).

    The shares of a row's copies are stratified.
    """
    rows, tokens = maskable.shape
    noise = torch.randn(rows, copies, tokens, generator=source).to(costs)
    order = (costs[:, None] * (noise / 3).exp()).masked_fill(~maskable[:, None], torch.inf).argsort(dim=2)
    share = (torch.arange(copies) + torch.rand(rows, copies, generator=source)) / copies
    erased = (share.to(costs) * maskable.sum(dim=1, keepdim=True)).round()
    return maskable[:, None] & (order.argsort(dim=2) >= erased[..., None])
