"""Integrated gradients: the gradient, averaged along a path from a baseline. Sundararajan et al. 2017."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn

from diffmask.answer import log_odds
from diffmask.batch import Attribution, Batch
from diffmask.errors import RecipeError
from diffmask.method import Explainer, Method
from diffmask.probe import mask_state, site_statistics
from diffmask.task import Task

State = Float[Tensor, "row token width"]


@dataclass(frozen=True, kw_only=True)
class IntegratedGradient(Method):
    """score_t = (h_t - b) . mean over a in (0, 1) of grad f(b + a (h - b)), f the log-odds of the outcome."""

    name: ClassVar[str] = "integrated-gradient"

    site: str | None = None
    """Where the path runs; the token embedding where none is named."""
    steps: int = 64
    """Points of the path, at the middles of equal parts."""
    baseline: Literal["zero", "mean", "mask"] = "zero"
    signed: bool = False
    """Whether tokens that speak against the outcome score below zero, or by their size."""
    as_published: bool = False
    """The variant two published systems shipped: each gradient weighted once more by its place on the path."""

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise RecipeError(f"integrated-gradient: steps must be at least 1; found {self.steps}")

    def build(self, task: Task, seed: int) -> "IntegratedGradientExplainer":
        """The baseline is taken from the training rows."""
        return IntegratedGradientExplainer(self, task, self.site_of(task, self.site))

    def path(self) -> Float[Tensor, " step"]:
        """Places on the path, from 0 to 1."""
        if self.as_published:
            return torch.linspace(0, 1, self.steps)
        return (torch.arange(self.steps) + 0.5) / self.steps


class IntegratedGradientExplainer(Explainer):
    """Gradients along the path; `completeness_error` says how far the last scores were from adding up."""

    def __init__(self, method: IntegratedGradient, task: Task, site: str) -> None:
        super().__init__(task)
        self.method, self.site = method, site
        start = {
            "zero": lambda: torch.zeros_like(site_statistics(task, [site], rows=1)[site].mean),
            "mean": lambda: site_statistics(task, [site], rows=2000)[site].mean,
            "mask": lambda: mask_state(task, site),
        }
        self.baseline = nn.Parameter(start[method.baseline](), requires_grad=False)
        self.completeness_error = float("nan")

    def explain(self, batch: Batch, target: Shaped[Tensor, "row *event"]) -> Attribution:
        """Rows are copied so that several points of the path share a pass."""
        _, states = self.task.trace(batch)
        state = states[self.site]
        start = torch.where(batch.present[..., None], self.baseline, state)
        total = torch.zeros_like(state)
        for places in self.method.path().split(max(1, 256 // len(batch))):
            total += self._gradients(batch, target, start, state, places)
        scores = ((state - start) * total / self.method.steps).sum(dim=-1)
        self.completeness_error = self._completeness(batch, target, start, scores)
        return Attribution(scores if self.method.signed else scores.abs())

    def _gradients(
        self,
        batch: Batch,
        target: Shaped[Tensor, "row *event"],
        start: State,
        state: State,
        places: Float[Tensor, " step"],
    ) -> State:
        """Sum of the gradients at some places of the path."""
        copies = len(places)
        where = places.repeat(len(batch))[:, None, None]
        first, last = start.repeat_interleave(copies, dim=0), state.repeat_interleave(copies, dim=0)
        point = (first + where * (last - first)).requires_grad_()
        answer = self.task.predict(batch.repeat(copies), {self.site: lambda _: point})
        (gradient,) = torch.autograd.grad(log_odds(answer, target.repeat_interleave(copies, dim=0)).sum(), point)
        weighted = gradient * where if self.method.as_published else gradient
        return weighted.unflatten(0, (len(batch), copies)).sum(dim=1)

    @torch.no_grad()
    def _completeness(
        self, batch: Batch, target: Shaped[Tensor, "row *event"], start: State, scores: Float[Tensor, "row token"]
    ) -> float:
        """mean |sum of scores - change of f| / mean |change of f|."""
        end = log_odds(self.task.predict(batch), target)
        begin = log_odds(self.task.predict(batch, {self.site: lambda _: start}), target)
        return float((scores.sum(dim=1) - (end - begin)).abs().mean() / (end - begin).abs().mean().clamp(min=1e-12))
