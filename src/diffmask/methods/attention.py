"""Attention as an explanation: attention weights (Bahdanau et al. 2015) and rollout (Abnar and Zuidema 2020)."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from diffmask.core.baseline_states import example_rows
from diffmask.core.batch import Attribution, Batch
from diffmask.core.capabilities import HasAttention, require
from diffmask.core.explainer import Explainer, Method
from diffmask.core.task import Task
from diffmask.errors import ConfigError, InputError, TaskError

AttentionWeights = Float[Tensor, "row layer head query key"]


@dataclass(frozen=True, kw_only=True)
class Attention(Method):
    """score_t = mean over layers, heads and present queries of the attention to token t. Bahdanau et al. 2015."""

    name: ClassVar[str] = "attention"

    heads: Literal["mean", "max"] = "mean"
    """Aggregation over the heads of a layer; De Cao et al. 2020 use the maximum."""

    def build(self, task: Task, seed: int) -> "AttentionExplainer":
        """Check that the task returns attention weights."""
        require(task, HasAttention, self.name)
        for batch in list(task.data.values())[:1]:
            attention_weights(task, batch[:1].trim())
        return AttentionExplainer(self, task)


class AttentionExplainer(Explainer):
    """Explainer that takes one forward pass per batch."""

    explains_target: ClassVar[bool] = False

    def __init__(self, method: Attention, task: Task) -> None:
        super().__init__(task)
        self.method = method

    def explain(self, batch: Batch, target: Shaped[Tensor, "row *event"]) -> Attribution:
        """Average attention over heads, queries and layers; the target outcome is not used."""
        weights = attention_weights(self.task, batch)
        per_layer = weights.mean(dim=2) if self.method.heads == "mean" else weights.amax(dim=2)
        received = mean_over_queries(per_layer, batch)
        return Attribution(received.mean(dim=1), received, layer_names(weights))


@torch.no_grad()
def attention_weights(task: Task, batch: Batch) -> AttentionWeights:
    """Return the task's attention weights after a check of their shape."""
    weights = require(task, HasAttention, "attention").attentions(batch)
    if weights.shape[0] != len(batch) or weights.shape[-1] != batch.tokens.shape[1] or weights.shape[1] == 0:
        raise InputError(
            f"{type(task).__name__}.attentions returned {tuple(weights.shape)} for {tuple(batch.tokens.shape)} tokens; "
            "its axes are row, layer, head, query, key"
        )
    return weights


def mean_over_queries(weights: Float[Tensor, "row layer query key"], batch: Batch) -> Float[Tensor, "row layer key"]:
    """Average over queries; in self-attention, over the queries that are present."""
    if weights.shape[2] != batch.tokens.shape[1]:
        return weights.mean(dim=2)
    present = batch.present[:, None, :, None].to(weights)
    return (weights * present).sum(dim=2) / present.sum(dim=2)


def layer_names(weights: AttentionWeights) -> tuple[str, ...]:
    """Return numbered layer names; attention weights belong to no site."""
    return tuple(f"attention {layer}" for layer in range(weights.shape[1]))


@dataclass(frozen=True, kw_only=True)
class AttentionRollout(Method):
    """R_l = ((1 - r) A_l + r I) R_{l-1}, R_0 = I, A_l the mean over heads, r the share of the residual stream.

    Abnar and Zuidema 2020, eq. 1, with r = 1/2. A token's score is its entry in the query's row of the last R.
    """

    name: ClassVar[str] = "attention-rollout"

    residual: float = 0.5
    """Share of the residual connection in a layer's output."""
    query: int | None = None
    """Position that the prediction is read from, such as 0 for [CLS]. Default: the mean over all present positions."""

    def __post_init__(self) -> None:
        if not 0 <= self.residual < 1:
            raise ConfigError(f"attention-rollout: residual must be at least 0 and below 1; got {self.residual}")

    def build(self, task: Task, seed: int) -> "AttentionRolloutExplainer":
        """Check that the task returns self-attention weights."""
        weights = attention_weights(task, example_rows(task, 1).trim())
        if weights.shape[-2] != weights.shape[-1]:
            raise TaskError(
                f"attention-rollout: {type(task).__name__} has {weights.shape[-2]} queries for {weights.shape[-1]} "
                "tokens; only self-attention can be rolled out, use 'attention'"
            )
        return AttentionRolloutExplainer(self, task)


class AttentionRolloutExplainer(Explainer):
    """Explainer that takes one forward pass per batch and one matrix product per layer."""

    explains_target: ClassVar[bool] = False

    def __init__(self, method: AttentionRollout, task: Task) -> None:
        super().__init__(task)
        self.method = method

    def explain(self, batch: Batch, target: Shaped[Tensor, "row *event"]) -> Attribution:
        """Return the rollout up to every layer; the scores are those of the last."""
        weights = attention_weights(self.task, batch)
        rolled = rollout(weights, self.method.residual)
        query = self.method.query
        received = mean_over_queries(rolled, batch) if query is None else rolled[:, :, query]
        return Attribution(received[:, -1], received, layer_names(weights))


def rollout(weights: AttentionWeights, residual: float) -> Float[Tensor, "row layer query key"]:
    """Return the product of the layers' attention matrices, with their residual connections, up to each layer."""
    identity = torch.eye(weights.shape[-1]).to(weights)
    product, products = identity, []
    for attention in weights.mean(dim=2).unbind(dim=1):
        product = ((1 - residual) * attention + residual * identity) @ product
        products.append(product)
    return torch.stack(products, dim=1)
