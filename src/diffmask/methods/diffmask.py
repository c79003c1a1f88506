"""DiffMask: which tokens, and which hidden states, can be erased without changing the answer. De Cao et al. 2020."""

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, cast

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from diffmask.answer import divergence
from diffmask.constraint import Controller, Multiplier
from diffmask.diagnostics import diagnose, report
from diffmask.errors import RecipeError
from diffmask.explainer import Method
from diffmask.gates import HardConcrete
from diffmask.mask import MaskExplainer, States
from diffmask.methods.diffmask_settling import settle
from diffmask.probe import Probe, SiteStatistics, mask_state, site_statistics
from diffmask.task import Task
from diffmask.training import endless, generator, seeded, track


@dataclass(frozen=True, kw_only=True)
class DiffMask(Method):
    """Fewest open gates subject to KL(original || masked) <= margin, amortised over a data set."""

    name: ClassVar[str] = "diffmask"

    mask: Literal["inputs", "states"] = "inputs"
    """Erase input tokens, seen from every layer (votes of layers 0..l multiplied), or each layer's own states."""
    margin: float = 0.1
    """Largest divergence from the original answer that masking may cause, in nats."""
    margins: tuple[float, ...] = ()
    """Several margins at once: nested masks, and so a ranking, in place of one margin seen from every site."""
    breaks: float = 0.0
    """With several margins, weight of a second term: the answer must break when what is kept is removed (AML, 2024)."""
    sites: tuple[str, ...] = ()
    """The sites to probe, in order; all of the task's where none is named."""
    sparsity: Literal["l0", "log"] = "l0"
    """What is made small: the expected number of open gates (paper) or its mean logarithm (original code)."""
    reads: Literal["both", "state", "auto"] = "auto"
    """What a probe reads: [h0; hk], or hk alone; by default both for inputs, hk for states."""
    probe_width: int | None = None
    """Units of a probe's hidden layer; a quarter of the state's width, at least 32, where none is given."""
    steepness: float = 0.7
    """Deviation of what a probe's hidden units see, before they bend it, at the start of a fit.

    In a few dimensions, as on the toy task, they must bend within the cloud of states to tell its parts apart (3); in
    hundreds a random direction tells them apart already, and steep units learn the training rows by heart."""
    baseline: Literal["auto", "mean", "mask", "zero", "random"] = "auto"
    """What an erased state is replaced by, or starts from where it is learned.

    By default the mask token's for inputs, where the vocabulary has one, and the mean state otherwise."""
    learn_baseline: bool = False
    """Whether the baseline moves during the fit: it may then learn to imitate what it replaces."""
    temperature: tuple[float, float] = (1.0, 0.5)
    """Temperature of the gates at the start of a fit and at its end.

    At 1 a half-open gate is uniform on (0, 1), and its gradient that of a path from erased to kept, as of integrated
    gradients; at 0.2, as published, draws are all but 0 or 1 and few pass a gradient that says much."""
    anneal: float = 0.5
    """Share of the fit after which the temperature is at its end."""
    explore: float = 0.03
    """Least probability with which a fit draws a token kept, and erased, whatever it has learned; 0: none."""
    start: float = 0.5
    """Probability that a token is kept, seen from the last site, before anything is learned."""
    reach: tuple[float, float] = (4.0, 7.0)
    """How far a probe can move a gate's logit, at the start and from the settling of the margin on.

    The first is at least twice the logit that a fit starts from."""
    settle: float = 0.3
    """Share of the fit after which the margin is the one asked for; until then it shrinks from the first divergence."""
    gains: tuple[float, float] = (0.15, 2.0)
    """Of the multiplier's logarithm on the relative violation: integral and proportional."""
    floor: tuple[float, float] = (0.1, 0.1)
    """Smallest multiplier, at the start and from the settling on, in units of the one below which all is masked."""
    first_multiplier: float = 3.0
    """In the same units."""
    steps: int = 300
    batch_size: int = 32
    length_pool: int = 8
    """Minibatches' worth of rows that are sorted by length before they are cut, to compute little padding; 1: none."""
    sites_per_step: int = 2
    """How many sites, drawn at random, one clean pass serves."""
    site_sampling: Literal["uniform", "adaptive"] = "uniform"
    """Adaptive draws a site with a sparse mask that holds the margin a tenth as often."""
    learning_rate: float = 2e-3
    settle_rows: int = 256
    """Training rows on which, after the fit, hard masks are made to hold the margin; 0: they are left as learned."""
    first_share: float = 0.5
    """Share of the margin that hard masks may use at the first site; it rises to all of it at the last.

    For inputs only: what an early site erases is erased for all that follow."""
    statistics_rows: int = 512
    """Training rows that the sites' means and deviations are taken from."""

    def __post_init__(self) -> None:
        if min((self.margin, *self.margins)) < 0 or min(self.steps, self.batch_size, self.sites_per_step) < 1:
            raise RecipeError("diffmask: margin must not be negative; steps, batch_size, sites_per_step are at least 1")

    def build(self, task: Task, seed: int) -> Any:
        """Probes that leave every gate half open."""
        if self.margins:
            from diffmask.methods.diffmask_margins_fit import build_margins

            return build_margins(self, task, seed)
        sites = self.sites or task.sites
        for site in sites:
            task.place(site)
        both = self.reads == "both" or (self.reads == "auto" and self.mask == "inputs")
        known = site_statistics(task, {task.sites[0], *sites}, self.statistics_rows)
        first = [known[task.sites[0]]] if both else []
        masked = sites if self.mask == "states" else task.sites[:1]
        start = start_logit(self.start, len(sites) if self.mask == "inputs" else 1, self.temperature[0])
        near = max(self.reach[0], 2 * abs(start))
        with seeded(seed, "diffmask"):
            probes = {
                site: Probe([*first, known[site]], self.probe_width, near, start, self.steepness) for site in sites
            }
            baselines = {site: self._start_baseline(task, site, known[site]) for site in masked}
        return MaskExplainer(task, self.mask, probes, baselines, reads_first=both, temperature=self.temperature[1])

    def train(self, explainer: Any, task: Task, seed: int) -> None:
        """Adam on probes and baseline, a controlled multiplier a site; one masked pass serves both."""
        if self.margins:
            from diffmask.methods.diffmask_margins_fit import train_margins

            train_margins(self, explainer, task, seed)
            return
        loop = _Fit(self, explainer, task, generator(seed, "diffmask"))
        for step in track(range(self.steps), f"fit {self.label}"):
            loop.step(step / self.steps)
        explainer.temperature = self.temperature[1]
        if self.settle_rows:
            first = self.first_share if self.mask == "inputs" else 1.0
            train = task.data["train"]
            drawn = torch.randperm(len(train), generator=generator(seed, "settle"))[: self.settle_rows]
            settle(explainer, train[drawn], self.margin, first)
        explainer.diagnostics = diagnose(explainer, self.margin, loop.multipliers)
        report(explainer.diagnostics, self.label)

    def _start_baseline(self, task: Task, site: str, known: SiteStatistics) -> nn.Parameter:
        """The baseline vector a fit starts from."""
        chosen = self.baseline
        if chosen == "auto":
            chosen = "mask" if self.mask == "inputs" and task.mask_token is not None else "mean"
        start = {
            "mean": lambda: known.mean.clone(),
            "mask": lambda: mask_state(task, site),
            "zero": lambda: torch.zeros_like(known.mean),
            "random": lambda: torch.randn_like(known.mean),
        }
        return nn.Parameter(start[chosen](), requires_grad=self.learn_baseline)


def start_logit(kept: float, votes: int, temperature: float) -> float:
    """The logit of each of `votes` gates that are all open with probability `kept`.

    >>> round(start_logit(0.5, 1, 1.0), 2), round(start_logit(0.5, 8, 1.0), 2)
    (-1.61, 0.79)
    """
    each = kept ** (1 / votes)
    return math.log(each / (1 - each)) - temperature * math.log(5)


class _Fit:
    """One run of the optimisation: what changes from step to step."""

    def __init__(self, method: DiffMask, explainer: MaskExplainer, task: Task, source: torch.Generator) -> None:
        self.method, self.explainer, self.task, self.source = method, explainer, task, source
        self.controller = Controller(
            method.margin,
            integral=method.gains[0],
            proportional=method.gains[1],
            memory=0.5,
            worst=3.0,
            start=method.first_multiplier,
            floor=method.floor,
            settle=method.settle,
        )
        learned = [value for value in explainer.parameters() if value.requires_grad]
        self.optimizer = torch.optim.Adam(learned, lr=method.learning_rate, betas=(0.9, 0.99))
        self.batches = endless(task.data["train"], method.batch_size, source, method.length_pool)
        self.multipliers = {site: Multiplier(self.controller, self._critical(site)) for site in explainer.sites}
        self.near = float(cast(Probe, explainer.probes[0]).reach)
        self.need = dict.fromkeys(explainer.sites, 1.0)

    def step(self, progress: float) -> None:
        """One clean pass, then a masked pass for each site drawn, and one update of everything."""
        self._schedule(progress)
        batch = next(self.batches)
        answer, states = self.task.trace(batch)
        self.optimizer.zero_grad()
        for site in self._draw_sites():
            gates = self._gates(states, site)
            edits = self.explainer.edits(site, gates.sample(self.source), batch.maskable)
            masked = self.task.resume(batch, states, edits)
            caused = divergence(answer, masked).mean()
            few = gates if self.method.mask == "states" else self._gates(states, site, own=True)
            kept = self._sparsity(few.log_open(), batch.maskable)
            weight = self.multipliers[site].update(caused.item(), progress)
            ((kept + weight * caused) / (1 + weight)).backward()
            self._note_need(site, kept.item(), caused.item())
        self.optimizer.step()

    def _gates(self, states: States, site: str, *, own: bool = False) -> HardConcrete:
        """The gates that are drawn.

        With `own`, those that are to be few: they close by the vote of their site alone, while every vote may be opened
        by the sites that follow. Otherwise early votes close for late ones, and break their own margin.
        """
        gates = self.explainer.gates(states, site, own=own)
        return gates.alive(self.method.explore) if self.method.explore else gates

    def _schedule(self, progress: float) -> None:
        """Learning rate: a short rise, then half a cosine. Reach and temperature: geometrically, first to last."""
        far, (warm, cold) = self.method.reach[1], self.method.temperature
        self.explainer.temperature = warm * (cold / warm) ** min(1.0, progress / self.method.anneal)
        rise = min(1.0, progress * self.method.steps / 30 + 0.03)
        for group in self.optimizer.param_groups:
            group["lr"] = self.method.learning_rate * rise * max(0.02, 0.5 * (1 + math.cos(math.pi * progress)))
        for probe in self.explainer.probes.children():
            cast(Probe, probe).reach.fill_(self.near * (far / self.near) ** min(1.0, progress / self.controller.settle))

    def _sparsity(self, log_open: Float[Tensor, "row token"], maskable: Bool[Tensor, "row token"]) -> Float[Tensor, ""]:
        """Mean over rows of the mean over a row's maskable tokens."""
        cost = log_open if self.method.sparsity == "log" else log_open.exp()
        return ((cost * maskable).sum(dim=1) / maskable.sum(dim=1).clamp(min=1)).mean()

    @torch.no_grad()
    def _critical(self, site: str) -> float:
        """1 / KL(original || everything masked), within reason."""
        batch = self.task.data["train"][: self.method.batch_size].trim()
        shut = torch.zeros(batch.tokens.shape)
        masked = self.task.predict(batch, self.explainer.edits(site, shut, batch.maskable))
        return min(max(1 / max(divergence(self.task.predict(batch), masked).mean().item(), 1e-3), 0.1), 100.0)

    def _draw_sites(self) -> list[str]:
        """Sites of this step, without replacement."""
        weights = torch.tensor([self.need[site] for site in self.explainer.sites])
        count = min(self.method.sites_per_step, len(weights))
        drawn = torch.multinomial(weights, count, generator=self.source)
        return [self.explainer.sites[index] for index in drawn.tolist()]

    def _note_need(self, site: str, kept: float, caused: float) -> None:
        """After De Cao's code: a site whose mask is sparse and holds needs fewer steps."""
        if self.method.site_sampling == "adaptive":
            done = kept < 0.1 and caused <= self.method.margin
            self.need[site] = 0.9 * self.need[site] + 0.1 * (0.1 if done else 1.0)
