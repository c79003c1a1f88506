"""Gradient methods: gradient norm, input times gradient, integrated gradients.

Simonyan et al. 2014; Shrikumar et al. 2017; Sundararajan et al. 2017.
"""

import logging
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn

from diffmask.core.baseline_states import Baseline, BaselineExplainer, baseline_state
from diffmask.core.batch import Attribution, Batch
from diffmask.core.distributions import Quantity, target_score
from diffmask.core.explainer import Explainer, Method
from diffmask.core.task import Task
from diffmask.errors import ConfigError, TaskError

logger = logging.getLogger(__name__)

State = Float[Tensor, "row token width"]


@dataclass(frozen=True, kw_only=True)
class Gradient(Method):
    """score_t = ||d log p(target) / d h_t||, in the L1 or L2 norm. Simonyan et al. 2014.

    With `one_hot`, ||W d log p / d h_t||_2: the gradient to the one-hot token, as in Madsen et al. 2022 (ROAR).
    """

    name: ClassVar[str] = "gradient"

    site: str | None = None
    """Site of the gradient. Default: the token embedding."""
    norm: Literal["l1", "l2"] = "l2"
    """Norm over the width."""
    quantity: Quantity = "log-probability"
    """Quantity that is differentiated; log-odds do not saturate at probabilities near 1."""
    one_hot: bool = False
    """Whether to use the gradient to the one-hot token, W being the embedding matrix; L2 norm only."""

    def __post_init__(self) -> None:
        if self.one_hot and self.norm == "l1":
            raise ConfigError("gradient: one_hot has an L2 norm only; leave norm at 'l2'")

    def build(self, task: Task, seed: int) -> "GradientExplainer":
        """Check, with `one_hot`, that the site is the output of an embedding."""
        site = self.site_of(task, self.site)
        return GradientExplainer(self, task, site, embedding_gram(task, site) if self.one_hot else None)


class GradientExplainer(Explainer):
    """Explainer that takes one forward and one backward pass per batch."""

    gram: Tensor | None

    def __init__(
        self, method: Gradient, task: Task, site: str, gram: Float[Tensor, "width width"] | None = None
    ) -> None:
        super().__init__(task)
        self.method, self.site = method, site
        self.register_buffer("gram", gram, persistent=False)

    def explain(self, batch: Batch, target: Shaped[Tensor, "row *event"]) -> Attribution:
        """Return the norm of the gradient; ||W g||^2 = g' (W'W) g needs no tensor of the vocabulary's size."""
        gradient = state_gradient(self.task, batch, target, self.site, self.method.quantity)
        if self.gram is not None:
            return Attribution(((gradient @ self.gram) * gradient).sum(dim=-1).clamp(min=0).sqrt())
        return Attribution(gradient.norm(p={"l1": 1, "l2": 2}[self.method.norm], dim=-1))


def embedding_gram(task: Task, site: str) -> Float[Tensor, "width width"]:
    """Return W'W of the embedding whose output is the site."""
    location = task.site(site)
    module = task.model.get_submodule(location.module)
    if location.side != "output" or not isinstance(module, nn.Embedding):
        raise TaskError(
            f"gradient: one_hot needs the output of an nn.Embedding; site '{site}' is the {location.side} of "
            f"{type(module).__name__} '{location.module}'"
        )
    return module.weight.T @ module.weight


def state_gradient(
    task: Task,
    batch: Batch,
    target: Shaped[Tensor, "row *event"],
    site: str,
    quantity: Quantity,
    state: State | None = None,
) -> State:
    """Return d quantity(prediction, target) / d state at a site, at the model's own state or at another."""
    leaves: list[Tensor] = []

    def make_leaf(original: State) -> State:
        leaves.append((original if state is None else state).detach().requires_grad_())
        return leaves[0]

    with torch.enable_grad():
        value = target_score(task.predict(batch, {site: make_leaf}), target, quantity)
        (gradient,) = torch.autograd.grad(value.sum(), leaves)
    return gradient


@dataclass(frozen=True, kw_only=True)
class InputXGradient(Method):
    """score_t = |h_t . d f / d h_t|, f the log-odds of the outcome; signed on request. Shrikumar et al. 2017."""

    name: ClassVar[str] = "input-x-gradient"

    site: str | None = None
    """Site of state and gradient. Default: the token embedding."""
    quantity: Quantity = "log-odds"
    """Quantity that is differentiated."""
    signed: bool = False
    """Whether scores keep their sign; without it they are absolute values."""

    def build(self, task: Task, seed: int) -> "InputXGradientExplainer":
        """Return the explainer; there is nothing to fit."""
        return InputXGradientExplainer(self, task, self.site_of(task, self.site))


class InputXGradientExplainer(Explainer):
    """Explainer that takes two forward passes and one backward pass per batch."""

    def __init__(self, method: InputXGradient, task: Task, site: str) -> None:
        super().__init__(task)
        self.method, self.site = method, site

    def explain(self, batch: Batch, target: Shaped[Tensor, "row *event"]) -> Attribution:
        """Multiply the state by the gradient at this state."""
        _, states = self.task.trace(batch)
        state = states[self.site]
        scores = (state * state_gradient(self.task, batch, target, self.site, self.method.quantity, state)).sum(dim=-1)
        return Attribution(scores if self.method.signed else scores.abs())


@dataclass(frozen=True, kw_only=True)
class IntegratedGradients(Method):
    """score_t = (h_t - b) . mean over a in (0, 1) of grad f(b + a (h - b)), f the log-odds of the outcome.

    Sundararajan et al. 2017.
    """

    name: ClassVar[str] = "integrated-gradients"

    site: str | None = None
    """Site of the path. Default: the token embedding."""
    n_steps: int = 64
    """Points on the path."""
    path: Literal["middle", "ends", "right"] | None = None
    """Points: midpoints of n equal parts, from 0 to 1 inclusive (De Cao et al.), or i / n (Madsen et al.).

    Default: midpoints; with `as_published`, from 0 to 1.
    """
    baseline: Baseline = "zero"
    """State at the start of the path."""
    quantity: Quantity = "log-odds"
    """Quantity that is differentiated."""
    signed: bool = False
    """Whether scores keep their sign; without it they are absolute values."""
    as_published: bool = False
    """Whether to weight each gradient by its position on the path, as two published systems do by mistake."""
    internal_batch_size: int = 256
    """Rows per forward pass, points of a path included."""

    def __post_init__(self) -> None:
        if min(self.n_steps, self.internal_batch_size) < 1:
            raise ConfigError(
                f"integrated-gradients: n_steps and internal_batch_size must be at least 1; got {self.n_steps} and "
                f"{self.internal_batch_size}"
            )

    def build(self, task: Task, seed: int) -> "IntegratedGradientsExplainer":
        """Take the baseline from the training rows."""
        site = self.site_of(task, self.site)
        return IntegratedGradientsExplainer(self, task, site, baseline_state(task, site, self.baseline))

    def alphas(self) -> Float[Tensor, " step"]:
        """Return the positions on the path, from 0 to 1."""
        path = self.path or ("ends" if self.as_published else "middle")
        if path == "ends":
            return torch.linspace(0, 1, self.n_steps)
        return (torch.arange(self.n_steps) + (0.5 if path == "middle" else 1.0)) / self.n_steps


class IntegratedGradientsExplainer(BaselineExplainer[IntegratedGradients]):
    """Explainer that averages gradients along the path; `completeness_error` is that of the last call."""

    def __init__(self, method: IntegratedGradients, task: Task, site: str, baseline: Float[Tensor, " width"]) -> None:
        super().__init__(method, task, site, baseline)
        self._gap = self._change = 0.0

    @property
    def completeness_error(self) -> float:
        """sum |sum_t score_t - (f(h) - f(b))| / sum |f(h) - f(b)| over the rows of the last call."""
        return self._gap / max(self._change, 1e-12)

    def forward(self, batch: Batch, *arguments: Any, **options: Any) -> Attribution:
        """Explain a batch, store the completeness error of the call, and log a warning if it is large."""
        self._gap = self._change = 0.0
        attribution = super().forward(batch, *arguments, **options)
        self.diagnostics = {self.site: {"completeness_error": self.completeness_error, "problems": self._problems()}}
        return attribution

    def _problems(self) -> dict[str, str]:
        if self.completeness_error <= 0.01 or self.method.as_published:
            return {}
        text = f"the scores miss f(x) - f(baseline) by {self.completeness_error:.1%}; raise n_steps"
        logger.warning("%s: %s", self.method.label, text)
        return {"completeness": text}

    def explain(self, batch: Batch, target: Shaped[Tensor, "row *event"]) -> Attribution:
        """Average gradients over the path; several points share a forward pass."""
        _, states = self.task.trace(batch)
        state = states[self.site]
        start = torch.where(batch.present[..., None], self.baseline, state)
        alphas = self.method.alphas().to(state)

        def sum_gradients(items: slice) -> State:
            return self._gradients(batch, target, start, state, alphas[items])

        total = sum(self.portion.split(len(alphas), sum_gradients, rows_each=len(batch)))
        scores = ((state - start) * total / len(alphas)).sum(dim=-1)
        self._check(batch, target, start, scores)
        return Attribution(scores if self.method.signed else scores.abs())

    def _gradients(
        self,
        batch: Batch,
        target: Shaped[Tensor, "row *event"],
        start: State,
        state: State,
        alphas: Float[Tensor, " step"],
    ) -> State:
        """Return the sum of the gradients at the given positions on the path."""
        copies = len(alphas)
        alpha = alphas.repeat(len(batch))[:, None, None]
        first, last = start.repeat_interleave(copies, dim=0), state.repeat_interleave(copies, dim=0)
        outcome = target.repeat_interleave(copies, dim=0)
        point = first + alpha * (last - first)
        gradient = state_gradient(self.task, batch.repeat(copies), outcome, self.site, self.method.quantity, point)
        weighted = gradient * alpha if self.method.as_published else gradient
        return weighted.unflatten(0, (len(batch), copies)).sum(dim=1)

    @torch.no_grad()
    def _check(
        self, batch: Batch, target: Shaped[Tensor, "row *event"], start: State, scores: Float[Tensor, "row token"]
    ) -> None:
        """Add these rows to the completeness error of the call."""
        end, begin = (
            target_score(self.task.predict(batch, edits), target, self.method.quantity)
            for edits in ({}, {self.site: lambda _: start})
        )
        self._gap += float((scores.sum(dim=1) - (end - begin)).abs().sum())
        self._change += float((end - begin).abs().sum())
