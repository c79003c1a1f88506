"""Fitting masks by gates: gradients pass through draws of them, and a multiplier holds the margin."""

import math
from typing import TYPE_CHECKING, cast

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from diffmask.core.baselines import site_statistics
from diffmask.core.distributions import divergence
from diffmask.core.explainer import ForwardTrace
from diffmask.core.task import Task
from diffmask.core.training import generator, infinite_minibatches, progress_bar, seeded
from diffmask.methods.diffmask.diagnostics import diagnose, report
from diffmask.methods.diffmask.gated import GatedMaskExplainer
from diffmask.methods.diffmask.hard_concrete import HardConcrete
from diffmask.methods.diffmask.lagrangian import Multiplier, PIController
from diffmask.methods.diffmask.probe import Probe
from diffmask.methods.diffmask.settling import settle

if TYPE_CHECKING:
    from diffmask.methods.diffmask.diffmask import DiffMask


def build_gates(method: "DiffMask", task: Task, seed: int) -> GatedMaskExplainer:
    """Probes that leave every gate half open."""
    sites = method.sites or task.sites
    known = site_statistics(task, {task.sites[0], *sites}, method.statistics_rows)
    first = [known[task.sites[0]]] if method.reading == "both" else []
    start = start_logit(method.start, len(sites) if method.mask == "inputs" else 1, method.temperature[0])
    near = max(method.reach[0], 2 * abs(start))
    with seeded(seed, "diffmask"):
        probes = {
            site: Probe([*first, known[site]], method.probe_width, near, start, method.steepness) for site in sites
        }
        baselines = method.start_baselines(task, sites, known)
    return GatedMaskExplainer(
        task, method.mask, probes, baselines, reads_first=method.reading == "both", temperature=method.temperature[1]
    )


def train_gates(method: "DiffMask", explainer: GatedMaskExplainer, task: Task, seed: int) -> None:
    """Adam on probes and baseline, a controlled multiplier a site; one masked pass serves both."""
    loop = _Fit(method, explainer, task, generator(seed, "diffmask"))
    for step in progress_bar(range(method.steps), f"fit {method.label}"):
        loop.step(step / method.steps)
    explainer.temperature = method.temperature[1]
    if method.settle_rows:
        train = task.data["train"]
        drawn = torch.randperm(len(train), generator=generator(seed, "settle"))[: method.settle_rows]
        settle(explainer, train[drawn], method.site_margins(explainer.sites))
    explainer.diagnostics = diagnose(explainer, method.margin, loop.multipliers)
    report(explainer.diagnostics, method.label)


def start_logit(kept: float, votes: int, temperature: float) -> float:
    """The logit of each of `votes` gates that are all open with probability `kept`.

    >>> round(start_logit(0.5, 1, 1.0), 2), round(start_logit(0.5, 8, 1.0), 2)
    (-1.61, 0.79)
    """
    each = kept ** (1 / votes)
    return math.log(each / (1 - each)) - temperature * math.log(5)


class _Fit:
    """One run of the optimisation: what changes from step to step."""

    def __init__(self, method: "DiffMask", explainer: GatedMaskExplainer, task: Task, source: torch.Generator) -> None:
        self.method, self.explainer, self.task, self.source = method, explainer, task, source
        self.controller = PIController(
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
        self.optimizer = torch.optim.Adam(learned, lr=method.rate, betas=(0.9, 0.99))
        self.batches = infinite_minibatches(task.data["train"], method.batch_size, source, method.length_pool)
        self.multipliers = {site: Multiplier(self.controller, self._critical(site)) for site in explainer.sites}
        self.near = float(cast(Probe, explainer.probes[0]).reach)
        self.need = dict.fromkeys(explainer.sites, 1.0)

    def step(self, progress: float) -> None:
        """One clean pass, then a masked pass for each site drawn, and one update of everything."""
        self._schedule(progress)
        batch = next(self.batches)
        clean = ForwardTrace.of(self.task, batch)
        self.optimizer.zero_grad()
        for site in self._draw_sites():
            gates = self._gates(clean, site)
            masked = self.explainer.under(clean, site, gates.sample(self.source))
            caused = divergence(clean.answer, masked).mean()
            few = gates if self.method.mask == "states" else self._gates(clean, site, own=True)
            kept = self._sparsity(few.log_open(), batch.maskable)
            weight = self.multipliers[site].update(caused.item(), progress)
            ((kept + weight * caused) / (1 + weight)).backward()
            self._note_need(site, kept.item(), caused.item())
        self.optimizer.step()

    def _gates(self, clean: ForwardTrace, site: str, *, own: bool = False) -> HardConcrete:
        """The gates that are drawn.

        With `own`, those that are to be few: they close by the vote of their site alone, while every vote may be opened
        by the sites that follow. Otherwise early votes close for late ones, and break their own margin.
        """
        gates = self.explainer.gates(clean, site, own=own)
        return gates.alive(self.method.explore) if self.method.explore else gates

    def _schedule(self, progress: float) -> None:
        """Learning rate: a short rise, then half a cosine. Reach and temperature: geometrically, first to last."""
        far, (warm, cold) = self.method.reach[1], self.method.temperature
        self.explainer.temperature = warm * (cold / warm) ** min(1.0, progress / self.method.anneal)
        rise = min(1.0, progress * self.method.steps / 30 + 0.03)
        for group in self.optimizer.param_groups:
            group["lr"] = self.method.rate * rise * max(0.02, 0.5 * (1 + math.cos(math.pi * progress)))
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
