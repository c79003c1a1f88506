"""Gradient: how steeply the answer changes with each token's state. Simonyan et al. 2014.

Input times gradient: what a token's state adds to the answer, to first order. Shrikumar et al. 2017.

Integrated gradients: the gradient, averaged along a path from a baseline. Sundararajan et al. 2017.
"""

import logging
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn

from diffmask.core.baselines import Baseline, baseline_state
from diffmask.core.batch import Attribution, Batch
from diffmask.core.distributions import Quantity, target_score
from diffmask.core.explainer import Explainer, Method
from diffmask.core.resources import AdaptiveBatchSize
from diffmask.core.task import Task
from diffmask.errors import ConfigError, TaskError

State = Float[Tensor, "row token width"]


@dataclass(frozen=True, kw_only=True)
class Gradient(Method):
    """score_t = ||d log p(target) / d h_t||, in the L1 or L2 norm.

    With `one_hot`, ||W d log p / d h_t||_2: the gradient to the one-hot token, as in Madsen et al. 2022 (ROAR).
    """

    name: ClassVar[str] = "gradient"

    site: str | None = None
    """Where the gradient is taken; the token embedding where none is named."""
    norm: Literal["l1", "l2"] = "l2"
    quantity: Quantity = "log-probability"
    """What is differentiated; log-odds keep a slope where a probability is near 1."""
    one_hot: bool = False
    """Measure the gradient to the one-hot token instead, W being the embedding matrix; L2 only."""

    def __post_init__(self) -> None:
        if self.one_hot and self.norm == "l1":
            raise ConfigError("gradient: one_hot has an L2 norm only; leave norm at 'l2'")

    def build(self, task: Task, seed: int) -> "GradientExplainer":
        """With `one_hot` the site must be the output of an embedding."""
        site = self.site_of(task, self.site)
        return GradientExplainer(self, task, site, gram(task, site) if self.one_hot else None)


class GradientExplainer(Explainer):
    """One forward and one backward pass a batch."""

    gram: Tensor | None

    def __init__(
        self, method: Gradient, task: Task, site: str, gram: Float[Tensor, "width width"] | None = None
    ) -> None:
        super().__init__(task)
        self.method, self.site = method, site
        self.register_buffer("gram", gram, persistent=False)

    def explain(self, batch: Batch, target: Shaped[Tensor, "row *event"]) -> Attribution:
        """||W g||^2 = g' (W'W) g, so that no tensor has the vocabulary's size."""
        steep = slope(self.task, batch, target, self.site, self.method.quantity)
        if self.gram is not None:
            return Attribution(((steep @ self.gram) * steep).sum(dim=-1).clamp(min=0).sqrt())
        return Attribution(steep.norm(p={"l1": 1, "l2": 2}[self.method.norm], dim=-1))


def gram(task: Task, site: str) -> Float[Tensor, "width width"]:
    """W'W of the embedding whose output the site is."""
    place = task.site(site)
    module = task.model.get_submodule(place.module)
    if place.side != "output" or not isinstance(module, nn.Embedding):
        raise TaskError(
            f"gradient: one_hot needs the output of an nn.Embedding; site '{site}' is the {place.side} of "
            f"{type(module).__name__} '{place.module}'"
        )
    return module.weight.T @ module.weight


def slope(
    task: Task,
    batch: Batch,
    target: Shaped[Tensor, "row *event"],
    site: str,
    quantity: Quantity,
    state: State | None = None,
) -> State:
    """d quantity(answer, target) / d state at a site, at the model's own state or at another."""
    leaves: list[Tensor] = []

    def branch(own: State) -> State:
        leaves.append((own if state is None else state).detach().requires_grad_())
        return leaves[0]

    with torch.enable_grad():
        value = target_score(task.predict(batch, {site: branch}), target, quantity)
        (found,) = torch.autograd.grad(value.sum(), leaves)
    return found


@dataclass(frozen=True, kw_only=True)
class InputXGradient(Method):
    """score_t = |h_t . d f / d h_t|, f the log-odds of the outcome; with its sign if `signed`."""

    name: ClassVar[str] = "input-x-gradient"

    site: str | None = None
    """Where state and gradient are taken; the token embedding where none is named."""
    quantity: Quantity = "log-odds"
    """What is differentiated."""
    signed: bool = False
    """Whether tokens that speak against the outcome score below zero, or by their size."""

    def build(self, task: Task, seed: int) -> "InputXGradientExplainer":
        """Nothing to allocate."""
        return InputXGradientExplainer(self, task, self.site_of(task, self.site))


class InputXGradientExplainer(Explainer):
    """Two forward passes and one backward pass a batch."""

    def __init__(self, method: InputXGradient, task: Task, site: str) -> None:
        super().__init__(task)
        self.method, self.site = method, site

    def explain(self, batch: Batch, target: Shaped[Tensor, "row *event"]) -> Attribution:
        """The gradient is taken at the very state it is multiplied with."""
        _, states = self.task.trace(batch)
        state = states[self.site]
        scores = (state * slope(self.task, batch, target, self.site, self.method.quantity, state)).sum(dim=-1)
        return Attribution(scores if self.method.signed else scores.abs())


logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class IntegratedGradients(Method):
    """score_t = (h_t - b) . mean over a in (0, 1) of grad f(b + a (h - b)), f the log-odds of the outcome."""

    name: ClassVar[str] = "integrated-gradients"

    site: str | None = None
    """Where the path runs; the token embedding where none is named."""
    n_steps: int = 64
    """Points of the path."""
    path: Literal["middle", "ends", "right"] | None = None
    """Where the points lie: in the middle of n equal parts, from 0 to 1 (De Cao et al.), or at i / n (Madsen et al.).

    Where none is named, in the middle; from 0 to 1 with `as_published`.
    """
    baseline: Baseline = "zero"
    """Where the path starts."""
    quantity: Quantity = "log-odds"
    """What is differentiated."""
    signed: bool = False
    """Whether tokens that speak against the outcome score below zero, or by their size."""
    as_published: bool = False
    """The variant two published systems shipped: each gradient weighted once more by its place on the path."""
    internal_batch_size: int = 256
    """Rows the model is given at once, each point of a row's path counted."""

    def __post_init__(self) -> None:
        if min(self.n_steps, self.internal_batch_size) < 1:
            raise ConfigError(
                f"integrated-gradients: n_steps and internal_batch_size are at least 1; found {self.n_steps} and "
                f"{self.internal_batch_size}"
            )

    def build(self, task: Task, seed: int) -> "IntegratedGradientExplainer":
        """The baseline is taken from the training rows."""
        site = self.site_of(task, self.site)
        return IntegratedGradientExplainer(self, task, site, baseline_state(task, site, self.baseline))

    def places(self) -> Float[Tensor, " step"]:
        """Places on the path, from 0 to 1."""
        path = self.path or ("ends" if self.as_published else "middle")
        if path == "ends":
            return torch.linspace(0, 1, self.n_steps)
        return (torch.arange(self.n_steps) + (0.5 if path == "middle" else 1.0)) / self.n_steps


class IntegratedGradientExplainer(Explainer):
    """Gradients along the path; `completeness_error` says how far the last call's scores were from adding up."""

    def __init__(self, method: IntegratedGradients, task: Task, site: str, baseline: Float[Tensor, " width"]) -> None:
        super().__init__(task)
        self.method, self.site = method, site
        self.baseline = nn.Parameter(baseline, requires_grad=False)
        self.portion = AdaptiveBatchSize(method.internal_batch_size)
        self._gap = self._change = 0.0

    @property
    def completeness_error(self) -> float:
        """sum |sum_t score_t - (f(h) - f(b))| / sum |f(h) - f(b)| over the rows of the last call."""
        return self._gap / max(self._change, 1e-12)

    def forward(self, batch: Batch, *arguments: Any, **options: Any) -> Attribution:
        """As every explainer; the completeness error of the call is kept and, where it is large, logged."""
        self._gap = self._change = 0.0
        found = super().forward(batch, *arguments, **options)
        self.diagnostics = {self.site: {"completeness_error": self.completeness_error, "problems": self._problems()}}
        return found

    def _problems(self) -> dict[str, str]:
        if self.completeness_error <= 0.01 or self.method.as_published:
            return {}
        text = f"scores are {self.completeness_error:.1%} off what they must add up to; raise n_steps"
        logger.warning("%s: %s", self.method.label, text)
        return {"completeness": text}

    def explain(self, batch: Batch, target: Shaped[Tensor, "row *event"]) -> Attribution:
        """Rows are copied so that several points of the path share a pass."""
        _, states = self.task.trace(batch)
        state = states[self.site]
        start = torch.where(batch.present[..., None], self.baseline, state)
        places = self.method.places().to(state)

        def sum_gradients(items: slice) -> State:
            return self._gradients(batch, target, start, state, places[items])

        total = sum(self.portion.split(len(places), sum_gradients, rows_each=len(batch)))
        scores = ((state - start) * total / len(places)).sum(dim=-1)
        self._check(batch, target, start, scores)
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
        outcome = target.repeat_interleave(copies, dim=0)
        point = first + where * (last - first)
        gradient = slope(self.task, batch.repeat(copies), outcome, self.site, self.method.quantity, point)
        weighted = gradient * where if self.method.as_published else gradient
        return weighted.unflatten(0, (len(batch), copies)).sum(dim=1)

    @torch.no_grad()
    def _check(
        self, batch: Batch, target: Shaped[Tensor, "row *event"], start: State, scores: Float[Tensor, "row token"]
    ) -> None:
        """Add this part of the call to its completeness error."""
        end, begin = (
            target_score(self.task.predict(batch, edits), target, self.method.quantity)
            for edits in ({}, {self.site: lambda _: start})
        )
        self._gap += float((scores.sum(dim=1) - (end - begin)).abs().sum())
        self._change += float((end - begin).abs().sum())
