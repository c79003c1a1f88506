"""Check whether masked texts are out of distribution for a classifier, by its loss as random tokens are erased.

A model that was trained on masked texts falls back on the label frequencies when it sees few tokens: its log-loss is
never much above the entropy of the labels. A model for which masked texts are out of distribution is confident about
texts without content, and its loss is higher.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.distributions import Distribution

from diffmask.core.batch import Batch
from diffmask.core.config import digest_of
from diffmask.core.distributions import predicted_outcome, predicts
from diffmask.core.store import Artefact
from diffmask.core.task import Task
from diffmask.core.training import generator
from diffmask.errors import TaskError
from diffmask.metrics.erasure import Eraser, Mode
from diffmask.workspace.workspace import Workspace

SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
MAX_EXCESS_LOSS = 0.1
"""Largest excess loss, in nats, without a warning."""


@dataclass(frozen=True)
class MaskingShift:
    """Means over held-out texts, one per share of erased tokens."""

    shares: tuple[float, ...]
    loss: tuple[float, ...]
    """-log p(label), in nats."""
    accuracy: tuple[float, ...]
    confidence: tuple[float, ...]
    """Probability of the predicted class."""
    prior_loss: float
    """Entropy of the labels: the loss of predicting their frequencies for every text."""

    @property
    def excess_loss(self) -> float:
        """Largest loss over the shares minus `prior_loss`, in nats."""
        return max(self.loss) - self.prior_loss

    def warning(self, max_excess_loss: float = MAX_EXCESS_LOSS) -> str:
        """Describe the shift in two sentences, or return an empty string if it is small."""
        if self.excess_loss <= max_excess_loss:
            return ""
        worst = self.loss.index(max(self.loss))
        return (
            f"masked texts are out of distribution for this model: with {self.shares[worst]:.0%} of the tokens erased "
            f"at random its log-loss is {self.loss[worst]:.2f} nats ({self.prior_loss:.2f} for predicting the label "
            f"frequencies) at a confidence of {self.confidence[worst]:.0%}. Part of the effect of erasing words may be "
            "due to this. Fine-tuning with masked_fraction=0.5 makes a model that knows masked texts"
        )


def measure_masking_shift(
    task: Task, batch: Batch, *, mode: Mode = "mask", shares: Sequence[float] = SHARES, seed: int = 0
) -> MaskingShift:
    """Measure loss, accuracy and confidence of a classifier as random tokens of labelled rows are erased."""
    if batch.target.ndim != 1:
        raise TaskError("the masking check needs one class per row; these rows have several labels or numbers")
    rows = batch[batch.target >= 0]
    if len(rows) == 0:
        raise TaskError("the masking check needs labels; no row has one")
    if not task.predict(rows[:1].trim()).has_enumerate_support:
        raise TaskError("the masking check needs classes; this model predicts numbers")
    eraser = Eraser(task, mode)
    uniform = torch.rand(rows.tokens.shape, generator=generator(seed, "surprise")).to(rows.tokens.device)
    means = [
        eraser.map_erased(
            rows, (uniform < share) & rows.maskable, lambda prediction, items: _evaluate(prediction, rows.target[items])
        ).mean(0)
        for share in shares
    ]
    loss, accuracy, confidence = (tuple(column) for column in torch.stack(means).T.tolist())
    return MaskingShift(tuple(shares), loss, accuracy, confidence, _entropy(rows.target))


def masking_shift(workspace: Workspace, split: str) -> MaskingShift | None:
    """Return the masking shift on a split, computed once, or None if the rows have no classes or no labels."""

    def make() -> Artefact:
        with torch.no_grad():
            return Artefact({}, asdict(measure_masking_shift(workspace.task(), workspace.task().data[split])))

    digest = digest_of(["masking shift", workspace.task_digest(), split])
    try:
        values = workspace.store.get_or_make("masking-shift", digest, make).values
    except TaskError:
        return None
    prior_loss = values["prior_loss"]
    return MaskingShift(
        **{name: tuple(values[name]) for name in ("shares", "loss", "accuracy", "confidence")}, prior_loss=prior_loss
    )


def _evaluate(prediction: Distribution, target: Tensor) -> Float[Tensor, "row 3"]:
    """Compute the loss, whether the prediction is right, and its probability."""
    confidence = prediction.log_prob(predicted_outcome(prediction)).exp()
    correct = predicts(prediction, target).to(confidence.dtype)
    return torch.stack([-prediction.log_prob(target), correct, confidence], dim=1)


def _entropy(target: Int[Tensor, " row"] | Float[Tensor, " row"]) -> float:
    """Compute the entropy of the label frequencies in nats."""
    share = target.unique(return_counts=True)[1] / len(target)
    return float(-(share * share.log()).sum())
