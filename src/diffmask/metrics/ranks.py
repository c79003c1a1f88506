"""Ranks of a text's tokens by score, ties shared; what two orders have in common."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from diffmask.metrics.erasure import counts, places

Scores = Float[Tensor, "row token"]
Mask = Bool[Tensor, "row token"]
TOP = 0.2
"""Share of a text's tokens that are its highest."""


def above_and_equal(scores: Scores, maskable: Mask, counted: Mask | None = None) -> tuple[Scores, Scores]:
    """For each token, how many of its row score higher, and how many the same (itself among them).

    Only maskable tokens are counted, or those of them that `counted` names.
    """
    others = maskable if counted is None else counted & maskable
    # Pairs of tokens: so many rows at once that memory stays small.
    rows = max(1, 2**24 // scores.shape[1] ** 2)
    parts = [_pairs(*part) for part in zip(*(value.split(rows) for value in (scores, maskable, others)), strict=True)]
    return torch.cat([above for above, _ in parts]), torch.cat([equal for _, equal in parts])


def _pairs(scores: Scores, maskable: Mask, others: Mask) -> tuple[Scores, Scores]:
    both = maskable[:, :, None] & others[:, None, :]
    above = (scores[:, None, :] > scores[:, :, None]) & both
    equal = (scores[:, None, :] == scores[:, :, None]) & both
    return above.sum(dim=2).to(scores.dtype), equal.sum(dim=2).to(scores.dtype)


def mid_ranks(scores: Scores, maskable: Mask) -> Scores:
    """1 for the highest score; tokens that tie share the mean of their ranks; 0 where nothing may be masked.

    >>> mid_ranks(torch.tensor([[0.5, 0.9, 0.5, 7.0]]), torch.tensor([[True, True, True, False]]))
    tensor([[2.5000, 1.0000, 2.5000, 0.0000]])
    """
    above, equal = above_and_equal(scores, maskable)
    return (above + (equal + 1) / 2) * maskable


def chance_among_first(scores: Scores, maskable: Mask, count: Float[Tensor, " row"]) -> Scores:
    """Probability that a token is among the first `count` of its row when ties are broken at random.

    With g tokens above it and e equal to it: (count - g) / e, within 0 and 1.
    """
    above, equal = above_and_equal(scores, maskable)
    return ((count[:, None] - above) / equal.clamp(min=1)).clamp(0, 1) * maskable


def rank_correlation(first: Scores, second: Scores, maskable: Mask) -> Float[Tensor, " row"]:
    """Spearman's rho of each row. Where one order is all ties it is 0; where both are, they agree: 1."""
    one, two = (_centred(mid_ranks(scores, maskable), maskable) for scores in (first, second))
    size = one.square().sum(dim=1).sqrt() * two.square().sum(dim=1).sqrt()
    both_flat = (one == 0).all(dim=1) & (two == 0).all(dim=1)
    found = (one * two).sum(dim=1) / size.clamp(min=1e-12)
    return found.masked_fill(both_flat, 1.0)


def top_overlap(first: Scores, second: Scores, maskable: Mask) -> Float[Tensor, " row"]:
    """Share of the highest fifth of a text's tokens that two orders have in common; NaN for a text without tokens."""
    size = counts(maskable, (TOP,))
    one, other = (places(scores, maskable) < size for scores in (first, second))
    return (one & other).sum(dim=1) / size.squeeze(1)


def _centred(ranks: Scores, maskable: Mask) -> Scores:
    mean = ranks.sum(dim=1, keepdim=True) / maskable.sum(dim=1, keepdim=True).clamp(min=1)
    return (ranks - mean) * maskable
