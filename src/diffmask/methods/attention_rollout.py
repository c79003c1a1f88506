"""Attention rollout: attention followed through the layers, back to the tokens. Abnar and Zuidema 2020."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from diffmask.batch import Attribution, Batch
from diffmask.errors import RecipeError, TaskError
from diffmask.explainer import Explainer, Method
from diffmask.methods.attention import Weights, layer_names, over_queries, weights_of
from diffmask.task import Task


@dataclass(frozen=True, kw_only=True)
class AttentionRollout(Method):
    """R_l = ((1 - r) A_l + r I) R_{l-1}, R_0 = I, A_l the mean over heads, r the share of the residual stream.

    Abnar and Zuidema 2020, eq. 1, with r = 1/2. A token's score is its column of R, in the row the answer is read from.
    """

    name: ClassVar[str] = "attention-rollout"

    residual: float = 0.5
    """Share of a state that passes a block by."""
    query: int | None = None
    """Position the answer is read from, such as 0 for [CLS]; the mean over all real positions where none is named."""

    def __post_init__(self) -> None:
        if not 0 <= self.residual < 1:
            raise RecipeError(f"attention-rollout: residual is at least 0 and below 1; found {self.residual}")

    def build(self, task: Task, seed: int) -> "AttentionRolloutExplainer":
        """A task whose attention cannot be followed through layers is refused here."""
        weights = weights_of(task, next(iter(task.data.values()))[:1].trim())
        if weights.shape[-2] != weights.shape[-1]:
            raise TaskError(
                f"attention-rollout: {type(task).__name__} has {weights.shape[-2]} queries for {weights.shape[-1]} "
                "tokens; only self-attention can be rolled out, use 'attention'"
            )
        return AttentionRolloutExplainer(self, task)


class AttentionRolloutExplainer(Explainer):
    """One forward pass a batch, and a product of matrices a layer."""

    def __init__(self, method: AttentionRollout, task: Task) -> None:
        super().__init__(task)
        self.method = method

    def explain(self, batch: Batch, target: Shaped[Tensor, "row *event"]) -> Attribution:
        """Seen from every layer; the last has the whole path, and is the score."""
        weights = weights_of(self.task, batch)
        rolled = rollout(weights, self.method.residual)
        query = self.method.query
        received = over_queries(rolled, batch) if query is None else rolled[:, :, query]
        return Attribution(received[:, -1], received, layer_names(weights))


def rollout(weights: Weights, residual: float) -> Float[Tensor, "row layer query key"]:
    """The product of the layers' mixings, up to each layer."""
    stay = torch.eye(weights.shape[-1]).to(weights)
    reached, path = stay, []
    for mixing in weights.mean(dim=2).unbind(dim=1):
        reached = ((1 - residual) * mixing + residual * stay) @ reached
        path.append(reached)
    return torch.stack(path, dim=1)
