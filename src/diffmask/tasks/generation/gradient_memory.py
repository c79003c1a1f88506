"""Memory that a backward pass through a long prompt needs, estimated on its first tokens before the pass starts."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from diffmask.core.hooks import frozen
from diffmask.core.resources import free_memory
from diffmask.errors import InputError

LONG_PROMPT = 2048
"""Tokens of a batch from which on the memory is estimated."""
PROBE = 64
"""Tokens of the estimate."""


def require_gradient_memory(model: Any, tokens: Tensor) -> None:
    """Raise an error if the states that a backward pass keeps would not fit into the free memory.

    States grow with the number of tokens, so the first ones give the bytes of all.
    """
    if tokens.numel() < LONG_PROMPT:
        return
    free = free_memory(tokens.device)
    needed = bytes_per_token(model, tokens[:1, :PROBE]) * tokens.numel()
    if free is not None and needed > free:
        raise InputError(
            f"gradients through {tokens.numel()} tokens keep about {needed / 1e9:.1f} GB of states, and "
            f"{free / 1e9:.1f} GB are free; use a method without gradients (leave-one-out, context-cite, amortised), a "
            f"shorter prompt, or the model in bfloat16"
        )


@torch.enable_grad()
def bytes_per_token(model: Any, tokens: Tensor) -> float:
    """Return the bytes that a forward pass keeps for the backward pass, parameters left out."""
    embedded = model.get_input_embeddings()(tokens).detach().requires_grad_()
    parameters = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    with frozen(model), _saved_storages() as storages:
        model(inputs_embeds=embedded, use_cache=False)
    return sum(size for place, size in storages.items() if place not in parameters) / tokens.numel()


@contextmanager
def _saved_storages() -> Iterator[dict[int, int]]:
    """Collect address and size of every tensor that is saved for the backward pass."""
    storages: dict[int, int] = {}
    alive: list[Tensor] = []

    def save(value: Tensor) -> Tensor:
        # A freed tensor would give its address to the next one.
        alive.append(value.detach())
        storages[value.untyped_storage().data_ptr()] = value.untyped_storage().nbytes()
        return value

    with torch.autograd.graph.saved_tensors_hooks(save, lambda value: value):
        yield storages
