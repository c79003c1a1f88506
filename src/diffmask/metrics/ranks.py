"""Ranks of the tokens of a text by score, with shared ranks for ties, and the agreement of two rankings."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from diffmask.metrics.erasure import rank_positions, tokens_to_erase

Scores = Float[Tensor, "row token"]
Mask = Bool[Tensor, "row token"]
TOP_SHARE = 0.2
"""Share of the tokens of a text that count as its highest."""


def above_and_equal(scores: Scores, maskable: Mask, counted: Mask | None = None) -> tuple[Scores, Scores]:
    """Count for each token the tokens of its row with a higher score and with the same score, itself included.

    Only maskable tokens are counted, or those of them that `counted` marks.
    """
    others = maskable if counted is None else counted & maskable
    # Every pair of tokens is compared: few rows at a time limit the memory.
    rows = max(1, 2**24 // scores.shape[1] ** 2)
    chunks = zip(*(value.split(rows) for value in (scores, maskable, others)), strict=True)
    counts = [_compare_pairs(*chunk) for chunk in chunks]
    return torch.cat([above for above, _ in counts]), torch.cat([equal for _, equal in counts])


def _compare_pairs(scores: Scores, maskable: Mask, others: Mask) -> tuple[Scores, Scores]:
    both = maskable[:, :, None] & others[:, None, :]
    above = (scores[:, None, :] > scores[:, :, None]) & both
    equal = (scores[:, None, :] == scores[:, :, None]) & both
    return above.sum(dim=2).to(scores.dtype), equal.sum(dim=2).to(scores.dtype)


def mid_ranks(scores: Scores, maskable: Mask) -> Scores:
    """Compute ranks from 1, the highest score; ties share their mean rank; tokens that are not maskable have 0.

    >>> mid_ranks(torch.tensor([[0.5, 0.9, 0.5, 7.0]]), torch.tensor([[True, True, True, False]]))
    tensor([[2.5000, 1.0000, 2.5000, 0.0000]])
    """
    above, equal = above_and_equal(scores, maskable)
    return (above + (equal + 1) / 2) * maskable


def top_k_probability(scores: Scores, maskable: Mask, count: Float[Tensor, " row"]) -> Scores:
    """Compute the probability that a token is among the top `count` of its row if ties are broken at random.

    With g tokens above it and e equal to it: (count - g) / e, clipped to [0, 1].
    """
    above, equal = above_and_equal(scores, maskable)
    return ((count[:, None] - above) / equal.clamp(min=1)).clamp(0, 1) * maskable


def rank_correlation(first: Scores, second: Scores, maskable: Mask) -> Float[Tensor, " row"]:
    """Compute Spearman's rho of each row: 0 if all scores of one ranking are equal, 1 if those of both are.

    This version works on padded batches. Reports must not import torch, so `report.payload.disagreement` has its own
    for the words of one text; a test compares the two.
    """
    centred_first, centred_second = (_centre(mid_ranks(scores, maskable), maskable) for scores in (first, second))
    norm = centred_first.square().sum(dim=1).sqrt() * centred_second.square().sum(dim=1).sqrt()
    both_constant = (centred_first == 0).all(dim=1) & (centred_second == 0).all(dim=1)
    correlation = (centred_first * centred_second).sum(dim=1) / norm.clamp(min=1e-12)
    return correlation.masked_fill(both_constant, 1.0)


def top_overlap(first: Scores, second: Scores, maskable: Mask) -> Float[Tensor, " row"]:
    """Compute the share of the top fifth of the tokens that two rankings share; NaN for a text without tokens."""
    size = tokens_to_erase(maskable, (TOP_SHARE,))
    top_first, top_second = (rank_positions(scores, maskable) < size for scores in (first, second))
    return (top_first & top_second).sum(dim=1) / size.squeeze(1)


def _centre(ranks: Scores, maskable: Mask) -> Scores:
    mean = ranks.sum(dim=1, keepdim=True) / maskable.sum(dim=1, keepdim=True).clamp(min=1)
    return (ranks - mean) * maskable
