"""Attributive Masking Learning: a network learns masks that keep the prediction and whose complements change it.

Barkan et al. 2024 (Findings of EMNLP). The architecture of the network and the schedule are those of `Amortised`, so
that the two methods differ only in what they learn.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn
from torch.distributions import Distribution

from diffmask.core.baseline_states import Baseline, baseline_state, site_statistics
from diffmask.core.batch import Attribution, Batch, iter_by_length
from diffmask.core.capabilities import prepare_resume
from diffmask.core.config import require_between
from diffmask.core.distributions import divergence
from diffmask.core.explainer import Explainer, ForwardTrace, Method
from diffmask.core.hooks import interpolate
from diffmask.core.progress import progress_bar, stop_at_interrupt
from diffmask.core.task import Task
from diffmask.core.training import cosine_decay, generator, infinite_minibatches, seeded, split_held_out
from diffmask.methods.amortised.amortised import spread_sites
from diffmask.methods.amortised.network import AttributionNetwork

MAX_CHANGE = 3.0
"""Nats after which a larger change under the complement is not rewarded: it only makes the prediction less likely."""


@dataclass(frozen=True, kw_only=True)
class AttributiveMasking(Method):
    """min E[keep_weight KL(f || f_m) - complement_weight min(KL(f || f_1-m), 3) + size_weight mean(m)], m in (0, 1).

    f_m is the prediction for the embeddings m h + (1 - m) b, f_1-m that for the complement of the mask.
    """

    name: ClassVar[str] = "attributive-masking"

    steps: int = 250
    """Minibatches of the fit."""
    batch_size: int = 16
    """Texts per minibatch."""
    keep_weight: float = 1.0
    """Weight of the divergence under the mask."""
    complement_weight: float = 0.5
    """Weight of the change under the complement; 0 learns masks without the second term."""
    size_weight: float = 0.5
    """Weight of the mean of the mask."""
    sites: tuple[str, ...] = ()
    """Sites whose states the network reads. Default: the first, two in between and the last."""
    width: int = 256
    """Units of the network's hidden layers."""
    baseline: Baseline = "auto"
    """Embedding that replaces an erased token."""
    learning_rate: float = 1e-3
    """Highest learning rate of AdamW."""
    statistics_rows: int = 512
    """Training rows from which the mean and deviation of each site are estimated."""

    def __post_init__(self) -> None:
        for name in ("steps", "batch_size", "width", "statistics_rows"):
            require_between(self, name, 1, 10**9)
        for name in ("keep_weight", "complement_weight", "size_weight", "learning_rate"):
            require_between(self, name, 0, 1e6)

    def build(self, task: Task, seed: int) -> "AttributiveMaskExplainer":
        """Build a network whose masks are 1/2 for every token."""
        sites = self.sites or spread_sites(task.sites)
        for site in sites:
            task.site(site)
        statistics = site_statistics(task, sites, self.statistics_rows)
        with seeded(seed, self.name):
            network = AttributionNetwork({site: statistics[site] for site in sites}, 1, self.width)
        return AttributiveMaskExplainer(task, network, baseline_state(task, task.sites[0], self.baseline))

    def train(self, explainer: "AttributiveMaskExplainer", task: Task, seed: int) -> None:
        """Take one step of AdamW per minibatch, then measure the masks on held-out rows."""
        rows, held_out = split_held_out(task, 128)
        batches = infinite_minibatches(rows, self.batch_size, generator(seed, self.name), pool=16)
        optimizer = torch.optim.AdamW(explainer.network.parameters(), lr=self.learning_rate, weight_decay=0.01)
        progress = progress_bar(range(self.steps), f"fit {self.label}")
        with stop_at_interrupt(progress.label, progress.status):
            for step in progress:
                warmup = min(1.0, (step + 1) / max(1, self.steps // 10))
                optimizer.param_groups[0]["lr"] = self.learning_rate * warmup * cosine_decay(step / self.steps)
                effect = explainer.mask_effect(ForwardTrace.of(task, next(batches)))
                optimizer.zero_grad()
                self.loss(effect).mean().backward()
                nn.utils.clip_grad_norm_(explainer.network.parameters(), 1.0)
                optimizer.step()
        explainer.diagnostics = {"network": explainer.mean_effect(held_out, self.batch_size)}

    def loss(self, effect: "MaskEffect") -> Float[Tensor, " row"]:
        """Return the objective per row."""
        change = effect.complement_divergence.clamp(max=MAX_CHANGE)
        kept = self.keep_weight * effect.divergence + self.size_weight * effect.size
        return kept - self.complement_weight * change


@dataclass(frozen=True)
class MaskEffect:
    """What masks and their complements do to the predictions of some rows."""

    divergence: Float[Tensor, " row"]
    """KL(original || masked), in nats."""
    complement_divergence: Float[Tensor, " row"]
    """KL(original || masked by the complement), in nats."""
    size: Float[Tensor, " row"]
    """Mean of the mask over maskable tokens."""


class AttributiveMaskExplainer(Explainer):
    """Explainer whose scores are the mask of the predicted class, from one forward pass."""

    explains_target: ClassVar[bool] = False

    def __init__(self, task: Task, network: AttributionNetwork, baseline: Float[Tensor, " width"]) -> None:
        super().__init__(task)
        prepare_resume(task)
        self.network = network
        self.baseline = nn.Parameter(baseline, requires_grad=False)

    def forward(self, batch: Batch, target: Any = None, *, rows_at_once: int = 256) -> Attribution:
        """Explain a batch; without a target, one forward pass gives both the prediction and its explanation."""
        if target is None:
            return self.explain_with_answer(batch, rows_at_once=rows_at_once)[1]
        return super().forward(batch, target, rows_at_once=rows_at_once)

    @torch.no_grad()
    def explain(self, batch: Batch, target: Shaped[Tensor, "row *event"]) -> Attribution:
        """Return the mask of each row."""
        return self.answer(batch)[1]

    @torch.no_grad()
    def answer(self, batch: Batch) -> tuple[Distribution, Attribution]:
        """Return the prediction and its mask, from one forward pass."""
        trace = ForwardTrace.of(self.task, batch)
        return trace.answer, Attribution(self.mask(trace))

    def mask(self, trace: ForwardTrace) -> Float[Tensor, "row token"]:
        """Return the share of each token's embedding that is kept."""
        return torch.sigmoid(self.network(trace.states, trace.rows.present).squeeze(-1))

    def mask_effect(self, trace: ForwardTrace) -> MaskEffect:
        """Run the model on the masked texts and on their complements, with gradients for the network."""
        mask, maskable = self.mask(trace), trace.rows.maskable
        size = (mask * maskable).sum(dim=1) / maskable.sum(dim=1).clamp(min=1)
        return MaskEffect(self._divergence(trace, mask), self._divergence(trace, 1 - mask), size)

    def _divergence(self, trace: ForwardTrace, mask: Float[Tensor, "row token"]) -> Float[Tensor, " row"]:
        site = self.task.sites[0]
        edit = interpolate(mask, self.baseline, trace.rows.maskable)
        return divergence(trace.answer, self.task.resume(trace.rows, {site: trace.states[site]}, {site: edit}))

    @torch.no_grad()
    def mean_effect(self, rows: Batch, batch_size: int) -> dict[str, float]:
        """Return the mean effect of the masks on rows."""
        effects = [self.mask_effect(ForwardTrace.of(self.task, texts)) for _, texts in iter_by_length(rows, batch_size)]
        return {
            name: torch.cat([getattr(effect, name) for effect in effects]).mean().item()
            for name in ("divergence", "complement_divergence", "size")
        }
