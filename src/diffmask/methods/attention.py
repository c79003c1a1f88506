"""Attention that each token receives, taken for an explanation. Bahdanau et al. 2015."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from diffmask.batch import Attribution, Batch
from diffmask.errors import InputError
from diffmask.explainer import Explainer, Method
from diffmask.task import Task

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
    weights = task.attentions(batch)
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
