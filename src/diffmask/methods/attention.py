"""Attention that each token receives, taken for an explanation. Bahdanau et al. 2015.

Attention rollout: attention followed through the layers, back to the tokens. Abnar and Zuidema 2020.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from diffmask.core.batch import Attribution, Batch
from diffmask.core.capabilities import HasAttention, require
from diffmask.core.explainer import Explainer, Method
from diffmask.core.task import Task
from diffmask.errors import ConfigError, InputError, TaskError

Weights = Float[Tensor, "row layer head query key"]


@dataclass(frozen=True, kw_only=True)
class Attention(Method):
    """score_t = mean over layers, heads and real queries of the attention paid to token t."""

    name: ClassVar[str] = "attention"

    heads: Literal["mean", "max"] = "mean"
    """How a layer's heads are joined; De Cao et al. take the largest."""

    def build(self, task: Task, seed: int) -> "AttentionExplainer":
        """A task that gives no attention weights is refused here."""
        weights_of(task, next(iter(task.data.values()))[:1].trim())
        return AttentionExplainer(self, task)


class AttentionExplainer(Explainer):
    """One forward pass a batch."""

    def __init__(self, method: Attention, task: Task) -> None:
        super().__init__(task)
        self.method = method

    def explain(self, batch: Batch, target: Shaped[Tensor, "row *event"]) -> Attribution:
        """The outcome plays no part in it."""
        weights = weights_of(self.task, batch)
        joined = weights.mean(dim=2) if self.method.heads == "mean" else weights.amax(dim=2)
        received = over_queries(joined, batch)
        return Attribution(received.mean(dim=1), received, layer_names(weights))


@torch.no_grad()
def weights_of(task: Task, batch: Batch) -> Weights:
    """The task's attention weights, checked: a share for each of the batch's tokens."""
    weights = require(task, HasAttention, "attention").attentions(batch)
    if weights.shape[0] != len(batch) or weights.shape[-1] != batch.tokens.shape[1] or weights.shape[1] == 0:
        raise InputError(
            f"{type(task).__name__}.attentions gave {tuple(weights.shape)} for {tuple(batch.tokens.shape)} tokens; "
            "its axes are row, layer, head, query, key"
        )
    return weights


def over_queries(weights: Float[Tensor, "row layer query key"], batch: Batch) -> Float[Tensor, "row layer key"]:
    """The mean over the queries; where each token asks, over real ones."""
    if weights.shape[2] != batch.tokens.shape[1]:
        return weights.mean(dim=2)
    real = batch.present[:, None, :, None].to(weights)
    return (weights * real).sum(dim=2) / real.sum(dim=2)


def layer_names(weights: Weights) -> tuple[str, ...]:
    """Attention has no site of its own: its layers are numbered."""
    return tuple(f"attention {layer}" for layer in range(weights.shape[1]))


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
            raise ConfigError(f"attention-rollout: residual is at least 0 and below 1; found {self.residual}")

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
