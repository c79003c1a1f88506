"""In which order tokens go, and how far the answer will have moved by then, told from what each of them adds."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.distributions import Distribution

from diffmask.answer import divergence
from diffmask.methods.amortised_answer import Numbers, rebuilt

AT_ONCE = 16
"""One token in so many of those left goes at a step: a long text takes few steps, the last tokens go one by one."""

TIE = 1e-5
"""Nats by which each step counts for more than the one before: of tokens that go together, the last is needed most."""


def elimination(
    answer: Distribution,
    start: Numbers,
    lost: Float[Tensor, "row token feature"],
    maskable: Bool[Tensor, "row token"],
) -> Float[Tensor, "row token"]:
    """The divergence foretold once a token and all that go before it are erased: how much it is needed, in nats.

    The next to go is always the one without which the answer moves least from `start`, the numbers of an answer of the
    same kind. So two words that speak against each other may go together, and what moves the answer is no hindrance
    where those that go next bring it back. What may not be erased is needed infinitely.
    """
    rows, tokens, _ = lost.shape
    original = rebuilt(answer, start.repeat_interleave(tokens, dim=0))
    whole = rebuilt(answer, start)
    remaining, left = start, maskable
    step = torch.zeros_like(maskable, dtype=torch.long)
    place = torch.arange(tokens, device=lost.device)
    moved: list[Tensor] = []
    while left.any():
        after = rebuilt(answer, (remaining[:, None] - lost).flatten(0, 1))
        caused = divergence(original, after).unflatten(0, (rows, tokens)).masked_fill(~left, torch.inf)
        first = place < -(-left.sum(dim=1, keepdim=True) // AT_ONCE)
        going = torch.empty_like(left).scatter(1, caused.argsort(dim=1), first)
        remaining = remaining - (lost * going[..., None]).sum(dim=1)
        step = torch.where(going, len(moved), step)
        moved.append(divergence(whole, rebuilt(answer, remaining)))
        left = left & ~going
    if not moved:
        return lost.new_full((rows, tokens), torch.inf)
    least_from_here = torch.stack(moved, dim=1).flip(1).cummin(dim=1).values.flip(1)
    least_from_here = least_from_here + TIE * torch.arange(1, len(moved) + 1).to(lost)
    return least_from_here.gather(1, step).masked_fill(~maskable, torch.inf)
