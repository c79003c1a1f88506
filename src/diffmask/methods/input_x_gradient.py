"""Input times gradient: what a token's state adds to the answer, to first order. Shrikumar et al. 2017."""

from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Shaped
from torch import Tensor

from diffmask.answer import Quantity
from diffmask.batch import Attribution, Batch
from diffmask.explainer import Explainer, Method
from diffmask.methods.gradient import slope
from diffmask.task import Task


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
