"""Mutual information of words and labels in the data, without the model. Madsen et al. 2022 (ROAR)."""

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
    """score_t = sum_l P(l) I([text contains word x_t]; [label is l]) in nats, over the training rows.

    Madsen et al. 2022. Every count starts at 1, as published; 0 log 0 = 0.
    """

    name: ClassVar[str] = "mutual-information"

    def build(self, task: Task, seed: int) -> "MutualInformationExplainer":
        """Allocate one score per word; `train` fills them in."""
        words = 1 + max(int(batch.tokens.max()) for batch in task.data.values())
        class_labels(task.data["train"].target)
        return MutualInformationExplainer(task, words)

    def train(self, explainer: "MutualInformationExplainer", task: Task, seed: int) -> None:
        """Count words and labels in the training rows."""
        explainer.table.copy_(word_label_information(task.data["train"], len(explainer.table)))


class MutualInformationExplainer(Explainer):
    """Explainer that looks words up in a table; a word that occurs in no split scores 0."""

    explains_target: ClassVar[bool] = False

    table: Tensor

    def __init__(self, task: Task, words: int) -> None:
        super().__init__(task)
        self.register_buffer("table", torch.zeros(words))

    def explain(self, batch: Batch, target: Shaped[Tensor, "row *event"]) -> Attribution:
        """Return the score of each word; scores that depended on the outcome would reveal the label."""
        known = batch.tokens < len(self.table)
        return Attribution(self.table[batch.tokens.where(known, 0)] * known)


def class_labels(target: Shaped[Tensor, "row *event"]) -> Int[Tensor, " row"]:
    """Return the label of each row, numbered from 0."""
    if target.is_floating_point() and not (target == target.round()).all():
        raise TaskError("mutual-information: targets are not classes; it needs a task that classifies")
    return target.reshape(len(target), -1).unique(dim=0, return_inverse=True)[1]


def word_label_information(batch: Batch, words: int) -> Float[Tensor, " word"]:
    """Compute sum_l P(l) sum_uv p(u, v) log p(u, v) / (p(u) p(v)), u = the word occurs, v = the label is l."""
    label = class_labels(batch.target)
    classes = int(label.max()) + 1
    rows, tokens = batch.maskable.nonzero(as_tuple=True)
    # A word counts once per text, however often it occurs there.
    pairs = torch.stack([rows, batch.tokens[rows, tokens]]).unique(dim=1)
    joint_counts = torch.ones(words, classes, dtype=torch.float64)
    increment = torch.ones((), dtype=torch.float64)
    joint_counts.index_put_((pairs[1].cpu(), label[pairs[0]].cpu()), increment, accumulate=True)
    label_counts = 1.0 + label.cpu().bincount(minlength=classes).double()
    return ((label_counts / label_counts.sum()) * _binary_information(joint_counts, label_counts)).sum(dim=1).float()


def _binary_information(
    joint_counts: Float[Tensor, "word label"], label_counts: Float[Tensor, " label"]
) -> Float[Tensor, "word label"]:
    """Compute the mutual information of two binary events from their joint and label counts."""
    total, word = label_counts.sum(), joint_counts.sum(dim=1, keepdim=True)
    information = torch.zeros_like(joint_counts)
    for joint, first, second in (
        (joint_counts, word, label_counts),
        (word - joint_counts, word, total - label_counts),
        (label_counts - joint_counts, total - word, label_counts),
        (total - word - label_counts + joint_counts, total - word, total - label_counts),
    ):
        ratio = joint * total / (first * second)
        information += torch.where(joint > 0, joint / total * ratio.clamp(min=1e-300).log(), 0.0)
    return information
