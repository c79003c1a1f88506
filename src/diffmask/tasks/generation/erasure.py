"""Ways of erasing tokens of a prompt that need more than a batch: new positions, and keys hidden from one layer on."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace

import torch
from jaxtyping import Bool
from torch import Tensor, nn

from diffmask.core.batch import Batch
from diffmask.core.hooks import edit_argument
from diffmask.tasks.generation.prompt_encoding import POSITION


def close_gaps(batch: Batch) -> Batch:
    """Number the present tokens of each row from 0, as if the erased ones had never been in the text."""
    position = (batch.present.long().cumsum(dim=1) - 1).clamp(min=0)
    return replace(batch, token_inputs={**batch.token_inputs, POSITION: position})


def hide_keys(
    model: nn.Module, blocks: Sequence[str], hidden: Bool[Tensor, "row token"]
) -> AbstractContextManager[None]:
    """Hide the keys and values of some tokens from all queries in the named blocks."""

    return edit_argument(model, blocks, "attention_mask", lambda mask: _hide(mask, hidden))


def _hide(mask: Tensor | None, hidden: Bool[Tensor, "row token"]) -> Tensor:
    """Return the mask of a block, boolean or additive, without the hidden keys."""
    rows, tokens = hidden.shape
    keys = hidden[:, None, None, :]
    if mask is None:  # The kernel's own causal mask.
        causal = torch.ones(tokens, tokens, dtype=torch.bool, device=hidden.device).tril()
        return causal & ~keys
    if mask.dtype == torch.bool:
        return mask & ~keys
    return mask.expand(rows, -1, -1, -1).masked_fill(keys, torch.finfo(mask.dtype).min)
