"""DiffMask without relaxed gates: binary masks, found by the score-function gradient. De Cao et al. 2020, ablation."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor
from torch.distributions import Bernoulli

from diffmask.errors import RecipeError
from diffmask.methods.free_gates import FreeGates, FreeGatesExplainer, Gates, Run
from diffmask.task import Task


@dataclass(frozen=True, kw_only=True)
class Reinforce(FreeGates):
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
            raise RecipeError("diffmask-reinforce: samples are at least 1, memory at least 0 and below 1")

    def build(self, task: Task, seed: int) -> "ReinforceExplainer":
        """The baseline is taken from the training rows."""
        return ReinforceExplainer(self, task, self.site_of(task, self.site), seed)


class ReinforceExplainer(FreeGatesExplainer):
    """No gradient of the model is needed."""

    method: Reinforce
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
