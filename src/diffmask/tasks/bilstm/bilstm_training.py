"""Training of a BiLSTM: AMSGrad, early stopping, and the best epoch on the validation split. Madsen et al. 2022."""

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

from diffmask.core.batch import Batch, order_by_length
from diffmask.core.progress import progress_bar
from diffmask.core.training import torch_threads

logger = logging.getLogger(__name__)

MIN_IMPROVEMENT = 0.005
"""Smallest decrease of the validation loss that counts as an improvement, in nats."""
LEARNING_MARGIN = 0.02
"""A model has begun to learn once its training loss is this far below the entropy of the classes, in nats."""


@dataclass(frozen=True, kw_only=True)
class BiLSTMTraining:
    """AMSGrad with weight decay, as published; the first epoch with the best validation score is kept."""

    epochs: int
    """Largest number of passes over the training rows."""
    batch_size: int
    learning_rate: float
    by_length: bool = True
    """Whether a batch has rows of one length, for little padding, or of any length.

    Texts with few different lengths, such as stories of two to ten sentences, need batches of any length: otherwise
    every step sees one kind of story only.
    """
    weight_decay: float = 1e-5
    """Weight decay; as published, none on the attention of a model of single texts."""
    patience: int
    """Epochs without a better validation score or loss before training stops; a perfect score stops it at once.

    A model that has not begun to learn trains for all epochs: on stories that are 90 % masks, learning may begin after
    20 epochs.
    """

    @torch_threads(1)
    def train(self, task: Any, order: torch.Generator) -> list[float]:
        """Train the task's model in place and return the validation score after each epoch."""
        model, valid = task.model, task.data["valid"]
        optimizer = self.optimizer(model)
        chance = class_entropy(task.data["train"].target) - LEARNING_MARGIN
        scores: list[float] = []
        lowest, improved, learning, best = float("inf"), 0, False, deepcopy(model.state_dict())
        for epoch in progress_bar(range(self.epochs), "train the model"):
            learning |= self._epoch(task, optimizer, order) < chance
            draw_loader_seed(order)
            logits = logits_by_length(task, valid)
            scores.append(task.selection_score(logits, valid.target))
            loss = float(cross_entropy(logits, valid.target))
            logger.debug("epoch %d: validation score %.4f and loss %.4f", epoch + 1, scores[-1], loss)
            better = scores[-1] > max(scores[:-1], default=-1.0)
            if better:
                best = deepcopy(model.state_dict())
            if better or loss < lowest - MIN_IMPROVEMENT:
                improved, lowest = epoch, min(loss, lowest)
            if (learning and epoch - improved >= self.patience) or scores[-1] >= 1.0:
                break
        model.load_state_dict(best)
        # The parameters are views of one vector (`flatten_parameters`): give each its own memory again.
        for value in model.parameters():
            value.data, value.grad = value.detach().clone(), None
        model.eval().requires_grad_(False)
        return scores

    def _epoch(self, task: Any, optimizer: torch.optim.Optimizer, order: torch.Generator) -> float:
        """Train on every training row once and return the mean loss."""
        task.model.train().requires_grad_(True)
        minibatches = batches_of_one_length if self.by_length else batches_of_any_length
        rows, total = task.data["train"], 0.0
        for batch in minibatches(rows, self.batch_size, order):
            optimizer.zero_grad(set_to_none=False)
            loss = task.loss(batch)
            loss.backward()
            optimizer.step()
            total += len(batch) * loss.item()
        task.model.eval().requires_grad_(False)
        return total / len(rows)

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """Return AMSGrad over all parameters."""
        return torch.optim.Adam(self._groups(model), lr=self.learning_rate, amsgrad=True, fused=True)

    def _groups(self, model: nn.Module) -> list[dict[str, Any]]:
        free = [value for name, value in model.named_parameters() if name.startswith("pooling.") and _single(model)]
        decayed = [value for value in model.parameters() if not any(value is other for other in free)]
        return [
            {"params": [flatten_parameters(values)], "weight_decay": decay}
            for values, decay in ((decayed, self.weight_decay), (free, 0.0))
            if values
        ]


def flatten_parameters(values: list[nn.Parameter]) -> nn.Parameter:
    """Return one vector of which the parameters and their gradients become views: one optimizer step, not many.

    >>> first, second = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(1, 1))
    >>> vector = flatten_parameters([first, second])
    >>> (3 * second).sum().backward()
    >>> vector.grad
    tensor([0., 0., 3.])
    """
    vector = nn.Parameter(torch.cat([value.detach().flatten() for value in values]))
    vector.grad = torch.zeros_like(vector)
    sizes = [value.numel() for value in values]
    for value, data, gradient in zip(values, vector.detach().split(sizes), vector.grad.split(sizes), strict=True):
        value.data, value.grad = data.view_as(value), gradient.view_as(value)
    return vector


def batches_of_one_length(data: Batch, size: int, order: torch.Generator) -> Iterator[Batch]:
    """Yield all rows once in random order; a batch ends when it is full, or half full and the next row is longer."""
    shuffled = torch.randperm(len(data), generator=order)
    length = data.present.sum(dim=1)
    by_length = shuffled[length[shuffled].argsort(stable=True)]
    cuts = _cut_by_length(length[by_length].tolist(), size)
    for index in torch.randperm(len(cuts) - 1, generator=order).tolist():
        yield data[by_length[cuts[index] : cuts[index + 1]]].trim()


def batches_of_any_length(data: Batch, size: int, order: torch.Generator) -> Iterator[Batch]:
    """Yield all rows once in the random order of torch's `DataLoader`."""
    draw_loader_seed(order)
    shuffled = torch.Generator().manual_seed(draw_loader_seed(order))
    for rows in torch.randperm(len(data), generator=shuffled).split(size):
        yield data[rows].trim()


def draw_loader_seed(order: torch.Generator) -> int:
    """Draw the number that torch's `DataLoader` draws whenever it is iterated; if it shuffles, it draws a second one.

    Drawing it here too gives a training the batches of the published training with the same seed.
    """
    return int(torch.empty((), dtype=torch.int64).random_(generator=order))


def _cut_by_length(lengths: list[int], size: int) -> list[int]:
    """Return the indices at which sorted rows are cut into batches.

    >>> _cut_by_length([3, 3, 4, 4, 4, 4, 4, 5], 4)
    [0, 2, 6, 8]
    """
    cuts = [0]
    for index in range(1, len(lengths)):
        rows = index - cuts[-1]
        if rows == size or (2 * rows >= size and lengths[index] != lengths[index - 1]):
            cuts.append(index)
    return [*cuts, len(lengths)]


@torch.no_grad()
def logits_by_length(task: Any, batch: Batch, size: int = 512) -> Float[Tensor, "row class"]:
    """Return the logits of all rows, computed on rows of similar length."""
    order = order_by_length(batch)
    cuts = _cut_by_length(batch.present.sum(dim=1)[order].tolist(), size)
    parts = [task.inference_logits(batch[order[start:end]].trim()) for start, end in pairwise(cuts)]
    return torch.cat(parts)[order.argsort()]


def class_entropy(target: Int[Tensor, " row"]) -> float:
    """Return the entropy of the class frequencies in nats, which is the loss of a model that knows nothing else.

    >>> round(class_entropy(torch.tensor([3, 0, 0, 3])), 4)
    0.6931
    """
    frequency = target.bincount().double() / len(target)
    return -torch.xlogy(frequency, frequency).sum().item()


def _single(model: nn.Module) -> bool:
    return "question_embedding" not in dict(model.named_children())
