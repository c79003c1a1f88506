"""Digits with a query: does its first digit occur more often than its second? De Cao et al. 2020, section 4.1."""

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from diffmask.core.batch import Batch

DIGITS = 10
QUERY_RATE = 0.25
"""How often each of the two query digits is drawn; the other eight share the rest."""


def draw(rows: int, length: int, seed: int) -> Batch:
    """Rows of 1 to `length` digits with a query (m, n) each; the target is 1 where m is counted more often than n."""
    source = np.random.default_rng(seed)
    query = source.permuted(np.tile(np.arange(DIGITS), (rows, 1)), axis=1)[:, :2]
    rate = np.full((rows, DIGITS), (1 - 2 * QUERY_RATE) / (DIGITS - 2))
    np.put_along_axis(rate, query, QUERY_RATE, axis=1)
    uniform = source.random((rows, length, 1))
    digits = (uniform > rate.cumsum(axis=1)[:, None, :-1]).sum(axis=-1)
    lengths = source.integers(1, length + 1, size=(rows, 1))
    return assemble(torch.from_numpy(digits), torch.from_numpy(query), torch.from_numpy(np.arange(length) < lengths))


def assemble(
    digits: Int[Tensor, "row token"], query: Int[Tensor, "row 2"], present: Bool[Tensor, "row token"]
) -> Batch:
    """A batch of the toy task from digits, queries and lengths; padding is the digit 0."""
    digits = digits * present
    first, second = (_count(digits, query[:, k], present) for k in (0, 1))
    target = (first > second).float()
    return Batch(tokens=digits, present=present, maskable=present, target=target, inputs={"query": query})


def truth(batch: Batch) -> Float[Tensor, "row token"]:
    """1 for each digit that is counted, 0 for the others."""
    query = batch.inputs["query"]
    return ((batch.tokens[:, :, None] == query[:, None, :]).any(dim=2) & batch.present).float()


def smallest_evidence(batch: Batch) -> Float[Tensor, "row token"]:
    """1 for the first of the digits that win, 0 for all others: keeping it alone keeps the answer."""
    query = batch.inputs["query"]
    winner = torch.where(batch.target == 1, query[:, 0], query[:, 1])
    wins = (batch.tokens == winner[:, None]) & batch.present
    return (wins & (wins.cumsum(dim=1) == 1)).float()


def _count(
    digits: Int[Tensor, "row token"], digit: Int[Tensor, " row"], present: Bool[Tensor, "row token"]
) -> Int[Tensor, " row"]:
    return ((digits == digit[:, None]) & present).sum(dim=1)
