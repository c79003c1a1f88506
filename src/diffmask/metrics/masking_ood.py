"""Is erased text part of the model's world? What it makes of texts as more and more of their tokens are gone.

A model that takes erasure for granted falls back on what it knows without a text: its log-loss is never much above that
of always answering with the labels' frequencies. One that is surprised is sure of something when it sees nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.distributions import Distribution

from diffmask.core.batch import Batch
from diffmask.core.distributions import predicted_outcome, predicts
from diffmask.core.task import Task
from diffmask.core.training import generator
from diffmask.errors import TaskError
from diffmask.metrics.erasure import Eraser, Mode


@dataclass(frozen=True)
class Surprise:
    """Means over held-out texts, one for each share of tokens that is gone."""

    shares: tuple[float, ...]
    loss: tuple[float, ...]
    """-log p(label), in nats."""
    accuracy: tuple[float, ...]
    confidence: tuple[float, ...]
    """Probability of what the model then decides."""
    prior_loss: float
    """-log of the label's frequency: the loss of answering without looking."""

    @property
    def excess(self) -> float:
        """The largest loss on the way, less that of not looking."""
        return max(self.loss) - self.prior_loss

    def warning(self, most: float = 0.1) -> str:
        """A sentence for a report's reader; empty where the excess is at most `most` nats."""
        if self.excess <= most:
            return ""
        worst = self.loss.index(max(self.loss))
        return (
            f"Erased texts surprise this model: with {self.shares[worst]:.0%} of the tokens erased at random its "
            f"log-loss is {self.loss[worst]:.2f} nats where answering without looking costs {self.prior_loss:.2f}, and "
            f"it is {self.confidence[worst]:.0%} sure. Part of what erasure shows is surprise; a copy fine-tuned with "
            "masked=0.5 takes erasure for granted."
        )


def surprise(
    task: Task,
    batch: Batch,
    *,
    mode: Mode = "mask",
    shares: Sequence[float] = (0.0, 0.25, 0.5, 0.75, 1.0),
    seed: int = 0,
) -> Surprise:
    """How a classifier takes the erasure of random tokens, on the rows that have a label."""
    if batch.target.ndim != 1:
        raise TaskError("erasure is judged by the loss on classes; these rows have several labels or numbers")
    rows = batch[batch.target >= 0]
    if len(rows) == 0:
        raise TaskError("erasure is judged by the loss on labels; no row has one")
    eraser = Eraser(task, mode)
    draw = torch.rand(rows.tokens.shape, generator=generator(seed, "surprise")).to(rows.tokens.device)
    looks = [
        eraser.map_erased(
            rows, (draw < share) & rows.maskable, lambda answer, some: _look(answer, rows.target[some])
        ).mean(0)
        for share in shares
    ]
    loss, accuracy, confidence = (tuple(column) for column in torch.stack(looks).T.tolist())
    return Surprise(tuple(shares), loss, accuracy, confidence, _entropy(rows.target))


def _look(answer: Distribution, target: Tensor) -> Float[Tensor, "row 3"]:
    """Loss, whether the decision is right, and its probability."""
    sure = answer.log_prob(predicted_outcome(answer)).exp()
    return torch.stack([-answer.log_prob(target), predicts(answer, target).to(sure.dtype), sure], dim=1)


def _entropy(target: Int[Tensor, " row"] | Float[Tensor, " row"]) -> float:
    """Of the labels' frequencies, in nats."""
    share = target.unique(return_counts=True)[1] / len(target)
    return float(-(share * share.log()).sum())
