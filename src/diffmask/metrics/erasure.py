"""Predictions on texts without some of their tokens, shared by all erasure metrics.

Copies of texts go through the model in order of length, in minibatches limited by their number of tokens.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor
from torch.distributions import Distribution

from diffmask.core.baseline_states import baseline_state
from diffmask.core.batch import Batch, delete_tokens, hide_tokens, ranking
from diffmask.core.config import digest_of
from diffmask.core.distributions import predicted_outcome, target_score
from diffmask.core.hooks import erase_states
from diffmask.core.resources import AdaptiveBatchSize
from diffmask.core.store import Artefact
from diffmask.core.task import Task
from diffmask.errors import InputError, StoreError, TaskError
from diffmask.workspace.workspace import Workspace

Mode = Literal["mask", "delete", "attention-mask"]
"""Replace a token by the mask token (or the mean embedding), delete it from the text, or hide it from attention."""
TargetChoice = Literal["predicted", "gold"]
"""Class whose probability is measured: the predicted class or the label."""

MAX_TOKENS = 16_384
"""Largest number of tokens of a minibatch, padding included."""
MAX_ROWS = 256
MIN_TOKENS = 1024
"""Tokens that keep a processor busy. A minibatch of at least this size ends early to save padding."""
MAX_PADDING = 0.1
"""Largest share of padding, relative to the real tokens, of a minibatch above `MIN_TOKENS`."""


@dataclass(frozen=True)
class UnmaskedPrediction:
    """Predictions on the unmodified texts."""

    target: Shaped[Tensor, "row *event"]
    """Outcome whose probability is measured."""
    probability: Float[Tensor, " row"]
    """Probability of `target`."""


@dataclass(frozen=True)
class Eraser:
    """Erases tokens of a task's texts and runs the model on the rest."""

    task: Task
    mode: Mode = "mask"
    baseline: Float[Tensor, " width"] | None = None
    """Embedding of an erased token if the vocabulary has no mask token. Default: `mean_embedding`."""

    @staticmethod
    def on(workspace: Workspace, mode: Mode) -> "Eraser":
        """Return an eraser for a workspace's task. The baseline is computed once for all methods."""
        task = workspace.task()
        if task.mask_token is not None:
            return Eraser(task, mode)
        digest = digest_of(["baseline", workspace.task_digest()])
        artefact = workspace.store.get_or_make("baseline", digest, lambda: Artefact({"mean": mean_embedding(task)}))
        return Eraser(task, mode, artefact.tensors["mean"])

    def __post_init__(self) -> None:
        if self.mode == "attention-mask" and not self.task.attention_masked:
            raise TaskError(f"{type(self.task).__name__} has no attention mask; erase by 'mask' or 'delete'")

    @torch.no_grad()
    def map_erased(
        self,
        batch: Batch,
        erased: Bool[Tensor, "copy token"],
        function: Callable[[Distribution, Int[Tensor, " item"]], Tensor],
        rows: Int[Tensor, " copy"] | None = None,
    ) -> Shaped[Tensor, "copy ..."]:
        """Apply `function(prediction, copies)` to the predictions on copies of texts without their erased tokens.

        Copy i is of row `rows[i]`, by default of row i. The results are in the order of the copies.
        """
        copied = torch.arange(len(batch)) if rows is None else rows
        batch_size = AdaptiveBatchSize(MAX_ROWS)
        lengths = batch.present.sum(dim=1)[copied] - (erased.sum(dim=1) if self.mode == "delete" else 0)
        minibatches, results = list(_minibatches(lengths)), []
        for copies in minibatches:

            def work(items: slice, copies: Tensor = copies) -> Tensor:
                chunk = copies[items]
                return function(self.predict(batch[copied[chunk]], erased[chunk]), chunk)

            results += batch_size.split(len(copies), work)
        return torch.cat(results)[torch.cat(minibatches).argsort()]

    def probability(
        self,
        batch: Batch,
        target: Shaped[Tensor, "row *event"],
        rows: Int[Tensor, " copy"],
        erased: Bool[Tensor, "copy token"],
    ) -> Float[Tensor, " copy"]:
        """Compute p(target | row without its erased tokens) for any number of copies of any rows."""

        def target_probability(prediction: Distribution, copies: Int[Tensor, " item"]) -> Tensor:
            return target_score(prediction, target[rows[copies]], "probability")

        return self.map_erased(batch, erased, target_probability, rows).to(torch.get_default_dtype())

    def decisions(self, batch: Batch) -> Shaped[Tensor, "row *event"]:
        """Return the predicted outcome of each unmodified row."""
        return self.map_erased(
            batch, torch.zeros_like(batch.present), lambda prediction, _rows: predicted_outcome(prediction)
        )

    def predict(self, batch: Batch, erased: Bool[Tensor, "row token"]) -> Distribution:
        """Run the model on the rows without their erased tokens, in one forward pass.

        A row whose tokens are all erased is masked in every mode, because a model needs at least one token.
        """
        is_empty = ~(batch.present & ~erased).any(dim=1, keepdim=True)
        replaced = erased if self.mode == "mask" else erased & is_empty
        removed = erased & ~replaced
        masked, edits = batch, {}
        if self.task.mask_token is not None:
            masked = replace(batch, tokens=batch.tokens.masked_fill(replaced, self.task.mask_token))
        shorter = (
            hide_tokens(masked, removed) if self.mode == "attention-mask" else delete_tokens(masked, removed)
        ).trim()
        if self.task.mask_token is None and replaced.any():
            baseline = mean_embedding(self.task) if self.baseline is None else self.baseline
            edits = {self.task.sites[0]: erase_states(replaced[:, : shorter.tokens.shape[1]], baseline)}
        return self.task.predict(shorter, edits)


def mean_embedding(task: Task) -> Float[Tensor, " width"]:
    """Compute the mean embedding of the tokens of the training rows."""
    return baseline_state(task, task.sites[0], "mean")


def _minibatches(lengths: Int[Tensor, " copy"]) -> Iterator[Int[Tensor, " copy"]]:
    """Cut the copies, sorted by length, into minibatches of limited size and little padding."""
    order = lengths.argsort(stable=True)
    start = real = 0
    for position, length in enumerate(lengths[order].tolist()):
        real += length
        if position > start and _is_too_large((position + 1 - start) * length, real):
            yield order[start:position]
            start, real = position, length
    yield order[start:]


def _is_too_large(padded: int, real: int) -> bool:
    """Return whether a minibatch of `real` tokens, `padded` with padding, is too large or has too much padding."""
    return padded > MAX_TOKENS or padded > max(MIN_TOKENS, (1 + MAX_PADDING) * real)


def unmasked_predictions(workspace: Workspace, split: str, target: TargetChoice) -> UnmaskedPrediction:
    """Return the predictions on the unmodified texts of a split, computed once for all methods and metrics."""
    task = workspace.task()
    batch = task.data[split]

    def make() -> Artefact:
        outcome = Eraser(task).decisions(batch) if target == "predicted" else batch.target
        is_missing = outcome.isnan() if outcome.is_floating_point() else outcome < 0
        if target == "gold" and bool(is_missing.any()):
            raise InputError("some texts have no label; measure the predicted class instead, target='predicted'")
        rows = torch.arange(len(batch))
        probability = Eraser(task).probability(batch, outcome, rows, torch.zeros_like(batch.present))
        return Artefact({"target": outcome, "probability": probability})

    digest = digest_of(["unmasked", workspace.task_digest(), split, target])

    def accept(artefact: Artefact) -> None:
        if any(len(artefact.tensors[name]) != len(batch) for name in ("target", "probability")):
            raise StoreError(f"unmasked predictions {digest} are not those of {len(batch)} rows")

    artefact = workspace.store.get_or_make("unmasked", digest, make, accept)
    return UnmaskedPrediction(artefact.tensors["target"], artefact.tensors["probability"])


def tokens_to_erase(maskable: Bool[Tensor, "row token"], ratios: tuple[float, ...]) -> Int[Tensor, "row ratio"]:
    """Compute the number of tokens for each share of a row, rounded up: at 5 % a short text loses one token, not none.

    >>> tokens_to_erase(torch.ones(1, 11, dtype=torch.bool), (0.05, 0.2, 0.5))
    tensor([[1, 3, 6]])
    """
    tokens = maskable.sum(dim=1, keepdim=True)
    # The small number guards against rounding: 10 % of 30 is 3, although 0.1 * 30 is slightly more.
    return (tokens.double() * torch.tensor(ratios, dtype=torch.float64) - 1e-9).ceil().long().clamp(min=0)


def rank_positions(scores: Float[Tensor, "row token"], maskable: Bool[Tensor, "row token"]) -> Int[Tensor, "row token"]:
    """Compute the rank of each token in its row, 0 for the highest score; ties by position.

    >>> rank_positions(torch.tensor([[0.1, 0.7, 0.3]]), torch.tensor([[True, True, True]]))
    tensor([[2, 0, 1]])
    """
    return ranking(scores, maskable).argsort(dim=1)


def top_k_mask(
    scores: Float[Tensor, "row token"], maskable: Bool[Tensor, "row token"], count: Int[Tensor, " row"]
) -> Bool[Tensor, "row token"]:
    """Mark the `count` tokens of each row that score highest; ties by position.

    >>> top_k_mask(torch.tensor([[0.1, 0.9, 0.5]]), torch.tensor([[True, True, True]]), torch.tensor([2]))
    tensor([[False,  True,  True]])
    """
    return (rank_positions(scores, maskable) < count[:, None]) & maskable


def fraction_to_count(maskable: Bool[Tensor, "row token"], share: float) -> Int[Tensor, " row"]:
    """Compute the share of each row's maskable tokens, rounded to whole tokens."""
    return (maskable.sum(dim=1) * share).round().long()
