"""NestedDiffMask: one mask per margin, nested, and therefore a ranking of the tokens.

The gate of a token at margin j has logit gain * (s_t - tau_j). s_t is the token's contribution to the log-odds of the
predicted class, from an amortised attribution network. tau_j is predicted from the text and grows with the margin, so
that tokens kept at a loose margin are also kept at a tight one.
"""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn.functional import gelu, softplus

from diffmask.core.baseline_states import SiteStatistics, site_statistics
from diffmask.core.batch import Attribution, Batch
from diffmask.core.coarse_answers import coarse_outcome
from diffmask.core.distributions import divergence, flat_logits, log_odds_gradient, predicted_outcome
from diffmask.core.explainer import ForwardTrace, iter_traces, pool_states
from diffmask.core.progress import progress_bar, stop_at_interrupt
from diffmask.core.task import Task
from diffmask.core.training import cosine_decay, generator, infinite_minibatches, seeded
from diffmask.errors import ConfigError
from diffmask.methods.amortised.amortised import Amortised
from diffmask.methods.amortised.network import AttributionNetwork
from diffmask.methods.diffmask.base import LENGTH_POOL, MAX_SHIFT, STATISTICS_ROWS, MaskExplainer, MaskMethod
from diffmask.methods.diffmask.calibration import ThresholdSearch, calibration_split
from diffmask.methods.diffmask.diagnostics import diagnose, report
from diffmask.methods.diffmask.hard_concrete import HardConcrete
from diffmask.methods.diffmask.lagrangian import Multiplier, PIController, critical_multiplier


@dataclass(frozen=True, kw_only=True)
class NestedDiffMask(MaskMethod):
    """Fewest tokens kept subject to KL(original || masked) <= margin, for several margins at once."""

    name: ClassVar[str] = "nested-diffmask"

    margins: tuple[float, ...] = (0.02, 0.1, 0.6)
    """Largest allowed KL(original || masked) of each mask, in nats, in any order."""
    baseline: Literal["auto", "mean", "mask", "zero"] = "auto"
    """State that replaces an erased embedding. Auto: the mask token if there is one, else the mean."""
    comprehensiveness_weight: float = 0.0
    """Weight of a second term: the prediction must change when the kept tokens are erased (AML, 2024)."""
    temperature: float = 0.5
    """Temperature of the gates."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require_margins(*self.margins)
        self._require_counts(calibration_rows=self.calibration_rows)
        if not self.margins or len(set(self.margins)) < len(self.margins):
            raise ConfigError(f"{self.name}: margins must be one or more different numbers, found {self.margins}")
        if not self.comprehensiveness_weight >= 0 or not self.temperature > 0:
            raise ConfigError(
                f"{self.name}: comprehensiveness_weight must be at least 0 and temperature above 0; "
                f"found {self.comprehensiveness_weight} and {self.temperature}"
            )

    def build(self, task: Task, seed: int) -> "NestedMaskExplainer":
        """Allocate a network that scores every token 0, and thresholds that are the same for every text."""
        self.sites_of(task)
        start = self._amortised().build_tokens(task, seed)
        last = site_statistics(task, start.network.sites[-1:], STATISTICS_ROWS)[start.network.sites[-1]]
        with seeded(seed, "margins"):
            thresholds = TextThresholds(last, len(self.margins))
        margins, baseline = tuple(sorted(self.margins)), start.baseline.detach()
        return NestedMaskExplainer(task, start.network, thresholds, margins, baseline, self.temperature)

    def train(self, explainer: "NestedMaskExplainer", task: Task, seed: int) -> None:
        """Train the ranking, then gates for every margin; calibrate on held-out rows and diagnose on others."""
        amortised = self._amortised()
        start = amortised.build_tokens(task, seed)
        amortised.train(start, task, seed)
        explainer.network.load_state_dict(start.network.state_dict())
        trainer = MarginTrainer(self, explainer, task, generator(seed, "margins"))
        progress = progress_bar(range(self.steps), f"fit {self.label}")
        with stop_at_interrupt(progress.label, progress.status):
            for step in progress:
                trainer.step(step / self.steps)
        calibration, diagnosis = calibration_split(task)
        calibrate_margins(explainer, calibration.spread(self.calibration_rows))
        margins = dict(zip(explainer.sites, explainer.margins, strict=True))
        multipliers = dict(zip(explainer.sites, trainer.multipliers, strict=True))
        explainer.diagnostics = diagnose(explainer, diagnosis.spread(self.calibration_rows), margins, multipliers)
        report(explainer.diagnostics, self.label)

    def _amortised(self) -> Amortised:
        """Return the config of the ranking, which learns from as many texts as the fit that follows."""
        return Amortised(
            budget=f"{self.steps * self.batch_size} texts",
            sites=self.sites,
            baseline=self.baseline,
            held_out=64,
            statistics_rows=STATISTICS_ROWS,
        )


class TextThresholds(nn.Module):
    """tau_j = a + sum_{1<i<=j} softplus(b_i) + shift_j, a and b predicted from the text's last states."""

    shift: Tensor
    mean: Tensor
    deviation: Tensor

    def __init__(self, last: SiteStatistics, margins: int, width: int = 64) -> None:
        super().__init__()
        dtype = last.mean.dtype
        self.register_buffer("mean", last.mean.repeat(3))
        self.register_buffer("deviation", last.deviation.repeat(3))
        self.register_buffer("shift", torch.zeros(margins, dtype=dtype))
        self.hidden = nn.Linear(3 * len(last.mean), width, dtype=dtype)
        self.output = nn.Linear(width, margins, dtype=dtype)
        nn.init.zeros_(self.output.weight)
        nn.init.constant_(self.output.bias, -1.0)

    def forward(
        self, state: Float[Tensor, "row token width"], present: Bool[Tensor, "row token"]
    ) -> Float[Tensor, "row margin"]:
        """Return thresholds that ascend along the margins."""
        inputs = (torch.cat(pool_states(state, present), dim=-1) - self.mean) / self.deviation
        outputs = self.output(gelu(self.hidden(inputs)))
        increments = torch.cat([outputs[:, :1], softplus(outputs[:, 1:])], dim=1)
        return increments.cumsum(dim=1) + self.shift


class NestedMaskExplainer(MaskExplainer):
    """Explainer with one input mask per margin; a token's score is its mean keep probability over the margins."""

    def __init__(
        self,
        task: Task,
        network: AttributionNetwork,
        thresholds: TextThresholds,
        margins: tuple[float, ...],
        baseline: Float[Tensor, " width"],
        temperature: float,
    ) -> None:
        sites = tuple(f"margin {margin:g}" for margin in margins)
        super().__init__(task, "inputs", sites, {task.sites[0]: nn.Parameter(baseline, requires_grad=False)})
        self.network, self.thresholds = network, thresholds
        self.margins = margins
        self.temperature = temperature
        self.gain = nn.Parameter(torch.tensor(2.0, dtype=baseline.dtype))

    def scores_above_thresholds(self, trace: ForwardTrace) -> Float[Tensor, "row margin token"]:
        """Return s_t - tau_j for every token and margin."""
        answer, present = trace.coarse_answer, trace.rows.present
        outcome = coarse_outcome(predicted_outcome(trace.answer), trace.answer)
        towards = log_odds_gradient(answer, torch.zeros_like(flat_logits(answer)), outcome)
        scores = (self.network(trace.states, present) * towards[:, None]).sum(dim=-1)
        return scores[:, None] - self.thresholds(trace.states[self.network.sites[-1]], present)[..., None]

    def gates(self, trace: ForwardTrace) -> HardConcrete:
        """Return gates [row, margin, token] with P(z > 0) = 1/2 at the threshold."""
        logit = softplus(self.gain) * self.scores_above_thresholds(trace)
        # Bounded, so that the probabilities of two tokens do not both round to 0 or 1.
        return HardConcrete(12 * torch.tanh(logit / 12) - self.temperature * math.log(5), self.temperature)

    def keep_probability(self, trace: ForwardTrace, sites: tuple[str, ...]) -> Float[Tensor, "row site token"]:
        """Return P(token kept) at these margins."""
        return self.gates(trace).open_probability()[:, [self.sites.index(site) for site in sites]]

    def expected_mask(self, trace: ForwardTrace, site: str) -> Float[Tensor, "row token"]:
        """Return the mean of each gate."""
        return self.gates(trace).mean()[:, self.sites.index(site)]

    def margin_at(self, layer: str | None) -> float:
        """Return the margin that a mask is named after; the loosest one without a name."""
        return self.margins[-1 if layer is None else self.sites.index(layer)]

    def attribution(self, trace: ForwardTrace) -> Attribution:
        """Return keep probabilities per margin, and their mean as scores."""
        keep = self.keep_probability(trace, self.sites)
        return Attribution(keep.mean(dim=1), keep, self.sites)

    def threshold_scores(self, trace: ForwardTrace, site: str) -> Float[Tensor, "row token"]:
        """Return s_t - tau_j at one margin."""
        return self.scores_above_thresholds(trace)[:, self.sites.index(site)]

    def set_threshold(self, site: str, threshold: float) -> None:
        """Raise the threshold of one margin for all texts."""
        self.thresholds.shift[self.sites.index(site)] += max(threshold, -MAX_SHIFT)


@torch.no_grad()
def calibrate_margins(explainer: NestedMaskExplainer, rows: Batch) -> None:
    """Raise the threshold of each margin as far as hard masks satisfy it, and no further than that of a looser one.

    A margin is satisfied if the mean divergence is below it by two standard errors: a few texts make up most of a small
    mean.
    """
    traces = list(iter_traces(explainer.task, rows))
    maskable = [trace.rows.maskable for trace in traces]
    highest = torch.inf
    for margin, site in reversed(list(zip(explainer.margins, explainer.sites, strict=True))):
        search = ThresholdSearch.at(explainer, site, traces, maskable)
        highest = min(highest, search.highest(margin, halvings=5, standard_errors=2.0))
        explainer.set_threshold(site, highest)


class MarginTrainer:
    """Training loop: one margin, drawn at random, per step."""

    def __init__(
        self, method: NestedDiffMask, explainer: NestedMaskExplainer, task: Task, source: torch.Generator
    ) -> None:
        self.method, self.explainer, self.task, self.source = method, explainer, task, source
        groups = [
            {"params": [*explainer.thresholds.parameters(), explainer.gain], "lr": method.learning_rate},
            {"params": list(explainer.network.parameters()), "lr": 0.03 * method.learning_rate},
        ]
        self.optimizer = torch.optim.Adam(groups, betas=(0.9, 0.99))
        self.learning_rates = [group["lr"] for group in self.optimizer.param_groups]
        self.batches = infinite_minibatches(task.data["train"], method.batch_size, source, LENGTH_POOL)
        first = task.data["train"][: method.batch_size].trim()
        critical = critical_multiplier(explainer.full_mask_divergence(first, explainer.sites[0]))
        self.multipliers = [Multiplier(PIController(margin), critical) for margin in explainer.margins]

    def step(self, progress: float) -> None:
        """Run one forward pass, one masked pass, and one update of all parameters."""
        for group, rate in zip(self.optimizer.param_groups, self.learning_rates, strict=True):
            group["lr"] = rate * cosine_decay(progress)
        index = int(torch.randint(len(self.multipliers), (1,), generator=self.source))
        site, multiplier = self.explainer.sites[index], self.multipliers[index]
        trace = ForwardTrace.of(self.task, next(self.batches))
        maskable = trace.rows.maskable
        gates = self.explainer.gates(trace)
        gate = gates.sample(self.source)[:, index]
        caused = divergence(trace.answer, self.explainer.predict_masked(trace, site, gate)).mean()
        keep = gates.open_probability()[:, index] * maskable
        kept = (keep.sum(dim=1) / maskable.sum(dim=1).clamp(min=1)).mean()
        loss = (kept + multiplier.value * caused) / (1 + multiplier.value)
        if self.method.comprehensiveness_weight:
            complement = self.explainer.predict_masked(trace, site, 1 - gate)
            # Clamped at one nat: a larger change would only reward unlikely predictions.
            change = divergence(trace.answer, complement).clamp(max=1.0).mean()
            loss = loss - self.method.comprehensiveness_weight * change
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        multiplier.update(caused.item(), progress)
