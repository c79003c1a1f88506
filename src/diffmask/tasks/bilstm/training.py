"""Training a model of words: the epoch that is best on held-out rows, and few that are for nothing."""

import logging
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from diffmask.core.batch import Batch
from diffmask.core.training import progress_bar, single_threaded

logger = logging.getLogger(__name__)


GAIN = 0.005
"""Nats by which a validation loss is lower."""
BEGUN = 0.02
"""Nats that a model which has begun to learn gains, on its own rows, on one that knows the classes' shares only."""


@dataclass(frozen=True, kw_only=True)
class BiLSTMTraining:
    """AMSGrad with a little weight decay, as published; the first epoch that is best on the validation rows is kept."""

    epochs: int
    """At most so many passes over the rows."""
    batch_size: int
    learning_rate: float
    by_length: bool = True
    """Whether a batch holds rows of one length, for little padding; else any.

    Where texts have few lengths, as stories of two to ten sentences, every step would see one of them only.
    """
    weight_decay: float = 1e-5
    """Not on the attention of a model of single texts, as published."""
    patience: int
    """Epochs without a better validation score or a lower loss after which training stops; a perfect score stops it.

    A model that knows no more than the shares of the classes, not even of its own rows, is waited for to the end: what
    is hard to see is found late, and at once. On stories that are nine tenths masks it may be after 20 epochs.
    """

    @single_threaded()
    def train(self, task: Any, source: torch.Generator) -> list[float]:
        """Train the task's model in place; its score on the validation rows after each epoch."""
        model, valid = task.model, task.data["valid"]
        optimizer = self.optimizer(model)
        scores: list[float] = []
        lowest, gained, begun, kept = float("inf"), 0, False, deepcopy(model.state_dict())
        for epoch in progress_bar(range(self.epochs), "train the model"):
            begun |= self._epoch(task, optimizer, source) < least_known(task.data["train"].target) - BEGUN
            loader_draws(source)
            logits = logits_by_length(task, valid)
            scores.append(task.selection_score(logits, valid.target))
            loss = float(cross_entropy(logits, valid.target))
            logger.debug("epoch %d: score %.4f and loss %.4f on validation rows", epoch + 1, scores[-1], loss)
            better = scores[-1] > max(scores[:-1], default=-1.0)
            if better:
                kept = deepcopy(model.state_dict())
            if better or loss < lowest - GAIN:
                gained, lowest = epoch, min(loss, lowest)
            if (begun and epoch - gained >= self.patience) or scores[-1] >= 1.0:
                break
        model.load_state_dict(kept)
        for value in model.parameters():
            value.data, value.grad = value.detach().clone(), None
        model.eval().requires_grad_(False)
        return scores

    def _epoch(self, task: Any, optimizer: torch.optim.Optimizer, source: torch.Generator) -> float:
        """The mean loss of the training rows, each at its turn."""
        task.model.train().requires_grad_(True)
        cut = batches_of_one_length if self.by_length else batches_of_any_length
        rows, total = task.data["train"], 0.0
        for batch in cut(rows, self.batch_size, source):
            optimizer.zero_grad(set_to_none=False)
            loss = task.loss(batch)
            loss.backward()
            optimizer.step()
            total += len(batch) * loss.item()
        task.model.eval().requires_grad_(False)
        return total / len(rows)

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """AMSGrad on all that the model learns."""
        return torch.optim.Adam(self._groups(model), lr=self.learning_rate, amsgrad=True, fused=True)

    def _groups(self, model: nn.Module) -> list[dict[str, Any]]:
        free = [value for name, value in model.named_parameters() if name.startswith("pooling.") and _single(model)]
        decayed = [value for value in model.parameters() if not any(value is other for other in free)]
        return [
            {"params": [as_one(values)], "weight_decay": decay}
            for values, decay in ((decayed, self.weight_decay), (free, 0.0))
            if values
        ]


def as_one(values: list[nn.Parameter]) -> nn.Parameter:
    """One vector that all of them become parts of, and their slopes of its slope: one step in place of many small ones.

    >>> first, second = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(1, 1))
    >>> whole = as_one([first, second])
    >>> (3 * second).sum().backward()
    >>> whole.grad
    tensor([0., 0., 3.])
    """
    whole = nn.Parameter(torch.cat([value.detach().flatten() for value in values]))
    whole.grad = torch.zeros_like(whole)
    sizes = [value.numel() for value in values]
    for value, part, slope in zip(values, whole.detach().split(sizes), whole.grad.split(sizes), strict=True):
        value.data, value.grad = part.view_as(value), slope.view_as(value)
    return whole


def batches_of_one_length(data: Batch, size: int, source: torch.Generator) -> Iterator[Batch]:
    """The rows once, in random order; a batch ends when it is full, or half full and the next row is longer."""
    shuffled = torch.randperm(len(data), generator=source)
    length = data.present.sum(dim=1)
    order = shuffled[length[shuffled].argsort(stable=True)]
    cuts = _cuts(length[order].tolist(), size)
    for index in torch.randperm(len(cuts) - 1, generator=source).tolist():
        yield data[order[cuts[index] : cuts[index + 1]]].trim()


def batches_of_any_length(data: Batch, size: int, source: torch.Generator) -> Iterator[Batch]:
    """The rows once, in the random order in which torch's loader would deal them out."""
    loader_draws(source)
    order = torch.Generator().manual_seed(loader_draws(source))
    for rows in torch.randperm(len(data), generator=order).split(size):
        yield data[rows].trim()


def loader_draws(source: torch.Generator) -> int:
    """The number that torch's loader draws whenever rows are read; where it shuffles, a second one seeds the order.

    Drawn here too, so that a training sees the batches that the published one saw at its seed.
    """
    return int(torch.empty((), dtype=torch.int64).random_(generator=source))


def _cuts(lengths: list[int], size: int) -> list[int]:
    """Where one batch ends and the next begins.

    >>> _cuts([3, 3, 4, 4, 4, 4, 4, 5], 4)
    [0, 2, 6, 8]
    """
    cuts = [0]
    for place in range(1, len(lengths)):
        rows = place - cuts[-1]
        if rows == size or (2 * rows >= size and lengths[place] != lengths[place - 1]):
            cuts.append(place)
    return [*cuts, len(lengths)]


@torch.no_grad()
def logits_by_length(task: Any, batch: Batch, size: int = 512) -> Float[Tensor, "row class"]:
    """The model's numbers for all rows, computed on rows of like length."""
    length = batch.present.sum(dim=1)
    order = length.argsort(stable=True)
    cuts = _cuts(length[order].tolist(), size)
    parts = [task.inference_logits(batch[order[start:end]].trim()) for start, end in pairwise(cuts)]
    return torch.cat(parts)[order.argsort()]


def least_known(target: Int[Tensor, " row"]) -> float:
    """The loss of one who knows the classes' shares and nothing else: their entropy, in nats.

    >>> round(least_known(torch.tensor([3, 0, 0, 3])), 4)
    0.6931
    """
    share = target.bincount().double() / len(target)
    return -torch.xlogy(share, share).sum().item()


def _single(model: nn.Module) -> bool:
    return "question_embedding" not in dict(model.named_children())
