"""Rows with a random part of their tokens masked: what a model is fine-tuned on to take erasure for granted.

Madsen et al. 2024, "Faithfulness Measurable Masked Language Models".
"""

from dataclasses import replace

import torch

from diffmask.batch import Batch
from diffmask.errors import TaskError
from diffmask.task import Task


def partly_masked(task: Task, batch: Batch, rows: float, source: torch.Generator) -> Batch:
    """The batch with a share of its rows masked, the last ones: each by a share of its own, token by token."""
    if rows == 0:
        return batch
    if task.mask_token is None:
        raise TaskError(f"{type(task).__name__} has no mask token: it cannot be fine-tuned on masked texts")
    share = torch.rand(len(batch), 1, generator=source)
    share[: len(batch) - round(rows * len(batch))] = 0
    gone = (torch.rand(batch.tokens.shape, generator=source) < share).to(batch.tokens.device) & batch.maskable
    return replace(batch, tokens=batch.tokens.masked_fill(gone, task.mask_token))
