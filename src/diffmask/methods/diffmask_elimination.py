"""In which order tokens go, and how far the answer will have moved by then, told from what each of them adds."""

from collections.abc import Callable
from functools import singledispatch

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.distributions import Categorical, Distribution

from diffmask.answer import divergence
from diffmask.methods.amortised_answer import Numbers, rebuilt

AT_ONCE = 16
"""One token in so many of those left goes at a step: a long text takes few steps, the last tokens go one by one."""

EQUAL = 1e-4
"""Nats that make no difference: equal tokens go in the order of the text, however a batch is rounded."""
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
    whole = rebuilt(answer, start)
    without_each = foretelling(answer, start, lost)
    remaining, left = start, maskable
    step = torch.zeros_like(maskable, dtype=torch.long)
    place = torch.arange(tokens, device=lost.device)
    moved: list[Tensor] = []
    while left.any():
        caused = without_each(remaining).masked_fill(~left, torch.inf)
        first = place < -(-left.sum(dim=1, keepdim=True) // AT_ONCE)
        order = (caused / EQUAL).round().argsort(dim=1, stable=True)
        going = torch.empty_like(left).scatter(1, order, first)
        remaining = remaining - (lost * going[..., None]).sum(dim=1)
        step = torch.where(going, len(moved), step)
        moved.append(divergence(whole, rebuilt(answer, remaining)))
        left = left & ~going
    if not moved:
        return lost.new_full((rows, tokens), torch.inf)
    least_from_here = torch.stack(moved, dim=1).flip(1).cummin(dim=1).values.flip(1)
    least_from_here = least_from_here + TIE * torch.arange(1, len(moved) + 1).to(lost)
    return least_from_here.gather(1, step).masked_fill(~maskable, torch.inf)


Foretelling = Callable[[Numbers], Float[Tensor, "row token"]]


@singledispatch
def foretelling(answer: Distribution, start: Numbers, lost: Float[Tensor, "row token feature"]) -> Foretelling:
    """A function that tells, of the numbers that remain, how far the answer moves if each token goes as well."""
    rows, tokens, _ = lost.shape
    original = rebuilt(answer, start.repeat_interleave(tokens, dim=0))

    def without_each(remaining: Numbers) -> Tensor:
        after = rebuilt(answer, (remaining[:, None] - lost).flatten(0, 1))
        return divergence(original, after).unflatten(0, (rows, tokens))

    return without_each


@foretelling.register
def _(answer: Categorical, start: Numbers, lost: Tensor) -> Foretelling:
    # KL(p || softmax x) = log sum exp x - p x + sum p log p, classes first: this is asked again and again.
    by_class = lost.movedim(2, 0).contiguous()
    likely = start.log_softmax(dim=1)
    lost_on_average = (likely.exp()[:, None] * lost).sum(dim=2)

    def without_each(remaining: Numbers) -> Tensor:
        level = (remaining.T[..., None] - by_class).logsumexp(dim=0)
        return level + lost_on_average + (likely.exp() * (likely - remaining)).sum(dim=1, keepdim=True)

    return without_each
