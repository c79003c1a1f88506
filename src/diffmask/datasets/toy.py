"""Digits with a query (m, n): does m occur more often than n? De Cao et al. 2020, section 4.1."""

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from diffmask.core.batch import Batch

VOCABULARY_SIZE = 10
QUERY_RATE = 0.25
"""Probability of each of the two query digits; the other eight share the rest."""


def sample_digits(rows: int, length: int, seed: int) -> Batch:
    """Sample rows of 1 to `length` digits with a query (m, n) each; the target is 1 if m occurs more often than n."""
    rng = np.random.default_rng(seed)
    query = rng.permuted(np.tile(np.arange(VOCABULARY_SIZE), (rows, 1)), axis=1)[:, :2]
    rate = np.full((rows, VOCABULARY_SIZE), (1 - 2 * QUERY_RATE) / (VOCABULARY_SIZE - 2))
    np.put_along_axis(rate, query, QUERY_RATE, axis=1)
    # Inverse transform sampling: the digit is the number of cumulative rates below a uniform draw.
    uniform = rng.random((rows, length, 1))
    digits = (uniform > rate.cumsum(axis=1)[:, None, :-1]).sum(axis=-1)
    lengths = rng.integers(1, length + 1, size=(rows, 1))
    present = torch.from_numpy(np.arange(length) < lengths)
    return digits_batch(torch.from_numpy(digits), torch.from_numpy(query), present)


def digits_batch(
    digits: Int[Tensor, "row token"], query: Int[Tensor, "row 2"], present: Bool[Tensor, "row token"]
) -> Batch:
    """Return a batch of digits and queries with its targets; padding is the digit 0."""
    digits = digits * present
    first, second = (_count(digits, query[:, k], present) for k in (0, 1))
    target = (first > second).float()
    return Batch(tokens=digits, present=present, maskable=present, target=target, inputs={"query": query})


def query_digits(batch: Batch) -> Float[Tensor, "row token"]:
    """Return the ground truth: 1 for every occurrence of a query digit, 0 for the other digits."""
    query = batch.inputs["query"]
    return ((batch.tokens[:, :, None] == query[:, None, :]).any(dim=2) & batch.present).float()


def first_winning_digit(batch: Batch) -> Float[Tensor, "row token"]:
    """Return the smallest evidence: 1 for the first occurrence of the winning digit, which alone decides the row."""
    query = batch.inputs["query"]
    winner = torch.where(batch.target == 1, query[:, 0], query[:, 1])
    wins = (batch.tokens == winner[:, None]) & batch.present
    return (wins & (wins.cumsum(dim=1) == 1)).float()


def _count(
    digits: Int[Tensor, "row token"], digit: Int[Tensor, " row"], present: Bool[Tensor, "row token"]
) -> Int[Tensor, " row"]:
    return ((digits == digit[:, None]) & present).sum(dim=1)
