"""In which order tokens go, and how far the answer will have moved by then, told from what each of them adds."""

from abc import ABC, abstractmethod
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
LEAD = 1.0
"""Nats that a class must be ahead of the next best for its lead to be no concern."""
TIE = 1e-5
"""Nats by which each step counts for more than the one before: of tokens that go together, the last is needed most."""


def elimination(
    answer: Distribution,
    start: Numbers,
    lost: Float[Tensor, "row token feature"],
    maskable: Bool[Tensor, "row token"],
) -> Float[Tensor, "row token"]:
    """How far the answer is foretold to move once a token and all that go before it are erased: its need, in nats.

    The next to go is always the one without which the answer moves least from `start`, the numbers of an answer of the
    same kind. So two words that speak against each other may go together, and what moves the answer is no hindrance
    where those that go next bring it back. What may not be erased is needed infinitely.
    """
    rows, tokens, _ = lost.shape
    foretold = foretelling(answer, start, lost)
    remaining, left = start, maskable
    step = torch.zeros_like(maskable, dtype=torch.long)
    place = torch.arange(tokens, device=lost.device)
    moved: list[Tensor] = []
    while left.any():
        caused = foretold.without_each(remaining).masked_fill(~left, torch.inf)
        first = place < -(-left.sum(dim=1, keepdim=True) // AT_ONCE)
        order = (caused / EQUAL).round().argsort(dim=1, stable=True)
        going = torch.empty_like(left).scatter(1, order, first)
        remaining = remaining - (lost * going[..., None]).sum(dim=1)
        step = torch.where(going, len(moved), step)
        moved.append(foretold.now(remaining))
        left = left & ~going
    if not moved:
        return lost.new_full((rows, tokens), torch.inf)
    least_from_here = torch.stack(moved, dim=1).flip(1).cummin(dim=1).values.flip(1)
    least_from_here = least_from_here + TIE * torch.arange(1, len(moved) + 1).to(lost)
    return least_from_here.gather(1, step).masked_fill(~maskable, torch.inf)


class Foretelling(ABC):
    """How far an answer moves, told from the numbers that remain of it."""

    @abstractmethod
    def now(self, remaining: Numbers) -> Float[Tensor, " row"]:
        """With what remains."""

    @abstractmethod
    def without_each(self, remaining: Numbers) -> Float[Tensor, "row token"]:
        """If each token goes as well."""


class ByDivergence(Foretelling):
    """The divergence, of any kind of answer."""

    def __init__(self, answer: Distribution, start: Numbers, lost: Float[Tensor, "row token feature"]) -> None:
        self.answer, self.start, self.lost = answer, start, lost

    def now(self, remaining: Numbers) -> Float[Tensor, " row"]:
        """Asked of the answers themselves."""
        return divergence(rebuilt(self.answer, self.start), rebuilt(self.answer, remaining))

    def without_each(self, remaining: Numbers) -> Float[Tensor, "row token"]:
        """One answer a token."""
        rows, tokens, _ = self.lost.shape
        original = rebuilt(self.answer, self.start.repeat_interleave(tokens, dim=0))
        after = rebuilt(self.answer, (remaining[:, None] - self.lost).flatten(0, 1))
        return divergence(original, after).unflatten(0, (rows, tokens))


class OfClasses(Foretelling):
    """KL(p || softmax x) = log sum exp x - p x + sum p log p, and what the class decided for loses of its lead.

    Of several classes two may be all but equal: the divergence hardly tells which of them is ahead, the decision does.
    Classes come first, and the one decided for before all others: this is asked again and again.
    """

    def __init__(self, start: Numbers, lost: Float[Tensor, "row token feature"]) -> None:
        decided = torch.arange(start.shape[1], device=start.device) == start.argmax(dim=1, keepdim=True)
        self.order = decided.int().argsort(dim=1, descending=True, stable=True)
        self.lost = lost.gather(2, self.order[:, None].expand_as(lost)).movedim(2, 0).contiguous()
        self.likely = self._ordered(start.log_softmax(dim=1))
        self.lost_on_average = (self.likely.exp()[..., None] * self.lost).sum(dim=0)
        self.lead = self._lead(self._ordered(start)).clamp(max=LEAD)

    def now(self, remaining: Numbers) -> Float[Tensor, " row"]:
        """With what remains."""
        left = self._ordered(remaining)
        return left.logsumexp(dim=0) + self._expected(left) + (self.lead - self._lead(left)).clamp(min=0)

    def without_each(self, remaining: Numbers) -> Float[Tensor, "row token"]:
        """If each token goes as well."""
        left = self._ordered(remaining)
        after = left[..., None] - self.lost
        moved = after.logsumexp(dim=0) + self.lost_on_average + self._expected(left)[:, None]
        return moved + (self.lead[:, None] - self._lead(after)).clamp(min=0)

    def _ordered(self, values: Numbers) -> Float[Tensor, "class row"]:
        return values.gather(1, self.order).T

    def _expected(self, left: Float[Tensor, "class row"]) -> Float[Tensor, " row"]:
        """Sum over classes of p (log p - x)."""
        return (self.likely.exp() * (self.likely - left)).sum(dim=0)

    def _lead(self, left: Float[Tensor, "class row *token"]) -> Float[Tensor, "row *token"]:
        """Of the class decided for over the next best, in nats."""
        return left[0] - left[1:].amax(dim=0)


@singledispatch
def foretelling(answer: Distribution, start: Numbers, lost: Float[Tensor, "row token feature"]) -> Foretelling:
    """What tells how far answers of this kind move."""
    return ByDivergence(answer, start, lost)


@foretelling.register
def _(answer: Categorical, start: Numbers, lost: Tensor) -> Foretelling:
    return OfClasses(start, lost)
