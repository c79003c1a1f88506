"""DiffMask without a probe: hard concrete gates found anew for every text. De Cao et al. 2020, ablation."""

from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor

from diffmask.gates import HardConcrete
from diffmask.methods.free_gates import FreeGates, FreeGatesExplainer, Gates, Run
from diffmask.task import Task


@dataclass(frozen=True, kw_only=True)
class PerInput(FreeGates):
    """Fewest open hard concrete gates subject to KL(original || masked) <= margin, for each row by itself."""

    name: ClassVar[str] = "diffmask-per-input"

    temperature: float = 0.2
    """Temperature of the gates."""

    def build(self, task: Task, seed: int) -> "PerInputExplainer":
        """The baseline is taken from the training rows."""
        return PerInputExplainer(self, task, self.site_of(task, self.site), seed)


class PerInputExplainer(FreeGatesExplainer):
    """Gradients go through the gates and the model: one forward and one backward pass a step."""

    method: PerInput

    def open(self, logits: Gates) -> Gates:
        """P(z > 0) of a hard concrete gate."""
        return HardConcrete(logits, self.method.temperature).open()

    def price(self, run: Run, logits: Gates, step: int) -> tuple[Float[Tensor, " row"], Float[Tensor, " row"]]:
        """KL under one draw of the gates, differentiable."""
        uniform = self.uniform(step, 1, logits.shape[1])[0]
        caused = run.divergence(HardConcrete(logits, self.method.temperature).at(uniform))
        return caused, caused
