"""Masks searched for one text at a time: a free logit a token, fewest open gates within the margin.

De Cao et al. 2020 use it to show what amortising buys: a search without a probe can pick what only hindsight knows.

DiffMask without a probe: hard concrete gates found anew for every text. De Cao et al. 2020, ablation.

DiffMask without relaxed gates: binary masks, found by the score-function gradient. De Cao et al. 2020, ablation.
"""

import logging
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn
from torch.distributions import Bernoulli, Distribution

from diffmask.core.baselines import Baseline, baseline_state
from diffmask.core.batch import Attribution, Batch
from diffmask.core.distributions import divergence
from diffmask.core.explainer import Explainer, Method
from diffmask.core.task import Task
from diffmask.core.training import generator
from diffmask.errors import ConfigError
from diffmask.methods.diffmask.hard_concrete import HardConcrete
from diffmask.methods.diffmask.lagrangian import PIController, RowMultipliers

logger = logging.getLogger(__name__)

Gates = Float[Tensor, "row token"]


@dataclass(frozen=True, kw_only=True)
class FreeGates(Method, ABC):
    """Fewest open gates subject to KL(original || masked) <= margin, for each row by itself."""

    site: str | None = None
    """Where states are masked; the token embedding where none is named."""
    margin: float = 0.1
    """Largest divergence from the original answer that masking may cause, in nats."""
    baseline: Baseline = "mean"
    """What a masked state is replaced by."""
    steps: int = 300
    learning_rate: float = 0.1
    start: float = 0.0
    """Every gate's logit at the start."""
    reach: float = 10.0
    """Largest size of a logit."""

    def __post_init__(self) -> None:
        if self.margin < 0 or self.steps < 1:
            raise ConfigError(f"{self.name}: margin must not be negative, and steps are at least 1")


class FreeGatesExplainer(Explainer, ABC):
    """Optimises its gates anew for every batch; a row's gates depend on no other row."""

    seed: Tensor

    def __init__(self, method: FreeGates, task: Task, site: str, seed: int) -> None:
        super().__init__(task)
        self.method, self.site = method, site
        self.register_buffer("seed", torch.tensor(seed))
        self.baseline = nn.Parameter(baseline_state(task, site, method.baseline), requires_grad=False)

    @abstractmethod
    def open(self, logits: Gates) -> Gates:
        """P(z > 0)."""

    @abstractmethod
    def price(self, run: "Run", logits: Gates, step: int) -> tuple[Float[Tensor, " row"], Float[Tensor, " row"]]:
        """What a step's masks cost: something whose gradient is that of E[KL], and the KL that was seen."""

    def explain(self, batch: Batch, target: Shaped[Tensor, "row *event"]) -> Attribution:
        """Losses are summed over rows, so that each is optimised as if alone. The outcome plays no part."""
        answer, states = self.task.trace(batch)
        run = Run(self.task, batch, answer, self.site, states[self.site], self.baseline)
        logits = states[self.site].new_full(batch.tokens.shape, self.method.start).requires_grad_()
        optimizer = torch.optim.Adam([logits], lr=self.method.learning_rate, betas=(0.9, 0.99))
        multipliers = RowMultipliers(
            PIController(self.method.margin), run.divergence(torch.zeros_like(logits)).detach()
        )
        for step in range(self.method.steps):
            optimizer.zero_grad()
            caused, seen = self.price(run, logits, step)
            weight = multipliers.value
            ((run.share(self.open(logits)) + weight * caused) / (1 + weight)).sum().backward()
            optimizer.step()
            logits.data.clamp_(-self.method.reach, self.method.reach)
            multipliers.update(seen.detach(), step / self.method.steps)
        found = self.open(logits.detach())
        self._report(run.divergence((found > 0.5).to(found)))
        return Attribution(found)

    def uniform(self, step: int, draws: int, tokens: int) -> Float[Tensor, "draw token"]:
        """Numbers in (0, 1) that all rows share, and that more tokens do not change."""
        source = generator(int(self.seed), self.method.name, step)
        return torch.rand(tokens, draws, generator=source, dtype=torch.float64).T.to(self.baseline.device)

    def _report(self, caused: Float[Tensor, " row"]) -> None:
        over = (caused > 1.05 * self.method.margin + 1e-9).float().mean().item()
        if over > 0.1:
            text = "%s: of %d masks %.0f %% change the answer by more than the margin; raise steps"
            logger.warning(text, self.method.label, len(caused), 100 * over)


@dataclass(frozen=True)
class Run:
    """What stays the same while a batch's gates move."""

    task: Task
    batch: Batch
    answer: Distribution
    site: str
    state: Float[Tensor, "row token width"]
    baseline: Float[Tensor, " width"]

    def divergence(self, gate: Gates) -> Float[Tensor, " row"]:
        """KL(original || h <- z h + (1 - z) b at the maskable tokens)."""
        kept = torch.where(self.batch.maskable, gate.to(self.state), 1.0)[..., None]
        mixed = kept * self.state + (1 - kept) * self.baseline
        return divergence(self.answer, self.task.predict(self.batch, {self.site: lambda _: mixed}))

    def share(self, open_probability: Gates) -> Float[Tensor, " row"]:
        """Mean over a row's maskable tokens."""
        maskable = self.batch.maskable
        return (open_probability * maskable).sum(dim=1) / maskable.sum(dim=1).clamp(min=1)


@dataclass(frozen=True, kw_only=True)
class PerInputDiffMask(FreeGates):
    """Fewest open hard concrete gates subject to KL(original || masked) <= margin, for each row by itself."""

    name: ClassVar[str] = "diffmask-per-input"

    temperature: float = 0.2
    """Temperature of the gates."""

    def build(self, task: Task, seed: int) -> "PerInputExplainer":
        """The baseline is taken from the training rows."""
        return PerInputExplainer(self, task, self.site_of(task, self.site), seed)


class PerInputExplainer(FreeGatesExplainer):
    """Gradients go through the gates and the model: one forward and one backward pass a step."""

    method: PerInputDiffMask

    def open(self, logits: Gates) -> Gates:
        """P(z > 0) of a hard concrete gate."""
        return HardConcrete(logits, self.method.temperature).open()

    def price(self, run: Run, logits: Gates, step: int) -> tuple[Float[Tensor, " row"], Float[Tensor, " row"]]:
        """KL under one draw of the gates, differentiable."""
        uniform = self.uniform(step, 1, logits.shape[1])[0]
        caused = run.divergence(HardConcrete(logits, self.method.temperature).at(uniform))
        return caused, caused


@dataclass(frozen=True, kw_only=True)
class PerInputReinforce(FreeGates):
    """d E[KL] = E[(KL - m) d log p(z)], z ~ Bernoulli, m a moving average of a row's KL. Williams 1992.

    The published code leaves the multiplier out of this term; here it weighs it, as in the objective.
    """

    name: ClassVar[str] = "diffmask-reinforce"

    samples: int = 4
    """Masks drawn a step; each is a forward pass."""
    memory: float = 0.9
    """Weight of the past in the moving average."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.samples < 1 or not 0 <= self.memory < 1:
            raise ConfigError("diffmask-reinforce: samples are at least 1, memory at least 0 and below 1")

    def build(self, task: Task, seed: int) -> "ReinforceExplainer":
        """The baseline is taken from the training rows."""
        return ReinforceExplainer(self, task, self.site_of(task, self.site), seed)


class ReinforceExplainer(FreeGatesExplainer):
    """No gradient of the model is needed."""

    method: PerInputReinforce
    _usual: Tensor

    def open(self, logits: Gates) -> Gates:
        """P(z = 1)."""
        return torch.sigmoid(logits)

    def price(self, run: Run, logits: Gates, step: int) -> tuple[Float[Tensor, " row"], Float[Tensor, " row"]]:
        """A surrogate whose gradient is the score-function estimate, and the mean KL of the draws."""
        uniform = self.uniform(step, self.method.samples, logits.shape[1])
        drawn = [(number < self.open(logits.detach())).to(logits) for number in uniform]
        with torch.no_grad():
            seen = torch.stack([run.divergence(gate) for gate in drawn])
        if step == 0:
            self._usual = seen.mean(dim=0)
        gates = Bernoulli(logits=logits, validate_args=False)
        scores = torch.stack([(gates.log_prob(gate) * run.batch.maskable).sum(dim=1) for gate in drawn])
        surrogate = ((seen - self._usual) * scores).mean(dim=0)
        self._usual = torch.lerp(seen.mean(dim=0), self._usual, self.method.memory)
        return surrogate, seen.mean(dim=0)
