"""SurrogateMask: masks from an additive surrogate of the model, greedy elimination and calibrated thresholds.

For every site a small network predicts how the logits change when each token is erased. It is trained on the model's
predictions for masked copies of texts, as in FastSHAP (Jethani et al. 2022). A linear probe predicts the model's
prediction from the states of the site. Greedy backward elimination turns both into the KL at which each token would be
erased: "dreadful" is needed for a negative prediction and can be erased for a positive one. No gradient passes through
gates or through the model.
"""

import math
import time
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from diffmask.core.baseline_states import trace_statistics
from diffmask.core.batch import Attribution
from diffmask.core.distributions import FlatLogits, flat_logits, probabilities_to_logits
from diffmask.core.explainer import ForwardTrace, States, iter_traces
from diffmask.core.task import Task
from diffmask.core.training import generator, infinite_minibatches, seeded, split_held_out
from diffmask.core.verification.conformal import choose_masks, predicted_risk
from diffmask.errors import ConfigError
from diffmask.methods.amortised.amortised import query_by_length
from diffmask.methods.amortised.network import AttributionNetwork, project_all
from diffmask.methods.amortised.network_training import AmortisedTraining, Budget, TrainingSchedule, parse_budget
from diffmask.methods.diffmask.answer_distance import AnswerDistances, fit_answer_distances, with_distances
from diffmask.methods.diffmask.base import (
    LENGTH_POOL,
    MaskExplainer,
    MaskKind,
    SiteMaskMethod,
    statistics_rows,
)
from diffmask.methods.diffmask.baseline import initial_baselines, learn_baselines
from diffmask.methods.diffmask.calibration import calibrate, calibration_split
from diffmask.methods.diffmask.coverage import FACTORS, FEATURES, ScaledMasks, calibrate_coverage
from diffmask.methods.diffmask.diagnostics import diagnose, report
from diffmask.methods.diffmask.linear_probe import LinearProbe, fit_linear_probes
from diffmask.methods.diffmask.surrogate_target import surrogate_target
from diffmask.methods.diffmask.surrogate_training import MaskedCopies

KEEP_ALL = -1.0
"""Threshold of a site that may erase nothing: no elimination cost is below 0."""
SCORING_SITES = 3
"""The last third of the sites scores inputs: the mean of several predictions has a smaller error than one."""
WEIGHT_DECAY = 0.3
"""Weight decay of the surrogate. With less it overfits its training texts."""
TRAINING_SHARE = 0.65
"""Share of a time budget that is training; the rest is for calibration and diagnostics."""
MIN_CHECK_ROWS, ROWS_PER_SECOND = 32, 1
"""Rows of calibration and of diagnostics under a time budget: at least 32, and one per second of the budget."""
HELD_OUT_TEXTS = 64
"""Held-out texts on which the training error is monitored."""


@dataclass(frozen=True, kw_only=True)
class SurrogateMask(SiteMaskMethod):
    """Fewest tokens kept subject to KL(original || masked) <= margin, by an additive surrogate and elimination.

    Compared with the gates of `DiffMask`, masks on transformers are smaller, satisfy the margin better and take less
    time to learn.
    """

    name: ClassVar[str] = "surrogate-mask"
    revision: ClassVar[int] = 2

    probe_inputs: Literal["auto", "state", "both", "all"] = "auto"
    """States that a site's network reads.

    State: its own. Both: the embedding, the site before and its own. All: also the last two sites. Auto: both for
    inputs, as a site should use only its own information, and all for states."""
    probe_width: int = 64
    """Hidden units of a site's network."""
    learning_rate: float = 3e-3
    """Learning rate of AdamW."""
    mask_pairs: int = 1
    """Random masks per text, each with its complement. More texts help more than more masks per text."""
    on_policy_masks: int = 2
    """Masks per text that erase the tokens which the surrogate, so far, predicts to be least necessary."""
    steps_per_batch: int = 4
    """Optimiser steps per minibatch of texts."""
    coverage: float | None = 0.95
    """Share of unseen texts whose masks hold the margin and the prediction; None: the margin bounds the mean KL."""
    budget: str | None = None
    """Limit of the whole fit in place of `steps`, such as '1min'; about two thirds of it are training."""
    replay_tokens: int = 60_000
    """Tokens whose states are stored, in half precision, to be trained on again; the oldest are dropped first."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require_counts(
            probe_width=self.probe_width,
            mask_pairs=self.mask_pairs,
            steps_per_batch=self.steps_per_batch,
            replay_tokens=self.replay_tokens,
            calibration_rows=self.calibration_rows,
        )
        if self.budget is not None:
            parse_budget(self.budget)
        if self.on_policy_masks < 0:
            raise ConfigError(f"{self.name}: on_policy_masks must not be negative, found {self.on_policy_masks}")
        if self.coverage is not None and not 0 < self.coverage < 1:
            raise ConfigError(f"{self.name}: coverage must be between 0 and 1, or null; found {self.coverage}")

    def sites_read_at(self, sites: tuple[str, ...], site: str) -> tuple[str, ...]:
        """Return those of a task's sites that the network of one site reads.

        >>> SurrogateMask().sites_read_at(("embedding", "1", "2", "3", "4"), "2")
        ('embedding', '1', '2')
        >>> SurrogateMask(mask="states").sites_read_at(("embedding", "1", "2", "3", "4"), "1")
        ('embedding', '1', '3', '4')
        """
        inputs = self.probe_inputs
        if inputs == "auto":
            inputs = "both" if self.mask == "inputs" else "all"
        index = sites.index(site)
        # A model's last states may hold little information on their tokens, so the site before is read as well.
        before = () if inputs == "state" else (sites[0], sites[max(index - 1, 0)])
        after = sites[-2:] if inputs == "all" else ()
        return tuple(dict.fromkeys((*before, site, *after)))

    def build(self, task: Task, seed: int) -> "SurrogateMaskExplainer":
        """Allocate networks that score every token 0, with thresholds that keep all tokens."""
        sites = self.sites_of(task)
        traces = list(iter_traces(task, statistics_rows(task)))
        inputs = {site: self.sites_read_at(task.sites, site) for site in sites}
        # A site whose network reads the last states may know the answer, which is computed from them.
        informed = [site for site in sites if task.sites[-1] in inputs[site]]
        distances = fit_answer_distances(task, traces, sites, informed)
        traces = [with_distances(trace, distances) for trace in traces]
        inputs = {site: (*distances.names(site), *read) for site, read in inputs.items()}
        statistics = trace_statistics(traces, {task.sites[0], *sites}.union(*inputs.values()))
        features = surrogate_target(traces[0].answer).outputs(traces[0].coarse_answer)
        with seeded(seed, "diffmask"):
            networks = {
                site: AttributionNetwork({name: statistics[name] for name in inputs[site]}, features, self.probe_width)
                for site in sites
            }
            baselines = initial_baselines(self, task, sites, statistics)
        probes = fit_linear_probes(traces, sites)
        return SurrogateMaskExplainer(task, self.mask, LayerwiseAttributor(networks), probes, distances, baselines)

    def train(self, explainer: "SurrogateMaskExplainer", task: Task, seed: int) -> None:
        """Train the surrogate on masked copies, calibrate the hard masks on held-out rows, diagnose them on others."""
        start, source = time.perf_counter(), generator(seed, "diffmask")
        rows, held_out = split_held_out(task, HELD_OUT_TEXTS)
        batches = infinite_minibatches(rows, self.batch_size, source, LENGTH_POOL)
        objective = MaskedCopies(explainer, self.mask_pairs, self.on_policy_masks, self.sites_per_step, source)
        if self.learn_baseline:
            learn_baselines(explainer, batches, self.sites_per_step, source)
        schedule = TrainingSchedule(
            budget=self._training_budget(),
            steps_per_batch=self.steps_per_batch,
            replay_tokens=self.replay_tokens,
            learning_rate=self.learning_rate,
            patience=TrainingSchedule.evaluations,
            weight_decay=WEIGHT_DECAY,
        )
        monitored = query_by_length(objective, held_out, self.batch_size)
        # The last weights, not the best: the monitored masks are random ones, while the surrogate chooses its own.
        training = AmortisedTraining(
            explainer.attributor, objective, schedule, monitored, source, start, f"fit {self.label}"
        )
        training.run(batches, keep="last")
        calibration, diagnosis = calibration_split(task)
        calibration, diagnosis = (part.spread(self._check_rows()) for part in (calibration, diagnosis))
        calibrate(explainer, calibration, self.site_margins(explainer.sites))
        if self.coverage is not None:
            explainer.config = self  # The risk of a mask depends on the margin.
            calibrate_coverage(explainer, calibration, self.coverage)
        margins = dict.fromkeys(explainer.sites, self.margin)
        explainer.diagnostics = diagnose(
            explainer, diagnosis, margins, coverage=self.coverage, learned_baseline=self.learn_baseline
        )
        report(explainer.diagnostics, self.label)

    def _training_budget(self) -> Budget:
        """Return `steps` minibatches, or the budget; of a time, the part that training may use."""
        if self.budget is None:
            return Budget(texts=float(self.steps * self.batch_size))
        limit = parse_budget(self.budget)
        return replace(limit, seconds=TRAINING_SHARE * limit.seconds)

    def _check_rows(self) -> int:
        """Return the rows on which masks are calibrated and diagnosed: fewer if the time is short."""
        seconds = math.inf if self.budget is None else parse_budget(self.budget).seconds
        return min(self.calibration_rows, max(MIN_CHECK_ROWS, int(min(seconds, 1e6) * ROWS_PER_SECOND)))


class LayerwiseAttributor(nn.Module):
    """One attribution network per site, which reads only the states available there."""

    def __init__(self, networks: dict[str, AttributionNetwork]) -> None:
        super().__init__()
        self.sites = tuple(networks)
        self.networks = nn.ModuleList(networks.values())
        self.sites_read = tuple(dict.fromkeys(name for network in networks.values() for name in network.sites))

    def network(self, site: str) -> AttributionNetwork:
        """Return the network of a site."""
        return cast(AttributionNetwork, self.networks[self.sites.index(site)])

    def forward(
        self, states: States, present: Tensor, sites: tuple[str, ...]
    ) -> Float[Tensor, "site row token feature"]:
        """Predict the change in the logits when each token is erased, one prediction per site."""
        networks = [self.network(site) for site in sites]
        projections = {
            name: iter(
                project_all(states[name], [network.projection(name) for network in networks if name in network.sites])
            )
            for name in self.sites_read
        }
        inputs = [[next(projections[name]) for name in network.sites] for network in networks]
        return torch.stack(
            [network.from_projections(views, states, present) for network, views in zip(networks, inputs, strict=True)]
        )


class SurrogateMaskExplainer(MaskExplainer):
    """Keep probability = c / (c + threshold), c the elimination cost; for inputs, the minimum over the sites so far."""

    thresholds: Tensor
    risk_weights: Tensor
    """Per site: weights of the features in the risk of a mask, then the constant."""
    risk_prices: Tensor
    """Per site: price of a risk in the choice of each text's factor; 0 if all factors are one."""

    def __init__(
        self,
        task: Task,
        mask: MaskKind,
        attributor: LayerwiseAttributor,
        linear_probes: dict[str, LinearProbe],
        distances: AnswerDistances,
        baselines: dict[str, nn.Parameter],
    ) -> None:
        super().__init__(task, mask, attributor.sites, baselines)
        self.attributor = attributor
        self.distances = distances
        self.linear_probes = nn.ModuleList(linear_probes.values())
        thresholds = torch.full((len(attributor.sites),), KEEP_ALL)
        self.register_buffer("thresholds", thresholds.to(linear_probes[attributor.sites[0]].bias))
        weights = torch.zeros(len(attributor.sites), FEATURES + 1)
        self.register_buffer("risk_weights", weights.to(self.thresholds))
        self.register_buffer("risk_prices", torch.zeros_like(self.thresholds))

    def attribution(self, trace: ForwardTrace) -> Attribution:
        """Return keep probabilities per site and, for inputs, scores that are not probabilities.

        The score of a token is how much its erasure is predicted to lower the log-odds of the predicted class (for
        answers that are positions: its cost in nats), from the mean of the sites' predictions. The masks say which
        tokens are enough: one of two words with the same meaning may be erased, although both have a high score.
        """
        if self.mask == "states":
            return super().attribution(trace)
        contributions = self.token_contributions(trace, self.sites)
        costs = self._elimination_costs(trace, self.sites, contributions)
        factors = self._factors(trace, self.sites, costs, contributions)
        keep = self._votes(self.sites, costs, factors).cummin(dim=1).values
        scores = surrogate_target(trace.answer).contribution(trace, contributions.mean(dim=0))
        return Attribution(scores, keep, self.sites)

    def keep_probability(self, trace: ForwardTrace, sites: tuple[str, ...]) -> Float[Tensor, "row site token"]:
        """Return P(token kept) at these sites; for inputs a later site can only lower it."""
        last = max(map(self.sites.index, sites))
        # The factor of a text is chosen by the masks of the last site.
        read = len(self.sites) if self.risk_prices.any() else last + 1
        voters = sites if self.mask == "states" else self.sites[:read]
        contributions = self.token_contributions(trace, voters)
        costs = self._elimination_costs(trace, voters, contributions)
        votes = self._votes(voters, costs, self._factors(trace, voters, costs, contributions))
        if self.mask == "states":
            return votes
        return votes.cummin(dim=1).values[:, [self.sites.index(site) for site in sites]]

    def elimination_cost(self, trace: ForwardTrace, site: str) -> Float[Tensor, "row token"]:
        """Predict KL(original || masked), in nats, at the step of the elimination that erases each token."""
        return self._elimination_costs(trace, (site,), self.token_contributions(trace, (site,)))[:, 0]

    def threshold_scores(self, trace: ForwardTrace, site: str) -> Float[Tensor, "row token"]:
        """Return the elimination cost of each token."""
        return self.elimination_cost(trace, site)

    def set_threshold(self, site: str, threshold: float) -> None:
        """Set the elimination cost above which a site keeps tokens."""
        self.thresholds[self.sites.index(site)] = max(threshold, KEEP_ALL)

    def token_contributions(
        self, trace: ForwardTrace, sites: tuple[str, ...]
    ) -> Float[Tensor, "site row token feature"]:
        """Predict the change in the logits when each token is erased, one prediction per site."""
        return self.attributor(self.distances.states(trace), trace.rows.present, sites)

    def _elimination_costs(
        self, trace: ForwardTrace, sites: tuple[str, ...], contributions: Float[Tensor, "site row token feature"]
    ) -> Float[Tensor, "row site token"]:
        start = torch.cat([self._predicted_logits(trace, site) for site in sites])
        maskable = trace.rows.maskable.repeat(len(sites), 1)
        target = surrogate_target(trace.answer)
        costs = target.elimination_costs(trace.coarse_answer, start, contributions.flatten(0, 1), maskable)
        return costs.unflatten(0, contributions.shape[:2]).transpose(0, 1)

    def set_risk(self, site: str, weights: Float[Tensor, " weight"], price: float) -> None:
        """Set how the factor of each text's thresholds is chosen; masks of inputs use that of the last site."""
        self.risk_weights[self.sites.index(site)] = weights.to(self.risk_weights)
        self.risk_prices[self.sites.index(site)] = price

    def scaled_masks(self, trace: ForwardTrace, site: str) -> ScaledMasks:
        """Return the masks of a site at multiples of its thresholds."""
        sites = (site,) if self.mask == "states" else self.sites[: self.sites.index(site) + 1]
        contributions = self.token_contributions(trace, sites)
        return self._scaled_masks(trace, sites, self._elimination_costs(trace, sites, contributions), contributions)

    def _scaled_masks(
        self,
        trace: ForwardTrace,
        sites: tuple[str, ...],
        costs: Float[Tensor, "row site token"],
        contributions: Float[Tensor, "site row token feature"],
    ) -> ScaledMasks:
        thresholds = self._thresholds(sites)[0, :, 0]
        contribution = surrogate_target(trace.answer).contribution(trace, _mean_of_last(contributions))
        return ScaledMasks.of(trace, costs, thresholds, contribution, self.margin_at(sites[-1]))

    def _factors(
        self,
        trace: ForwardTrace,
        sites: tuple[str, ...],
        costs: Float[Tensor, "row site token"],
        contributions: Float[Tensor, "site row token feature"],
    ) -> Float[Tensor, "row #site 1"]:
        """Return the factor of the thresholds of each text: one per site of states, one for all masks of inputs."""
        if not self.risk_prices.any():
            return costs.new_ones(len(costs), 1, 1)
        if self.mask == "inputs":
            return self._factor(trace, sites, costs, contributions)[:, None, None]
        factors = [
            self._factor(trace, (site,), costs[:, [index]], contributions[[index]]) for index, site in enumerate(sites)
        ]
        return torch.stack(factors, dim=1)[..., None]

    def _factor(
        self, trace: ForwardTrace, sites: tuple[str, ...], costs: Tensor, contributions: Tensor
    ) -> Float[Tensor, " row"]:
        """Choose the factor of each text by the risk of its masks at the last of these sites."""
        index = self.sites.index(sites[-1])
        masks = self._scaled_masks(trace, sites, costs, contributions)
        risk = predicted_risk(masks.features, self.risk_weights[index])
        return torch.tensor(FACTORS).to(costs)[choose_masks(masks.share, risk, float(self.risk_prices[index]))]

    def _thresholds(self, sites: tuple[str, ...]) -> Float[Tensor, "1 site 1"]:
        return self.thresholds[[self.sites.index(site) for site in sites]][None, :, None]

    def _votes(
        self, sites: tuple[str, ...], costs: Float[Tensor, "row site token"], factors: Float[Tensor, "row #site 1"]
    ) -> Float[Tensor, "row site token"]:
        """Return the keep probability of each site alone, with thresholds multiplied by the factors."""
        threshold = self._thresholds(sites)
        keep = costs / (costs + (threshold * factors).clamp(min=1e-9))
        return torch.where((threshold < 0) | costs.isinf(), 1.0, keep)

    def _predicted_logits(self, trace: ForwardTrace, site: str) -> FlatLogits:
        """Return the logits that a site's linear probe predicts; the model's own if the network reads the last site."""
        if self.task.sites[-1] in self.attributor.network(site).sites:
            return flat_logits(trace.coarse_answer)
        probe = cast(LinearProbe, self.linear_probes[self.sites.index(site)])
        return probabilities_to_logits(trace.coarse_answer, probe(trace.states[site], trace.rows.present))


def _mean_of_last(contributions: Float[Tensor, "site row token feature"]) -> Float[Tensor, "row token feature"]:
    """Return the mean contribution of each token over the last third of the sites."""
    return contributions[-math.ceil(len(contributions) / SCORING_SITES) :].mean(dim=0)
