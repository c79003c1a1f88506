"""What a report measures rankings by: comprehensiveness, sufficiency, rank correlation and overlap at the top."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from diffmask.answer import decision, explained
from diffmask.batch import Batch, ranking
from diffmask.methods.erasure import fill
from diffmask.probe import baseline_state
from diffmask.task import Task

RATIOS = (0.05, 0.1, 0.2, 0.5)
Scores = Float[Tensor, "row token"]


@dataclass(frozen=True)
class Faithfulness:
    """Means over ratios and texts, in probability of the answer. DeYoung et al. 2020."""

    comprehensiveness: float
    """p(y|x) - p(y|x without the top tokens); higher is better."""
    sufficiency: float
    """p(y|x) - p(y|the top tokens alone); lower is better."""


@torch.no_grad()
def faithfulness(task: Task, batch: Batch, scores: Scores, rows_at_once: int = 128) -> Faithfulness:
    """Erased tokens become the mask token, or the mean state where there is none; ratios are rounded up."""
    baseline = baseline_state(task, task.sites[0], "auto")
    order = batch.present.sum(dim=1).argsort(stable=True)
    drops = []
    for rows in order.split(rows_at_once):
        part = batch[rows].trim()
        answer = task.predict(part)
        target, whole = decision(answer), explained(answer, decision(answer), "probability")
        for ratio in RATIOS:
            top = top_tokens(scores[rows, : part.tokens.shape[1]], part.maskable, ratio)
            left = [
                explained(task.predict(part, {task.sites[0]: fill(gone, baseline)}), target, "probability")
                for gone in (top, part.maskable & ~top)
            ]
            drops.append(whole - torch.stack(left))
    found = torch.cat(drops, dim=1).mean(dim=1).tolist()
    return Faithfulness(*found)


def top_tokens(scores: Scores, maskable: Bool[Tensor, "row token"], ratio: float) -> Bool[Tensor, "row token"]:
    """The share of a row's tokens that score highest, rounded up.

    >>> top_tokens(torch.tensor([[0.1, 0.9, 0.5]]), torch.tensor([[True, True, True]]), 0.5)
    tensor([[False,  True,  True]])
    """
    count = (maskable.sum(dim=1, keepdim=True) * ratio - 1e-6).ceil()
    return (ranking(scores, maskable).argsort(dim=1) < count) & maskable


def rank_correlation(first: Scores, second: Scores, maskable: Bool[Tensor, "row token"]) -> float:
    """Spearman's, over the maskable tokens of each row with at least two, averaged; ties by position."""
    found = []
    for one, other, real in zip(first, second, maskable, strict=True):
        if real.sum() > 1:
            ranks = torch.stack([_ranks(one[real]), _ranks(other[real])])
            found.append(torch.corrcoef(ranks)[0, 1])
    return torch.stack(found).mean().item() if found else float("nan")


def _ranks(values: Float[Tensor, " token"]) -> Float[Tensor, " token"]:
    return values.argsort(stable=True).argsort().double()


def overlap(first: Scores, second: Scores, maskable: Bool[Tensor, "row token"], ratio: float = 0.2) -> float:
    """Share of the top tokens of one that are top tokens of the other."""
    tops = [top_tokens(scores, maskable, ratio) for scores in (first, second)]
    return ((tops[0] & tops[1]).sum() / tops[0].sum().clamp(min=1)).item()
