"""DiffMask as published: hard concrete gates, one probe per site, a Lagrangian. De Cao et al. 2020.

The fit minimises the expected share of open gates subject to KL(original || masked) <= margin. Gradients pass through
samples of the gates and through the frozen model. Afterwards one shift per site is calibrated on held-out rows.
"""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar, Literal, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from diffmask.core.baseline_states import site_statistics
from diffmask.core.explainer import ForwardTrace
from diffmask.core.progress import progress_bar, stop_at_interrupt
from diffmask.core.task import Task
from diffmask.core.training import generator, infinite_minibatches, seeded
from diffmask.errors import ConfigError
from diffmask.methods.diffmask.base import (
    LENGTH_POOL,
    MAX_SHIFT,
    STATISTICS_ROWS,
    MaskExplainer,
    MaskKind,
    SiteMaskMethod,
)
from diffmask.methods.diffmask.baseline import initial_baselines, learn_baselines
from diffmask.methods.diffmask.calibration import calibrate, calibration_split, held_out_rows
from diffmask.methods.diffmask.diagnostics import diagnose, report
from diffmask.methods.diffmask.gate_training import DEFAULT_SCHEDULE, GateSchedule, GateTrainer
from diffmask.methods.diffmask.hard_concrete import HardConcrete
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
class DiffMask(SiteMaskMethod):
    """Fewest tokens kept subject to KL(original || masked) <= margin, by gradients through hard concrete gates.

    De Cao et al. 2020. On transformers `SurrogateMask` finds smaller masks in less time.
    """

    name: ClassVar[str] = "diffmask"
    revision: ClassVar[int] = 4
    writes_checkpoints: ClassVar[bool] = True

    learning_rate: float = 4e-3
    """Learning rate of Adam."""
    steps: int = 800
    """Minibatches of training rows."""

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
    min_agreement: float | None = None
    """Smallest share of held-out rows whose predictions calibrated hard masks keep; None: the margin alone counts. A
    prediction that the model is unsure of may change within the margin."""
    schedule: GateSchedule = DEFAULT_SCHEDULE
    """Start and annealing of gates, probes and multipliers."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require_counts(length_pool=self.length_pool, probe_width=self.probe_width or 1)
        if self.calibration_rows < 0:
            raise ConfigError(f"{self.name}: calibration_rows must not be negative; 0 skips calibration")
        if self.min_agreement is not None and not 0 <= self.min_agreement <= 1:
            raise ConfigError(f"{self.name}: min_agreement must be a share in [0, 1]; found {self.min_agreement}")
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
        start = initial_logit(each, schedule.temperature)
        bound = max(schedule.logit_range[0], 2 * abs(start))

        def probe(site: str) -> GateProbe:
            scale = schedule.init_scale(len(statistics[site].mean))
            return PROBES[self.probe]([statistics[name] for name in read[site]], self.probe_width, bound, start, scale)

        with seeded(seed, "diffmask"):
            probes = {site: probe(site) for site in sites}
            baselines = initial_baselines(self, task, sites, statistics)
        return GatedMaskExplainer(task, self.mask, probes, baselines, read, VOTES[self.votes], schedule.temperature)

    @property
    def uses_dropout(self) -> bool:
        """Whether the probes have dropout; De Cao's have none."""
        return self.probe != "diffmask"

    def train(self, explainer: "GatedMaskExplainer", task: Task, seed: int) -> None:
        """Train the probes, calibrate the hard masks on held-out rows, diagnose them on others."""
        if self.learn_baseline and not self.schedule.joint_baseline:
            source = generator(seed, "diffmask baseline")
            batches = infinite_minibatches(task.data["train"], self.batch_size, source, self.length_pool)
            learn_baselines(explainer, batches, self.sites_per_step, source)
        trainer = GateTrainer(self, explainer, task, seed)
        # Dropout draws from torch's global generator.
        with seeded(seed, "diffmask dropout") if self.uses_dropout else nullcontext(), explainer.fitting():
            progress = progress_bar(range(trainer.resume(), self.steps), f"fit {self.label}")
            with stop_at_interrupt(progress.label, progress.status):
                for step in progress:
                    trainer.step(step)
        explainer.training_history = trainer.history
        if self.calibration_rows:
            rows, held_out = calibration_split(task)
            rows = rows.spread(self.calibration_rows)
            calibrate(
                explainer, rows, self.site_margins(explainer.sites), trained=0.0, min_agreement=self.min_agreement
            )
        else:
            held_out = held_out_rows(task)
        margins = dict.fromkeys(explainer.sites, self.margin)
        explainer.diagnostics = diagnose(
            explainer,
            held_out.spread(DIAGNOSIS_ROWS),
            margins,
            trainer.multipliers,
            learned_baseline=self.learn_baseline,
        )
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

    def all_votes(self, trace: ForwardTrace, site: str) -> list[HardConcrete]:
        """Return the gates that each probe which decides on the mask of `site` predicts, its own last."""
        return [self.votes(trace, voter) for voter in self.voting_sites(site)]

    def gates(self, trace: ForwardTrace, site: str) -> HardConcrete:
        """Return the gates of the mask of `site`."""
        return self.rule.combine(self.all_votes(trace, site))

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
