"""Do two methods say the same? Rank correlation, and how many of their highest tokens they share."""

from jaxtyping import Bool, Float
from torch import Tensor

from diffmask.evaluate.erasing import counts, places

Scores = Float[Tensor, "row token"]
TOP = 0.2
"""Share of a text's tokens that are its highest."""


def rank_correlation(first: Scores, second: Scores, maskable: Bool[Tensor, "row token"]) -> Float[Tensor, " row"]:
    """Spearman's: the correlation of ranks, equal scores at their mean rank; NaN where one score is all there is."""
    one, other = (centred(ranks(scores, maskable), maskable) for scores in (first, second))
    return (one * other).sum(dim=1) / (one.square().sum(dim=1) * other.square().sum(dim=1)).sqrt()


def top_overlap(first: Scores, second: Scores, maskable: Bool[Tensor, "row token"]) -> Float[Tensor, " row"]:
    """Share of the highest fifth of a text's tokens that two methods have in common; NaN for a text without tokens."""
    size = counts(maskable, (TOP,))
    one, other = (places(scores, maskable) < size for scores in (first, second))
    return (one & other).sum(dim=1) / size.squeeze(1)


def ranks(scores: Scores, maskable: Bool[Tensor, "row token"]) -> Scores:
    """Each token's rank among the maskable ones of its row, from 0; equal scores share their mean rank.

    >>> import torch
    >>> ranks(torch.tensor([[5.0, 1.0, 5.0, 0.0]]), torch.ones(1, 4, dtype=torch.bool))
    tensor([[2.5000, 1.0000, 2.5000, 0.0000]])
    """
    there = maskable[:, None, :]
    below = ((scores[:, None, :] < scores[:, :, None]) & there).sum(dim=2)
    level = ((scores[:, None, :] == scores[:, :, None]) & there).sum(dim=2)
    return below + (level - 1) / 2


def centred(values: Scores, maskable: Bool[Tensor, "row token"]) -> Scores:
    """Less the mean over the maskable tokens; 0 elsewhere."""
    mean = (values * maskable).sum(dim=1, keepdim=True) / maskable.sum(dim=1, keepdim=True)
    return (values - mean) * maskable


def table(scores: list[Scores], maskable: Bool[Tensor, "row token"]) -> dict[str, list[list[float]]]:
    """Every pair of methods, means over texts."""
    kinds = {"rank correlation": rank_correlation, "overlap of the highest fifth": top_overlap}
    return {
        name: [[_mean(kind(one, other, maskable)) for other in scores] for one in scores]
        for name, kind in kinds.items()
    }


def _mean(values: Float[Tensor, " row"]) -> float:
    known = values[~values.isnan()]
    return float(known.mean()) if len(known) else 0.0
