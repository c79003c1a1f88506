"""Masking of data for ROAR: the protocol, and the most important tokens of each row. Madsen et al. 2022, section 3."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from diffmask.core.batch import Batch
from diffmask.core.capabilities import Retrainable, require
from diffmask.core.task import Task
from diffmask.errors import ConfigError, TaskError

Strategy = Literal["count", "quantile"]
RandomDraws = Literal["published", "method"]
Mask = Bool[Tensor, "row token"]

# Splits differ in size. jaxtyping does not compare axes whose name begins with _.
MasksBySplit = Mapping[str, Bool[Tensor, "_row _token"]]
ScoresBySplit = Mapping[str, Float[Tensor, "_row _token"]]

PUBLISHED_BATCH_SIZE = 256
"""Batch size of the published random draws. The numbers of a row depend on the padding of the rows before it."""


@dataclass(frozen=True, kw_only=True)
class RoarProtocol:
    """How tokens are removed."""

    strategy: Strategy = "quantile"
    """Whether an amount is a percentage of the maskable tokens or a number of tokens."""
    recursive: bool = False
    """Whether the scores come from the model and the masked data of the previous step."""
    step_size: int = 10
    """Amount between two recursive steps."""
    target: Literal["gold", "predicted"] = "gold"
    """Outcome that is explained, in every split."""
    absolute: bool = True
    """Whether tokens are ranked by the absolute score instead of by the signed score."""
    random_draws: RandomDraws = "published"
    """Scores of the random baseline: the published draws for whole splits, or those of the `random` method itself.

    The published draws are the default because they reproduce the random masks of Madsen et al. 2022. Test rows are
    few: with other draws, a share of 1,000 rows has a standard error of 1.5 percentage points.
    """

    def __post_init__(self) -> None:
        if self.step_size < 1:
            raise ConfigError(f"roar: step_size is at least 1; found {self.step_size}")

    def importance(self, scores: Float[Tensor, "row token"]) -> Float[Tensor, "row token"]:
        """Return the scores that tokens are ranked by: absolute or signed."""
        return scores.abs() if self.absolute else scores

    def select_tokens(
        self, task: Task, data: Mapping[str, Batch], scores: ScoresBySplit, masked: MasksBySplit, k: int
    ) -> dict[str, Mask]:
        """Return the masks of all splits for the amount `k`: the tokens masked before, then the most important ones."""
        maskable = {split: require(task, Retrainable, "ROAR").roar_maskable(batch) for split, batch in data.items()}
        return {
            split: select_most_important(scores[split], tokens, masked[split], number_to_mask(tokens, k, self.strategy))
            for split, tokens in maskable.items()
        }


def number_to_mask(maskable: Mask, k: int, strategy: Strategy) -> Int[Tensor, " row"]:
    """Compute the number of tokens to mask in each row: min(k, n), or k % of the n maskable tokens, rounded down."""
    n = maskable.sum(dim=1)
    # Floor, as in Madsen et al.: at 10 % a 9-token text keeps everything.
    return n.clamp(max=k) if strategy == "count" else n * k // 100


def select_most_important(
    scores: Float[Tensor, "row token"], maskable: Mask, masked: Mask, number: Int[Tensor, " row"]
) -> Mask:
    """Mark `number` tokens of each row: those already masked, then the highest scores.

    NaN ranks last; ties are broken by position.

    >>> scores, yes = torch.tensor([[0.1, 0.7, float("nan"), 0.7]]), torch.ones(1, 4, dtype=torch.bool)
    >>> select_most_important(scores, yes, ~yes, torch.tensor([2])).int()
    tensor([[0, 1, 0, 1]], dtype=torch.int32)
    """
    # Infinite scores of a method become finite: they must not rank above a token that is already masked.
    finite = torch.nan_to_num(scores, nan=-torch.finfo(scores.dtype).max)
    ranked = finite.masked_fill(masked, torch.inf).masked_fill(~maskable, -torch.inf)
    rank = ranked.argsort(dim=1, descending=True, stable=True).argsort(dim=1)
    return (rank < number[:, None]) & maskable


def apply_masks(task: Task, data: Mapping[str, Batch], masks: MasksBySplit) -> dict[str, Batch]:
    """Replace the masked tokens of all splits by the task's mask token; lengths stay."""
    if task.mask_token is None:
        raise TaskError(f"{type(task).__name__} has no mask token, which ROAR needs")
    token = task.mask_token
    return {split: mask_tokens(data[split], masked, token) for split, masked in masks.items()}


def mask_tokens(batch: Batch, masked: Mask, mask_token: int) -> Batch:
    """Replace the masked tokens of a batch by the mask token; its length stays."""
    return replace(batch, tokens=batch.tokens.masked_fill(masked, mask_token))


def no_masks(data: Mapping[str, Batch]) -> dict[str, Mask]:
    """Return masks of all splits that mask nothing."""
    return {split: torch.zeros_like(batch.maskable) for split, batch in data.items()}


def published_random_scores(data: Mapping[str, Batch], seed: int) -> dict[str, Float[Tensor, "_row _token"]]:
    """Draw U(0, 1) for every token of every split in the order of the published code, which gives its random masks."""
    source = np.random.RandomState(seed)
    scores = {}
    for split, batch in data.items():
        scores[split] = torch.zeros(batch.tokens.shape)
        for first in range(0, len(batch), PUBLISHED_BATCH_SIZE):
            rows = slice(first, first + PUBLISHED_BATCH_SIZE)
            shape = batch[rows].trim().tokens.shape
            scores[split][rows, : shape[1]] = torch.from_numpy(source.rand(*shape)).float()
    return scores
