"""Fitting DiffMask for several margins: first what tokens add up to, then a threshold for every margin."""

import math
import warnings
from typing import TYPE_CHECKING

import torch

from diffmask.core.baselines import Baseline, site_statistics
from diffmask.core.distributions import divergence
from diffmask.core.task import Task
from diffmask.core.training import generator, infinite_minibatches, progress_bar, seeded
from diffmask.errors import FitWarning
from diffmask.methods.amortised.amortised import Amortised, split_held_out
from diffmask.methods.diffmask.calibration import calibrate, diagnose
from diffmask.methods.diffmask.lagrangian import Multiplier, PIController
from diffmask.methods.diffmask.nested import NestedMaskExplainer, Thresholds

if TYPE_CHECKING:
    from diffmask.methods.diffmask.diffmask import DiffMask


def build_margins(method: "DiffMask", task: Task, seed: int) -> NestedMaskExplainer:
    """A student that scores every token 0, thresholds that are the same for every text."""
    start = _ranking(method).build(task, seed)
    last = site_statistics(task, start.network.sites[-1:], method.statistics_rows)[start.network.sites[-1]]
    with seeded(seed, "margins"):
        thresholds = Thresholds(last, len(method.margins))
    margins = tuple(sorted(method.margins))
    return NestedMaskExplainer(task, start.network, thresholds, margins, start.baseline.detach(), method.temperature[1])


def train_margins(method: "DiffMask", explainer: NestedMaskExplainer, task: Task, seed: int) -> None:
    """Rank, then hold every margin, then set the thresholds where held-out texts hold it under hard masks."""
    ranking = _ranking(method)
    start = ranking.build(task, seed)
    ranking.train(start, task, seed)
    explainer.student.load_state_dict(start.network.state_dict())
    loop = _Fit(method, explainer, task, generator(seed, "margins"))
    for step in progress_bar(range(method.steps), f"fit {method.label}"):
        loop.step(step / method.steps)
    _, others = split_held_out(task, len(task.data["train"]))
    calibrate(explainer, others[::2].spread(max(method.settle_rows, 1)))
    explainer.diagnostics = diagnose(explainer, others[1::2].spread(512), loop.multipliers)
    for name, found in explainer.diagnostics.items():
        for problem, text in found["problems"].items():
            warnings.warn(f"{method.label} at {name}: {problem}: {text}", FitWarning, stacklevel=4)


def _ranking(method: "DiffMask") -> Amortised:
    """The student that margins start from; it learns from as many texts as the fit that follows."""
    baseline: Baseline = "mean" if method.baseline == "random" else method.baseline
    return Amortised(
        budget=f"{method.steps * method.batch_size} texts",
        sites=method.sites,
        baseline=baseline,
        held_out=64,
        statistics_rows=method.statistics_rows,
    )


class _Fit:
    """One run of the optimisation, a margin a step in turn."""

    def __init__(self, method: "DiffMask", explainer: NestedMaskExplainer, task: Task, source: torch.Generator) -> None:
        self.method, self.explainer, self.task, self.source = method, explainer, task, source
        learned = [
            {"params": [*explainer.thresholds.parameters(), explainer.gain], "lr": method.rate},
            {"params": list(explainer.student.parameters()), "lr": 0.03 * method.rate},
        ]
        self.optimizer = torch.optim.Adam(learned, betas=(0.9, 0.99))
        self.rates = [group["lr"] for group in self.optimizer.param_groups]
        self.batches = infinite_minibatches(task.data["train"], method.batch_size, source, method.length_pool)
        critical = self._critical()
        self.multipliers = [Multiplier(PIController(margin), critical) for margin in explainer.margins]

    def step(self, progress: float) -> None:
        """One clean pass, one masked pass, one update of everything."""
        for group, rate in zip(self.optimizer.param_groups, self.rates, strict=True):
            group["lr"] = rate * max(0.02, 0.5 * (1 + math.cos(math.pi * progress)))
        index = int(torch.randint(len(self.multipliers), (1,), generator=self.source))
        batch = next(self.batches)
        answer, states = self.task.trace(batch)
        gates = self.explainer.gates(answer, states, batch)
        gate = gates.sample(self.source)[:, index]
        caused = divergence(answer, self.task.predict(batch, self.explainer.edits(gate, batch.maskable))).mean()
        opened = gates.open()[:, index] * batch.maskable
        kept = (opened.sum(dim=1) / batch.maskable.sum(dim=1).clamp(min=1)).mean()
        weight = self.multipliers[index].value
        price = (kept + weight * caused) / (1 + weight)
        if self.method.breaks:
            removed = self.task.predict(batch, self.explainer.edits(1 - gate, batch.maskable))
            # One nat is broken enough: more would only reward surprise.
            price = price - self.method.breaks * divergence(answer, removed).clamp(max=1.0).mean()
        self.optimizer.zero_grad()
        price.backward()
        self.optimizer.step()
        self.multipliers[index].update(caused.item(), progress)

    @torch.no_grad()
    def _critical(self) -> float:
        """1 / KL(original || everything masked), within reason."""
        batch = self.task.data["train"][: self.method.batch_size].trim()
        shut = self.explainer.edits(torch.zeros(batch.tokens.shape), batch.maskable)
        caused = divergence(self.task.predict(batch), self.task.predict(batch, shut)).mean().item()
        return min(max(1 / max(caused, 1e-3), 0.1), 100.0)
