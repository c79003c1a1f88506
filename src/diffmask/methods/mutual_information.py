"""Mutual information of a word and a label: a ranking that never looks at the model. Madsen et al. 2022 (ROAR)."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from diffmask.core.batch import Attribution, Batch
from diffmask.core.explainer import Explainer, Method
from diffmask.core.task import Task
from diffmask.errors import TaskError


@dataclass(frozen=True, kw_only=True)
class MutualInformation(Method):
    """score_t = sum_l P(l) I([text holds word x_t]; [label is l]) in nats, counted over the training rows.

    Every pair of a word and a label, and every label, starts from a count of 1, as published; 0 log 0 = 0.
    """

    name: ClassVar[str] = "mutual-information"

    def build(self, task: Task, seed: int) -> "MutualInformationExplainer":
        """A number for each word; filled in by the fit."""
        words = 1 + max(int(batch.tokens.max()) for batch in task.data.values())
        labels_of(task.data["train"].target)
        return MutualInformationExplainer(task, words)

    def train(self, explainer: "MutualInformationExplainer", task: Task, seed: int) -> None:
        """Count the training rows once."""
        explainer.table.copy_(word_label_information(task.data["train"], len(explainer.table)))


class MutualInformationExplainer(Explainer):
    """A table of words; a word that no split holds scores 0."""

    table: Tensor

    def __init__(self, task: Task, words: int) -> None:
        super().__init__(task)
        self.register_buffer("table", torch.zeros(words))

    def explain(self, batch: Batch, target: Shaped[Tensor, "row *event"]) -> Attribution:
        """The same for every outcome: a ranking that depended on it would give the label away."""
        known = batch.tokens < len(self.table)
        return Attribution(self.table[batch.tokens.where(known, 0)] * known)


def labels_of(target: Shaped[Tensor, "row *event"]) -> Int[Tensor, " row"]:
    """Each row's label, numbered from 0."""
    if target.is_floating_point() and not (target == target.round()).all():
        raise TaskError("mutual-information: targets are not classes; it needs a task that classifies")
    return target.reshape(len(target), -1).unique(dim=0, return_inverse=True)[1]


def word_label_information(batch: Batch, words: int) -> Float[Tensor, " word"]:
    """sum_l P(l) sum_uv p(u, v) log p(u, v) / (p(u) p(v)); u: whether the word occurs, v: whether the label is l."""
    label = labels_of(batch.target)
    classes = int(label.max()) + 1
    rows, tokens = batch.maskable.nonzero(as_tuple=True)
    # A word counts once a text, however often it stands there.
    pairs = torch.stack([rows, batch.tokens[rows, tokens]]).unique(dim=1)
    both = torch.ones(words, classes, dtype=torch.float64)
    both.index_put_((pairs[1].cpu(), label[pairs[0]].cpu()), torch.ones((), dtype=torch.float64), accumulate=True)
    each = 1.0 + label.cpu().bincount(minlength=classes).double()
    return ((each / each.sum()) * _binary_information(both, each)).sum(dim=1).float()


def _binary_information(
    both: Float[Tensor, "word label"], each: Float[Tensor, " label"]
) -> Float[Tensor, "word label"]:
    """The mutual information of two events, from the counts of both together and of the labels."""
    total, word = each.sum(), both.sum(dim=1, keepdim=True)
    information = torch.zeros_like(both)
    for joint, first, second in (
        (both, word, each),
        (word - both, word, total - each),
        (each - both, total - word, each),
        (total - word - each + both, total - word, total - each),
    ):
        ratio = joint * total / (first * second)
        information += torch.where(joint > 0, joint / total * ratio.clamp(min=1e-300).log(), 0.0)
    return information
