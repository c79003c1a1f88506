"""Training a model of words: rows of one length together, short texts first, and no epoch too many."""

import logging
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from diffmask.batch import Batch
from diffmask.training import generator, one_thread, track

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class WordTraining:
    """Adam with AMSGrad and a little weight decay; the epoch best on the validation rows is kept."""

    epochs: int
    """At most so many passes over the rows."""
    batch_size: int
    learning_rate: float
    weight_decay: float = 1e-5
    """Not on the attention of a model of single texts, as published."""
    patience: int
    """Epochs without a better validation score after which training stops; a perfect one stops it at once."""
    short_first: int = 0
    """Passes over shorter texts only, before the first over all: what is learned there is learned cheaply."""

    @one_thread()
    def run(self, task: Any, seed: int) -> list[float]:
        """Train the task's model in place; its score on the validation rows after each epoch."""
        model, source = task.model, generator(seed, "word training")
        optimizer = torch.optim.Adam(self._groups(model), lr=self.learning_rate, amsgrad=True, fused=True)
        scores: list[float] = []
        kept = deepcopy(model.state_dict())
        for epoch in track(range(self.short_first + self.epochs), "train the model"):
            self._epoch(task, self.lesson(task.data["train"], epoch), optimizer, source)
            if epoch < self.short_first:
                continue
            scores.append(task.selection(task.data["valid"]))
            logger.debug("epoch %d: score %.4f on validation rows", epoch + 1, scores[-1])
            if scores[-1] == max(scores):
                kept = deepcopy(model.state_dict())
            if max(scores) >= 1.0 or len(scores) - 1 - scores.index(max(scores)) >= self.patience:
                break
        model.load_state_dict(kept)
        model.eval().requires_grad_(False)
        return scores

    def lesson(self, data: Batch, epoch: int) -> Batch:
        """The rows of an epoch: at first the shortest fifth, then two fifths, and so on, for fewer and fewer epochs."""
        if epoch >= self.short_first:
            return data
        length = data.present.sum(dim=1)
        # Of 15: six at one fifth, four at two, three at three and two at four.
        share = (1 + sum(epoch >= self.short_first * part // 15 for part in (6, 10, 13))) / 5
        return data[length <= length.float().quantile(share)]

    def _epoch(self, task: Any, rows: Batch, optimizer: torch.optim.Optimizer, source: torch.Generator) -> None:
        task.model.train().requires_grad_(True)
        for batch in batches_of_one_length(rows, self.batch_size, source):
            optimizer.zero_grad()
            cross_entropy(task.logits(batch), batch.target).backward()
            optimizer.step()
        task.model.eval().requires_grad_(False)

    def _groups(self, model: nn.Module) -> list[dict[str, Any]]:
        free = [value for name, value in model.named_parameters() if name.startswith("pooling.") and _single(model)]
        decayed = [value for value in model.parameters() if not any(value is other for other in free)]
        return [{"params": decayed, "weight_decay": self.weight_decay}, {"params": free, "weight_decay": 0.0}]


def batches_of_one_length(data: Batch, size: int, source: torch.Generator) -> Iterator[Batch]:
    """The rows once, in random order; a batch ends when it is full, or half full and the next row is longer."""
    shuffled = torch.randperm(len(data), generator=source)
    length = data.present.sum(dim=1)
    order = shuffled[length[shuffled].argsort(stable=True)]
    cuts = _cuts(length[order].tolist(), size)
    for index in torch.randperm(len(cuts) - 1, generator=source).tolist():
        yield data[order[cuts[index] : cuts[index + 1]]].trim()


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
    parts = [task.logits(batch[order[start:end]].trim()) for start, end in pairwise(cuts)]
    return torch.cat(parts)[order.argsort()]


def _single(model: nn.Module) -> bool:
    return "question_embedding" not in dict(model.named_children())
