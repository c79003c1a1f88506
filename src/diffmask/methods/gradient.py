"""Gradient: how steeply the answer changes with each token's state. Simonyan et al. 2014."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn

from diffmask.answer import Quantity, explained
from diffmask.batch import Attribution, Batch
from diffmask.errors import RecipeError, TaskError
from diffmask.explainer import Explainer, Method
from diffmask.task import Task

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
            raise RecipeError("gradient: one_hot has an L2 norm only; leave norm at 'l2'")

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
    place = task.place(site)
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
        value = explained(task.predict(batch, {site: branch}), target, quantity)
        (found,) = torch.autograd.grad(value.sum(), leaves)
    return found
