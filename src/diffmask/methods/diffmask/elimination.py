"""In which order tokens go, and how far the answer will have moved by then, told from what each of them adds."""

from abc import ABC, abstractmethod
from functools import singledispatch

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.distributions import Categorical, Distribution
from torch.nn.functional import softplus

from diffmask.core.distributions import FlatLogits, divergence, from_logits

CHUNK = 16
"""One token in so many of those left goes at a step: a long text takes few steps, the last tokens go one by one."""

TOLERANCE_NATS = 1e-4
"""Nats that make no difference: equal tokens go in the order of the text, however a batch is rounded."""
MAX_LEAD = 1.0
"""Nats that a class must be ahead of the next best for its lead to be no concern."""
TIE_BREAK = 1e-5
"""Nats by which each step counts for more than the one before: of tokens that go together, the last is needed most."""


def elimination(
    answer: Distribution,
    start: FlatLogits,
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
    moved: list[Tensor] = []
    while left.any():
        places, go = select_least_harmful(foretold.without_each(remaining), left)
        remaining = remaining - (lost.take_along_dim(places[..., None], dim=1) * go[..., None]).sum(dim=1)
        step = step.scatter(1, places, torch.where(go, len(moved), step.gather(1, places)))
        left = left.scatter(1, places, left.gather(1, places) & ~go)
        moved.append(foretold.now(remaining))
    if not moved:
        return lost.new_full((rows, tokens), torch.inf)
    least_from_here = torch.stack(moved, dim=1).flip(1).cummin(dim=1).values.flip(1)
    least_from_here = least_from_here + TIE_BREAK * torch.arange(1, len(moved) + 1).to(lost)
    return least_from_here.gather(1, step).masked_fill(~maskable, torch.inf)


def select_least_harmful(
    caused: Float[Tensor, "row token"], left: Bool[Tensor, "row token"]
) -> tuple[Int[Tensor, "row some"], Bool[Tensor, "row some"]]:
    """Places of the tokens without which the answer moves least, and which of them go: fewer where fewer are left."""
    count = -(-left.sum(dim=1, keepdim=True) // CHUNK)
    most = int(count.max())
    caused = (caused / TOLERANCE_NATS).round().masked_fill(~left, torch.inf)
    # Both put the first of equal tokens first; most steps ask for one token, and finding it is cheaper than sorting.
    order = caused.argmin(dim=1, keepdim=True) if most == 1 else caused.argsort(dim=1, stable=True)[:, :most]
    return order, torch.arange(most, device=left.device) < count


class DivergencePredictor(ABC):
    """How far an answer moves, told from the numbers that remain of it."""

    @abstractmethod
    def now(self, remaining: FlatLogits) -> Float[Tensor, " row"]:
        """With what remains."""

    @abstractmethod
    def without_each(self, remaining: FlatLogits) -> Float[Tensor, "row token"]:
        """If each token goes as well."""


class ByDivergence(DivergencePredictor):
    """The divergence, of any kind of answer."""

    def __init__(self, answer: Distribution, start: FlatLogits, lost: Float[Tensor, "row token feature"]) -> None:
        self.answer, self.start, self.lost = answer, start, lost

    def now(self, remaining: FlatLogits) -> Float[Tensor, " row"]:
        """Asked of the answers themselves."""
        return divergence(from_logits(self.answer, self.start), from_logits(self.answer, remaining))

    def without_each(self, remaining: FlatLogits) -> Float[Tensor, "row token"]:
        """One answer a token."""
        rows, tokens, _ = self.lost.shape
        original = from_logits(self.answer, self.start.repeat_interleave(tokens, dim=0))
        after = from_logits(self.answer, (remaining[:, None] - self.lost).flatten(0, 1))
        return divergence(original, after).unflatten(0, (rows, tokens))


class CategoricalDivergence(DivergencePredictor):
    """KL(p || softmax x) = log(1 + sum exp e) - p e + sum p log p, and what the class decided for loses of its lead.

    e is how far each of the other classes is ahead of the one decided for: x less its own. Of several classes two may
    be all but equal: the divergence hardly tells which of them is ahead, the decision does. Classes come first: this is
    asked again and again.
    """

    def __init__(self, start: FlatLogits, lost: Float[Tensor, "row token feature"]) -> None:
        decided = torch.arange(start.shape[1], device=start.device) == start.argmax(dim=1, keepdim=True)
        order = decided.int().argsort(dim=1, descending=True, stable=True)
        self.decided, self.others = order[:, :1], order[:, 1:]
        likely = start.log_softmax(dim=1)
        self.probability = likely.exp().take_along_dim(self.others, dim=1).T.contiguous()
        self.certainty = (likely.exp() * likely).sum(dim=1)
        self.lead = (-_most(self._ahead(start))).clamp(max=MAX_LEAD)
        self.lost = self._ahead(lost)
        self.lost_on_average = (self.probability[..., None] * self.lost).sum(dim=0)

    def now(self, remaining: FlatLogits) -> Float[Tensor, " row"]:
        """With what remains."""
        ahead = self._ahead(remaining)
        return softplus(_all(ahead)) + self._expected(ahead) + (self.lead + _most(ahead)).clamp(min=0)

    def without_each(self, remaining: FlatLogits) -> Float[Tensor, "row token"]:
        """If each token goes as well."""
        ahead = self._ahead(remaining)
        after = ahead[..., None] - self.lost
        moved = softplus(_all(after)) + self.lost_on_average + self._expected(ahead)[:, None]
        return moved + (self.lead[:, None] + _most(after)).clamp(min=0)

    def _ahead(self, values: Float[Tensor, "row *token class"]) -> Float[Tensor, "other row *token"]:
        decided, others = (places if values.ndim == 2 else places[:, None] for places in (self.decided, self.others))
        return (
            (values.take_along_dim(others, dim=-1) - values.take_along_dim(decided, dim=-1)).movedim(-1, 0).contiguous()
        )

    def _expected(self, ahead: Float[Tensor, "other row"]) -> Float[Tensor, " row"]:
        """Sum p log p - p e."""
        return self.certainty - (self.probability * ahead).sum(dim=0)


def _most(ahead: Float[Tensor, "other row *token"]) -> Float[Tensor, "row *token"]:
    """How far the best of the other classes is ahead; of two classes there is one other."""
    return ahead[0] if len(ahead) == 1 else ahead.amax(dim=0)


def _all(ahead: Float[Tensor, "other row *token"]) -> Float[Tensor, "row *token"]:
    """How far the other classes together are ahead."""
    return ahead[0] if len(ahead) == 1 else ahead.logsumexp(dim=0)


@singledispatch
def foretelling(
    answer: Distribution, start: FlatLogits, lost: Float[Tensor, "row token feature"]
) -> DivergencePredictor:
    """What tells how far answers of this kind move."""
    return ByDivergence(answer, start, lost)


@foretelling.register
def _(answer: Categorical, start: FlatLogits, lost: Tensor) -> DivergencePredictor:
    return CategoricalDivergence(start, lost)
