"""DiffMask without a probe: one free logit per token, optimised anew for every text. De Cao et al. 2020, ablation.

The paper uses it to show the benefit of amortisation: a search per input can select tokens by hindsight.
`PerInputDiffMask` relaxes the gates to hard concrete ones; `PerInputReinforce` samples binary gates and uses the
score-function gradient.
"""

import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn
from torch.distributions import Bernoulli, Distribution

from diffmask.core.baseline_states import Baseline, baseline_state
from diffmask.core.batch import Attribution, Batch
from diffmask.core.distributions import divergence
from diffmask.core.explainer import Explainer, Method
from diffmask.core.hooks import exclusive, interpolate
from diffmask.core.task import Task
from diffmask.core.training import generator
from diffmask.errors import ConfigError
from diffmask.methods.diffmask.hard_concrete import HardConcrete
from diffmask.methods.diffmask.lagrangian import PIController, RowMultipliers

logger = logging.getLogger(__name__)

Gates = Float[Tensor, "row token"]


@dataclass(frozen=True, kw_only=True)
class PerInputMaskMethod(Method, ABC):
    """Fewest open gates subject to KL(original || masked) <= margin, for each row by itself."""

    revision: ClassVar[int] = 1

    site: str | None = None
    """Site whose states are masked; by default the token embedding."""
    margin: float = 0.1
    """Largest allowed KL(original || masked), in nats."""
    baseline: Baseline = "mean"
    """State that replaces an erased one."""
    steps: int = 300
    """Optimiser steps per row."""
    learning_rate: float = 0.1
    """Learning rate of Adam."""
    initial_logit: float = 0.0
    """Logit of every gate at the start."""
    max_logit: float = 10.0
    """Bound of the logits' absolute value."""

    def __post_init__(self) -> None:
        if not 0 <= self.margin < math.inf or self.steps < 1:
            raise ConfigError(f"{self.name}: margin must not be negative and steps must be at least 1")


class PerInputMaskExplainer(Explainer, ABC):
    """Explainer that optimises the gates of one row after the other, so that they do not depend on other rows.

    In a batch, rounding errors of single precision depend on the other rows and grow from step to step: after 300 steps
    some gates of a row in a batch differed by 0.3 from those of the row alone.
    """

    explains_target: ClassVar[bool] = False
    max_rows_at_once: ClassVar[int | None] = 1

    seed: Tensor

    def __init__(self, method: PerInputMaskMethod, task: Task, site: str, seed: int) -> None:
        super().__init__(task)
        self.method, self.site = method, site
        self._caused: list[Float[Tensor, " row"]] = []
        self.register_buffer("seed", torch.tensor(seed))
        self.baseline = nn.Parameter(baseline_state(task, site, method.baseline), requires_grad=False)

    @abstractmethod
    def open_probability(self, logits: Gates) -> Gates:
        """Return P(z > 0)."""

    @abstractmethod
    def sampled_divergence(
        self, rows: "MaskedRows", logits: Gates, step: int
    ) -> tuple[Float[Tensor, " row"], Float[Tensor, " row"]]:
        """Return a term whose gradient estimates that of E[KL], and the KL of the sampled masks."""

    def explain(self, batch: Batch, target: Shaped[Tensor, "row *event"]) -> Attribution:
        """Optimise the gates; losses are summed over rows, so that no row changes the step size of another."""
        answer, states = self.task.trace(batch)
        rows = MaskedRows(self.task, batch, answer, self.site, states[self.site], self.baseline)
        logits = states[self.site].new_full(batch.tokens.shape, self.method.initial_logit).requires_grad_()
        optimizer = torch.optim.Adam([logits], lr=self.method.learning_rate, betas=(0.9, 0.99))
        full_mask_kl = rows.divergence(torch.zeros_like(logits)).detach()
        multipliers = RowMultipliers(PIController(self.method.margin), full_mask_kl)
        for step in range(self.method.steps):
            optimizer.zero_grad()
            term, sampled = self.sampled_divergence(rows, logits, step)
            weight = multipliers.value
            ((rows.share(self.open_probability(logits)) + weight * term) / (1 + weight)).sum().backward()
            optimizer.step()
            logits.data.clamp_(-self.method.max_logit, self.method.max_logit)
            multipliers.update(sampled.detach(), step / self.method.steps)
        keep = self.open_probability(logits.detach())
        self._caused.append(rows.divergence((keep > 0.5).to(keep)).detach())
        return Attribution(keep)

    def _by_length(
        self, batch: Batch, rows_at_once: int, explain: Callable[[Batch, Tensor], Attribution]
    ) -> tuple[list[Attribution], Int[Tensor, " row"]]:
        """Explain row by row, and report once for all rows."""
        with exclusive(self.task.model):
            self._caused = []
            explained = super()._by_length(batch, rows_at_once, explain)
            self._report(torch.cat(self._caused))
        return explained

    def uniform(self, step: int, samples: int, tokens: int) -> Float[Tensor, "sample token"]:
        """Draw numbers in (0, 1) that all rows share and that do not change if rows are padded."""
        source = generator(int(self.seed), self.method.name, step)
        return torch.rand(tokens, samples, generator=source, dtype=torch.float64).T.to(self.baseline.device)

    def _report(self, caused: Float[Tensor, " row"]) -> None:
        share = (caused > 1.05 * self.method.margin + 1e-9).float().mean().item()
        if share > 0.1:
            text = "%s: of %d masks %.0f %% change the prediction by more than the margin; raise steps"
            logger.warning(text, self.method.label, len(caused), 100 * share)


@dataclass(frozen=True)
class MaskedRows:
    """A batch with its states, masked again and again while its gates are optimised."""

    task: Task
    batch: Batch
    answer: Distribution
    site: str
    state: Float[Tensor, "row token width"]
    baseline: Float[Tensor, " width"]

    def divergence(self, gate: Gates) -> Float[Tensor, " row"]:
        """Return KL(original || masked) per row."""
        masked = interpolate(gate.to(self.state), self.baseline, self.batch.maskable)(self.state)
        return divergence(self.answer, self.task.predict(self.batch, {self.site: lambda _: masked}))

    def share(self, open_probability: Gates) -> Float[Tensor, " row"]:
        """Return the mean over a row's maskable tokens."""
        maskable = self.batch.maskable
        return (open_probability * maskable).sum(dim=1) / maskable.sum(dim=1).clamp(min=1)


@dataclass(frozen=True, kw_only=True)
class PerInputDiffMask(PerInputMaskMethod):
    """Fewest open hard concrete gates subject to KL(original || masked) <= margin, for each row by itself."""

    name: ClassVar[str] = "diffmask-per-input"

    temperature: float = 0.2
    """Temperature of the gates."""

    def build(self, task: Task, seed: int) -> "PerInputExplainer":
        """Allocate the explainer; its baseline comes from the training rows."""
        return PerInputExplainer(self, task, self.site_of(task, self.site), seed)


class PerInputExplainer(PerInputMaskExplainer):
    """Gradients pass through the gates and the model: one forward and one backward pass per step."""

    method: PerInputDiffMask

    def open_probability(self, logits: Gates) -> Gates:
        """Return P(z > 0) of hard concrete gates."""
        return HardConcrete(logits, self.method.temperature).open_probability()

    def sampled_divergence(
        self, rows: MaskedRows, logits: Gates, step: int
    ) -> tuple[Float[Tensor, " row"], Float[Tensor, " row"]]:
        """Return the differentiable KL of one sample of the gates, twice."""
        uniform = self.uniform(step, 1, logits.shape[1])[0]
        caused = rows.divergence(HardConcrete(logits, self.method.temperature).from_uniform(uniform))
        return caused, caused


@dataclass(frozen=True, kw_only=True)
class PerInputReinforce(PerInputMaskMethod):
    """Gradient d E[KL] = E[(KL - m) d log p(z)], z ~ Bernoulli, m a moving average of a row's KL. Williams 1992.

    The published code leaves the multiplier out of this term. Here it weights the term, as in the objective.
    """

    name: ClassVar[str] = "diffmask-reinforce"

    samples: int = 4
    """Masks sampled per step; each is a forward pass."""
    memory: float = 0.9
    """Weight of the past in the moving average."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.samples < 1 or not 0 <= self.memory < 1:
            raise ConfigError("diffmask-reinforce: samples must be at least 1, memory at least 0 and below 1")

    def build(self, task: Task, seed: int) -> "ReinforceExplainer":
        """Allocate the explainer; its baseline comes from the training rows."""
        return ReinforceExplainer(self, task, self.site_of(task, self.site), seed)


class ReinforceExplainer(PerInputMaskExplainer):
    """Binary gates by the score-function gradient, without gradients of the model."""

    method: PerInputReinforce
    _moving_average: Tensor

    def open_probability(self, logits: Gates) -> Gates:
        """Return P(z = 1)."""
        return torch.sigmoid(logits)

    def sampled_divergence(
        self, rows: MaskedRows, logits: Gates, step: int
    ) -> tuple[Float[Tensor, " row"], Float[Tensor, " row"]]:
        """Return a term whose gradient is the score-function estimate, and the mean KL of the samples."""
        uniform = self.uniform(step, self.method.samples, logits.shape[1])
        samples = [(number < self.open_probability(logits.detach())).to(logits) for number in uniform]
        with torch.no_grad():
            sampled = torch.stack([rows.divergence(gate) for gate in samples])
        if step == 0:
            self._moving_average = sampled.mean(dim=0)
        gates = Bernoulli(logits=logits, validate_args=False)
        log_probability = torch.stack([(gates.log_prob(gate) * rows.batch.maskable).sum(dim=1) for gate in samples])
        term = ((sampled - self._moving_average) * log_probability).mean(dim=0)
        self._moving_average = torch.lerp(sampled.mean(dim=0), self._moving_average, self.method.memory)
        return term, sampled.mean(dim=0)
