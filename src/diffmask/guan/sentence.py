"""From a function of one sentence to one of many: what a hand-written Phi needs before a batch can be solved."""

import warnings
from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from diffmask.errors import InputError
from diffmask.guan.distortion import Phi

SentencePhi = Callable[[Float[Tensor, "token width"]], Float[Tensor, "..."]]
"""The hidden state of one sentence: any shape, from word vectors [token, width]."""


def one_by_one(phi: SentencePhi) -> Phi:
    """A loop over copies: works with any phi, one call a copy."""

    def looped(x: Float[Tensor, "copy token width"], rows: Int[Tensor, " copy"]) -> Float[Tensor, "copy ..."]:
        states = [phi(sentence) for sentence in x]
        if not isinstance(states[0], Tensor):
            raise InputError(f"Phi must return one tensor, not {type(states[0]).__name__}; pick the state to explain")
        return torch.stack(states)

    return looped


def batched(phi: SentencePhi, x: Float[Tensor, "token width"]) -> Phi:
    """The fastest of phi itself, if it takes a leading axis; `torch.vmap` of it; and a loop, which always works.

    Another way than the loop is taken only if state and gradient are the loop's on three different copies of x.
    """
    loop, copies = one_by_one(phi), torch.stack([x, x / 2, -x])
    wanted = _state_and_gradient(loop, copies)
    ways: list[Phi] = [lambda x, rows: phi(x), lambda x, rows: torch.vmap(phi)(x)]
    return next((way for way in ways if _agrees(way, copies, wanted)), loop)


def _agrees(way: Phi, x: Float[Tensor, "copy token width"], wanted: tuple[Tensor, Tensor]) -> bool:
    try:
        with warnings.catch_warnings():
            # vmap warns where it would be slower than a loop.
            warnings.simplefilter("error")
            found = _state_and_gradient(way, x)
    except Exception:
        # The loop has just worked, so this is not phi's fault on its own terms: it may surface as any error.
        return False
    pairs = list(zip(wanted, found, strict=True))
    same_shape = all(a.shape == b.shape for a, b in pairs)
    return same_shape and all(torch.allclose(a, b, rtol=1e-3, atol=1e-5) for a, b in pairs)


def _state_and_gradient(phi: Phi, x: Float[Tensor, "copy token width"]) -> tuple[Tensor, Tensor]:
    with torch.enable_grad():
        leaf = x.detach().requires_grad_()
        state = phi(leaf, torch.zeros(len(x), dtype=torch.long, device=x.device))
    if not state.requires_grad:
        return state, torch.zeros_like(leaf)
    (gradient,) = torch.autograd.grad(state.sum(), leaf, allow_unused=True)
    return state.detach(), torch.zeros_like(leaf) if gradient is None else gradient
