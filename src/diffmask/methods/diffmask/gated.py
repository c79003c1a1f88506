"""DiffMask as published: hard concrete gates, one probe per site, a Lagrangian. De Cao et al. 2020.

The fit minimises the expected share of open gates subject to KL(original || masked) <= margin. Gradients pass through
samples of the gates and through the frozen model. Afterwards one shift per site is calibrated on held-out rows.
"""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import ClassVar, Literal, cast

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from diffmask.core.baseline_states import site_statistics
from diffmask.core.distributions import divergence
from diffmask.core.explainer import ForwardTrace
from diffmask.core.progress import progress_bar, stop_at_interrupt
from diffmask.core.task import Task
from diffmask.core.training import cosine_decay, generator, infinite_minibatches, seeded
from diffmask.errors import ConfigError
from diffmask.methods.diffmask.base import (
    LENGTH_POOL,
    MAX_SHIFT,
    STATISTICS_ROWS,
    MaskExplainer,
    MaskKind,
    SiteMaskMethod,
)
from diffmask.methods.diffmask.baseline import initial_baselines
from diffmask.methods.diffmask.calibration import calibrate, calibration_split, held_out_rows
from diffmask.methods.diffmask.diagnostics import diagnose, report
from diffmask.methods.diffmask.hard_concrete import HardConcrete
from diffmask.methods.diffmask.lagrangian import Multiplier, PIController, critical_multiplier
from diffmask.methods.diffmask.probe import (
    GateProbe,
    LayerwiseProbe,
    MeanOfVotes,
    Probe,
    ProductOfVotes,
    SimpleProbe,
    Votes,
)

ProbeKind = Literal["diffmask", "simple", "layerwise"]
PROBES: Mapping[ProbeKind, type[GateProbe]] = MappingProxyType(
    {"diffmask": Probe, "simple": SimpleProbe, "layerwise": LayerwiseProbe}
)
VOTES: Mapping[str, Votes] = MappingProxyType({"product": ProductOfVotes(), "mean": MeanOfVotes()})
DIAGNOSIS_ROWS = 192
"""Largest number of held-out rows that the diagnostics of a fit use."""


@dataclass(frozen=True, kw_only=True)
class GateSchedule:
    """How gates, probes and multipliers start and change during a fit of `DiffMask`."""

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    probe_init_scale: float = 0.7
    """Standard deviation of a probe's hidden units before their nonlinearity, at the start.

    Use about 3 for states of few dimensions, as in the toy task. Large values overfit when the state has hundreds."""
    initial_keep_probability: float = 0.5
    """Probability that a token is kept in the mask of the last site before training."""
    min_keep_probability: float = 0.03
    """Bound of the probability with which training samples a token kept, and erased; 0: no bound."""
    temperature: tuple[float, float] = (1.0, 0.5)
    """Temperature of the gates at the start and after annealing.

    At 1 a half-open gate is uniform on (0, 1), so that its gradient is that of a path from erased to kept, as in
    integrated gradients. At 0.2, as published, samples are nearly 0 or 1, and few pass a useful gradient."""
    temperature_anneal_fraction: float = 0.5
    """Share of the fit after which the temperature is at its last value."""
    logit_range: tuple[float, float] = (4.0, 7.0)
    """Bound of a gate's logit at the start and once the margin is at its target.

    The first is raised to twice the initial logit if that is larger."""
    margin_anneal_fraction: float = 0.3
    """Share of the fit after which the margin has shrunk from the first divergence to its target."""
    controller_gains: tuple[float, float] = (0.15, 2.0)
    """Integral and proportional gain of the multiplier's logarithm on the relative violation."""
    initial_multiplier: float = 3.0
    """First multiplier, in units of the one below which masking everything is optimal."""
    multiplier_floor: tuple[float, float] = (0.1, 0.1)
    """Smallest multiplier at the start and once the margin is at its target, in the same units."""
    site_sampling: Literal["uniform", "adaptive"] = "uniform"
    """Adaptive draws a site with a sparse mask that satisfies the margin a tenth as often (De Cao's code)."""

    def __post_init__(self) -> None:
        if not 0 < self.initial_keep_probability < 1 or not 0 <= self.min_keep_probability < 0.5:
            raise ConfigError("schedule: initial_keep_probability must be in (0, 1), min_keep_probability in [0, 0.5)")
        positive = (*self.temperature, *self.logit_range, self.temperature_anneal_fraction, self.margin_anneal_fraction)
        if not all(value > 0 for value in positive):
            raise ConfigError("schedule: temperature, logit_range and both anneal fractions must be above 0")

    def controller(self, margin: float) -> PIController:
        """Return the rule of the multipliers."""
        integral, proportional = self.controller_gains
        return PIController(
            margin,
            integral=integral,
            proportional=proportional,
            memory=0.5,
            max_violation=3.0,
            start=self.initial_multiplier,
            floor=self.multiplier_floor,
            anneal_fraction=self.margin_anneal_fraction,
        )

    def temperature_at(self, progress: float) -> float:
        """Return the temperature at a share of the fit, annealed geometrically."""
        first, last = self.temperature
        return first * (last / first) ** min(1.0, progress / self.temperature_anneal_fraction)


@dataclass(frozen=True, kw_only=True)
class DiffMask(SiteMaskMethod):
    """Fewest tokens kept subject to KL(original || masked) <= margin, by gradients through hard concrete gates.

    De Cao et al. 2020. On transformers `SurrogateMask` finds smaller masks in less time.
    """

    name: ClassVar[str] = "diffmask"
    revision: ClassVar[int] = 1

    probe: ProbeKind = "diffmask"
    """Network that predicts the gates: De Cao's, or one of a published news recommender. Simple: one probe, at the last
    site, decides alone on the mask of inputs. Layerwise: a probe per site that reads all states up to its own."""
    votes: Literal["product", "mean"] = "product"
    """How input masks combine the votes of the probes up to a site: product of probabilities, or mean of log-odds."""
    probe_inputs: Literal["auto", "state", "both"] = "auto"
    """States that De Cao's probe reads: its own site's, or also the embedding. Auto: both for inputs, its own for
    states."""
    probe_width: int | None = None
    """Hidden units of a probe; by default a quarter of the state's width, at least 32."""
    sparsity: Literal["l0", "log"] = "l0"
    """Sparsity term: the expected number of open gates (paper), or its mean logarithm (original code)."""
    length_pool: int = LENGTH_POOL
    """Minibatches that are sorted by length together, which saves padding; 1: none."""
    schedule: GateSchedule = GateSchedule()
    """Start and annealing of gates, probes and multipliers."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require_counts(length_pool=self.length_pool, probe_width=self.probe_width or 1)
        if self.calibration_rows < 0:
            raise ConfigError(f"{self.name}: calibration_rows must not be negative; 0 skips calibration")
        if self.probe != "diffmask" and self.probe_inputs != "auto":
            raise ConfigError(f"{self.name}: probe_inputs is a choice of probe='diffmask', not of '{self.probe}'")

    def sites_of(self, task: Task) -> tuple[str, ...]:
        """Return the sites with a probe; a simple probe of inputs is at the last one only."""
        sites = super().sites_of(task)
        return sites[-1:] if self.probe == "simple" and self.mask == "inputs" else sites

    def sites_read(self, task: Task) -> dict[str, tuple[str, ...]]:
        """Return the sites whose states the probe of each site reads."""
        sites = self.sites_of(task)
        if self.probe == "layerwise":
            return {site: sites[: place + 1] for place, site in enumerate(sites)}
        both = self.mask == "inputs" if self.probe_inputs == "auto" else self.probe_inputs == "both"
        first = (task.sites[0],) if both and self.probe == "diffmask" else ()
        return {site: (*first, site) for site in sites}

    def build(self, task: Task, seed: int) -> "GatedMaskExplainer":
        """Allocate probes whose gates all open with the initial keep probability."""
        sites, schedule = self.sites_of(task), self.schedule
        statistics = site_statistics(task, {task.sites[0], *sites}, STATISTICS_ROWS)
        read = self.sites_read(task)
        voters = len(sites) if self.mask == "inputs" else 1
        each = VOTES[self.votes].share(schedule.initial_keep_probability, voters)
        start = initial_logit(each, schedule.temperature[0])
        bound = max(schedule.logit_range[0], 2 * abs(start))
        with seeded(seed, "diffmask"):
            probes = {
                site: PROBES[self.probe](
                    [statistics[name] for name in read[site]], self.probe_width, bound, start, schedule.probe_init_scale
                )
                for site in sites
            }
            baselines = initial_baselines(self, task, sites, statistics)
        temperature = schedule.temperature[1]
        return GatedMaskExplainer(task, self.mask, probes, baselines, read, VOTES[self.votes], temperature)

    def train(self, explainer: "GatedMaskExplainer", task: Task, seed: int) -> None:
        """Train the probes, calibrate the hard masks on held-out rows, diagnose them on others."""
        trainer = GateTrainer(self, explainer, task, generator(seed, "diffmask"))
        progress = progress_bar(range(self.steps), f"fit {self.label}")
        # Dropout draws from torch's global generator; De Cao's probe has none.
        drawn = nullcontext() if self.probe == "diffmask" else seeded(seed, "diffmask dropout")
        with drawn, explainer.fitting(), stop_at_interrupt(progress.label, progress.status):
            for step in progress:
                trainer.step(step / self.steps)
        explainer.temperature = self.schedule.temperature[1]
        if self.calibration_rows:
            rows, held_out = calibration_split(task)
            rows = rows.spread(self.calibration_rows)
            calibrate(explainer, rows, self.site_margins(explainer.sites), trained=0.0)
        else:
            held_out = held_out_rows(task)
        margins = dict.fromkeys(explainer.sites, self.margin)
        explainer.diagnostics = diagnose(explainer, held_out.spread(DIAGNOSIS_ROWS), margins, trainer.multipliers)
        report(explainer.diagnostics, self.label)


def initial_logit(open_probability: float, temperature: float) -> float:
    """Return the logit of a gate that is open with a given probability.

    >>> round(initial_logit(0.5, 1.0), 2), round(initial_logit(0.5 ** (1 / 8), 1.0), 2)
    (-1.61, 0.79)
    """
    return math.log(open_probability / (1 - open_probability)) - temperature * math.log(5)


class GatedMaskExplainer(MaskExplainer):
    """Keep probability = open probability of the combined gates that the probes of a site, and before it, predict."""

    def __init__(
        self,
        task: Task,
        mask: MaskKind,
        probes: Mapping[str, GateProbe],
        baselines: dict[str, nn.Parameter],
        sites_read: Mapping[str, tuple[str, ...]],
        rule: Votes,
        temperature: float,
    ) -> None:
        super().__init__(task, mask, tuple(probes), baselines)
        self.sites_read, self.rule, self.temperature = sites_read, rule, temperature
        self.probes = nn.ModuleList(probes.values()).eval()

    @contextmanager
    def fitting(self) -> Iterator[None]:
        """Switch the dropout of the probes on."""
        self.probes.train()
        try:
            yield
        finally:
            self.probes.eval()

    @property
    def nested(self) -> bool:
        """Whether a token erased at one site stays erased at all later ones."""
        return super().nested and self.rule.nested

    def probe(self, site: str) -> GateProbe:
        """Return the probe of a site."""
        return cast(GateProbe, self.probes[self.sites.index(site)])

    def voting_sites(self, site: str) -> tuple[str, ...]:
        """Return the sites whose probes decide on the mask of `site`: for inputs also all sites before it."""
        return (site,) if self.mask == "states" else self.sites[: self.sites.index(site) + 1]

    def votes(self, trace: ForwardTrace, site: str) -> HardConcrete:
        """Return the gates that the probe of this site alone predicts."""
        states = [trace.states[name] for name in self.sites_read[site]]
        return HardConcrete(self.probe(site)(torch.cat(states, dim=-1)), self.temperature)

    def gates(self, trace: ForwardTrace, site: str, *, detach_earlier: bool = False) -> HardConcrete:
        """Return the gates of the mask of `site`. With `detach_earlier`, only its own vote gets a gradient."""
        *earlier, last = (self.votes(trace, voter) for voter in self.voting_sites(site))
        if detach_earlier:
            earlier = [replace(vote, logits=vote.logits.detach()) for vote in earlier]
        return self.rule.combine([*earlier, last])

    def expected_mask(self, trace: ForwardTrace, site: str) -> Float[Tensor, "row token"]:
        """Return the mean of each gate, which is not P(z > 0): an open gate may be half open."""
        return self.gates(trace, site).mean()

    def keep_probability(self, trace: ForwardTrace, sites: tuple[str, ...]) -> Float[Tensor, "row site token"]:
        """Return the open probabilities of the combined votes; each probe runs once."""
        voters = [voter for voter in self.sites if any(voter in self.voting_sites(site) for site in sites)]
        votes = {voter: self.votes(trace, voter) for voter in voters}
        combined = [self.rule.log_open([votes[voter] for voter in self.voting_sites(site)]) for site in sites]
        return torch.stack(combined, dim=1).exp()

    def threshold_scores(self, trace: ForwardTrace, site: str) -> Float[Tensor, "row token"]:
        """Return how far this site's logit is above the one at which the token's keep probability is one half.

        For a product of votes it is -inf for tokens that the sites before erase.
        """
        return self.rule.excess([self.votes(trace, voter) for voter in self.voting_sites(site)])

    def set_threshold(self, site: str, threshold: float) -> None:
        """Shift the logits of a site's probe."""
        self.probe(site).shift.sub_(max(threshold, -MAX_SHIFT * len(self.voting_sites(site))))


class GateTrainer:
    """Training loop: Adam on probes and baselines, one multiplier per site."""

    def __init__(self, method: DiffMask, explainer: GatedMaskExplainer, task: Task, source: torch.Generator) -> None:
        self.method, self.explainer, self.task, self.source = method, explainer, task, source
        learned = [value for value in explainer.parameters() if value.requires_grad]
        self.optimizer = torch.optim.Adam(learned, lr=method.learning_rate, betas=(0.9, 0.99))
        self.batches = infinite_minibatches(task.data["train"], method.batch_size, source, method.length_pool)
        controller = method.schedule.controller(method.margin)
        first = task.data["train"][: method.batch_size].trim()
        self.multipliers = {
            site: Multiplier(controller, critical_multiplier(explainer.full_mask_divergence(first, site)))
            for site in explainer.sites
        }
        self.initial_bound = float(cast(GateProbe, explainer.probes[0]).logit_range)
        self.site_weights = dict.fromkeys(explainer.sites, 1.0)

    def step(self, progress: float) -> None:
        """Run one forward pass, one masked pass per drawn site, and one update of all parameters."""
        self._set_schedule(progress)
        batch = next(self.batches)
        trace = ForwardTrace.of(self.task, batch)
        self.optimizer.zero_grad()
        for site in self._draw_sites():
            gates = self._gates(trace, site)
            masked = self.explainer.predict_masked(trace, site, gates.sample(self.source))
            caused = divergence(trace.answer, masked).mean()
            counted = gates if self.method.mask == "states" else self._gates(trace, site, detach_earlier=True)
            kept = self._sparsity(counted.log_open(), batch.maskable)
            weight = self.multipliers[site].update(caused.item(), progress)
            ((kept + weight * caused) / (1 + weight)).backward()
            self._update_site_weight(site, kept.item(), caused.item())
        self.optimizer.step()

    def _gates(self, trace: ForwardTrace, site: str, *, detach_earlier: bool = False) -> HardConcrete:
        """Return the gates to sample or, with `detach_earlier`, those in the sparsity term.

        The sparsity term of a site closes only its own vote, while the divergence may open every vote. Otherwise early
        votes close for the sake of later sites and violate their own margin.
        """
        gates = self.explainer.gates(trace, site, detach_earlier=detach_earlier)
        smallest = self.method.schedule.min_keep_probability
        return gates.clamp_probability(smallest) if smallest else gates

    def _set_schedule(self, progress: float) -> None:
        """Set the temperature, the learning rate (linear warm-up, cosine decay) and the bound of the logits."""
        schedule = self.method.schedule
        self.explainer.temperature = schedule.temperature_at(progress)
        warm_up = min(1.0, progress * self.method.steps / 30 + 0.03)
        for group in self.optimizer.param_groups:
            group["lr"] = self.method.learning_rate * warm_up * cosine_decay(progress)
        growth = schedule.logit_range[1] / self.initial_bound
        bound = self.initial_bound * growth ** min(1.0, progress / schedule.margin_anneal_fraction)
        for probe in self.explainer.probes.children():
            cast(GateProbe, probe).logit_range.fill_(bound)

    def _sparsity(self, log_open: Float[Tensor, "row token"], maskable: Bool[Tensor, "row token"]) -> Float[Tensor, ""]:
        """Return the mean over rows of the mean over a row's maskable tokens."""
        cost = log_open if self.method.sparsity == "log" else log_open.exp()
        return ((cost * maskable).sum(dim=1) / maskable.sum(dim=1).clamp(min=1)).mean()

    def _draw_sites(self) -> list[str]:
        """Draw the sites of this step without replacement."""
        weights = torch.tensor([self.site_weights[site] for site in self.explainer.sites])
        count = min(self.method.sites_per_step, len(weights))
        drawn = torch.multinomial(weights, count, generator=self.source)
        return [self.explainer.sites[index] for index in drawn.tolist()]

    def _update_site_weight(self, site: str, kept: float, caused: float) -> None:
        """Draw a site less often once its mask is sparse and satisfies the margin, if sampling is adaptive."""
        if self.method.schedule.site_sampling == "adaptive":
            done = kept < 0.1 and caused <= self.method.margin
            self.site_weights[site] = 0.9 * self.site_weights[site] + 0.1 * (0.1 if done else 1.0)
