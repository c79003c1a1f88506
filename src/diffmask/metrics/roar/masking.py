"""Which tokens are masked: the most important ones of each row, those already masked first. Madsen et al. 2022, 3.

Importance measures by the names that Madsen et al. 2022 give them, computed as they do.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from diffmask.core.batch import Batch
from diffmask.core.config import parse
from diffmask.core.explainer import Method

Strategy = Literal["count", "quantile"]
Mask = Bool[Tensor, "row token"]

DRAWN_AT_ONCE = 256
"""Rows, as published: a row's numbers depend on the padding of those before it."""


def number_to_mask(maskable: Mask, k: int, strategy: Strategy) -> Int[Tensor, " row"]:
    """min(k, n) tokens, or k % of the n that may be masked, rounded down: at 10 % a 9-token text keeps everything."""
    n = maskable.sum(dim=1)
    return n.clamp(max=k) if strategy == "count" else n * k // 100


def most_important(
    scores: Float[Tensor, "row token"], maskable: Mask, masked: Mask, number: Int[Tensor, " row"]
) -> Mask:
    """`number` tokens of each row: those already masked, then by score; ties by position; no NaN before a number.

    >>> scores, yes = torch.tensor([[0.1, 0.7, float("nan"), 0.7]]), torch.ones(1, 4, dtype=torch.bool)
    >>> most_important(scores, yes, ~yes, torch.tensor([2])).int()
    tensor([[0, 1, 0, 1]], dtype=torch.int32)
    """
    # Infinities are for us to give: a method's own must not overtake a token that is already masked.
    finite = torch.nan_to_num(scores, nan=-torch.finfo(scores.dtype).max)
    ranked = finite.masked_fill(masked, torch.inf).masked_fill(~maskable, -torch.inf)
    rank = ranked.argsort(dim=1, descending=True, stable=True).argsort(dim=1)
    return (rank < number[:, None]) & maskable


def with_masks(batch: Batch, masked: Mask, mask_token: int) -> Batch:
    """The batch with the mask token in place of the masked ones; its length stays."""
    return replace(batch, tokens=batch.tokens.masked_fill(masked, mask_token))


def random_importances(data: Mapping[str, Batch], seed: int) -> dict[str, Float[Tensor, "_row _token"]]:
    """U(0, 1) for every token of every split, and with it the published random masks: numpy's numbers, in its order.

    Test rows are few: of another draw, a share of 1,000 rows has a standard error of 1.5 points.
    """
    source = np.random.RandomState(seed)
    found = {}
    for split, batch in data.items():
        scores = torch.zeros(batch.tokens.shape)
        for first in range(0, len(batch), DRAWN_AT_ONCE):
            rows = slice(first, first + DRAWN_AT_ONCE)
            shape = batch[rows].trim().tokens.shape
            scores[rows, : shape[1]] = torch.from_numpy(source.rand(*shape)).float()
        found[split] = scores
    return found


PUBLISHED: dict[str, dict[str, Any]] = {
    "gradient": {"name": "gradient", "one_hot": True, "quantity": "logit"},
    "times-input-gradient": {"name": "input-x-gradient", "quantity": "logit"},
    "integrated-gradients": {
        "name": "integrated-gradients",
        "as_published": True,
        "path": "right",
        "quantity": "logit",
    },
}
SIGNED = ("times-input-gradient", "integrated-gradients")


def measure(name: str, riemann_samples: int = 50, signed: bool = False) -> Method:
    """The method of that name; any other method by its own."""
    chosen = dict(PUBLISHED.get(name, {"name": name}))
    if name == "integrated-gradients":
        chosen["n_steps"] = riemann_samples
    if signed and name in SIGNED:
        chosen["signed"] = True
    found: Method = parse("method", chosen, "roar")
    return found
