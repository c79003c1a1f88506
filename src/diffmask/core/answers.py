"""Answers of several decisions: the first and last token of a span, one token of a response after another; rankings.

Importing a class registers its functions with `diffmask.core.distributions`.
"""

from typing import Any, cast

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor
from torch.distributions import Categorical, Distribution, Independent
from torch.nn.functional import pad, softplus

from diffmask.core.coarse_answers import COARSE_CLASSES, coarse_classes, coarsen, keeps_all_classes
from diffmask.core.distributions import (
    class_probabilities,
    concatenate,
    divergence,
    flatten_features,
    from_logits,
    log_odds,
    logits,
    predicted_outcome,
    with_base,
)


class SpanAnswer(Independent[Categorical]):
    """Answer of two decisions, the first and the last token of a span; the prediction is the best valid span.

    A span is valid if it does not end before it starts and has at most `longest` tokens. Position 0 stands for "no
    answer": no span leads from it into the text.
    """

    def __init__(self, positions: Categorical, longest: int) -> None:
        super().__init__(positions, 1, validate_args=False)
        self.longest = longest


@with_base.register
def _(answer: SpanAnswer, base: Distribution) -> Distribution:
    return SpanAnswer(cast(Categorical, base), answer.longest)


@predicted_outcome.register
def _(answer: SpanAnswer) -> Tensor:
    start, end = logits(answer).unbind(dim=1)
    length = min(answer.longest, end.shape[1])
    ends = pad(end, (0, length - 1), value=-torch.inf).unfold(1, length, 1)
    scores = start[..., None] + ends
    scores[:, 0, 1:] = -torch.inf
    best = scores.flatten(start_dim=1).argmax(dim=1)
    first = best // length
    return torch.stack([first, first + best % length], dim=1)


class TokenCategoricals(Independent):  # type: ignore[type-arg]  # generic only in torch's stubs
    """One categorical distribution per token of a response, given the tokens before it.

    Only the `scored` tokens count: rows of a batch have responses of different lengths, and a span of a response may be
    explained alone. The probability of an outcome is the product over scored tokens; the divergence is their mean, so
    that a margin in nats per token means the same for long and short responses.
    """

    def __init__(self, scores: Float[Tensor, "row event class"], scored: Bool[Tensor, "row event"]) -> None:
        # Independent has no type annotations.
        super().__init__(Categorical(logits=scores, validate_args=False), 1, validate_args=False)  # type: ignore[no-untyped-call]
        self.scored = scored

    def log_prob(self, value: Shaped[Tensor, "row event"]) -> Float[Tensor, " row"]:
        """Return the log-probability of the scored tokens."""
        return _sum_scored(self.base_dist.log_prob(value.long()), self.scored)


def _sum_scored(values: Float[Tensor, "row event"], scored: Bool[Tensor, "row event"]) -> Float[Tensor, " row"]:
    return torch.where(scored, values, 0.0).sum(dim=1)


@predicted_outcome.register
def _(answer: TokenCategoricals) -> Tensor:
    # Categorical.mode would compute all probabilities first.
    return answer.base_dist.logits.argmax(dim=-1).masked_fill(~answer.scored, 0)


@log_odds.register
def _(answer: TokenCategoricals, outcome: Tensor) -> Tensor:
    # log p = -sum log(1 + exp(-log-odds)) per token: exact also where every token is almost certain.
    log_probability = -_sum_scored(softplus(-log_odds(answer.base_dist, outcome)), answer.scored)
    return log_probability - (-torch.expm1(log_probability)).clamp(min=torch.finfo(log_probability.dtype).tiny).log()


@divergence.register
def _(original: TokenCategoricals, changed: Any) -> Tensor:
    per_token = divergence(original.base_dist, changed.base_dist)
    return _sum_scored(per_token, original.scored) / original.scored.sum(dim=1).clamp(min=1)


@concatenate.register
def _(first: TokenCategoricals, *others: Any) -> Distribution:
    answers = (first, *others)
    events = max(answer.scored.shape[1] for answer in answers)

    def widen(values: Tensor) -> Tensor:
        return torch.cat([values, values.new_zeros(len(values), events - values.shape[1], *values.shape[2:])], dim=1)

    logits_of_all = torch.cat([widen(answer.base_dist.logits) for answer in answers])
    return TokenCategoricals(logits_of_all, torch.cat([widen(answer.scored) for answer in answers]))


@class_probabilities.register
def _(answer: TokenCategoricals) -> Tensor:
    return flatten_features(answer.base_dist.probs)


@from_logits.register
def _(answer: TokenCategoricals, values: Tensor) -> Distribution:
    copies = len(values) // len(answer.scored)
    scored = answer.scored.repeat_interleave(copies, dim=0)
    return TokenCategoricals(values.reshape(len(values), *answer.base_dist.logits.shape[1:]), scored)


@coarsen.register
def _(answer: TokenCategoricals, reference: Distribution, k: int = COARSE_CLASSES) -> Distribution:
    # Tasks of generation score parts of prompts and have no surrogate of their logits.
    return answer


class RankingAnswer(Categorical):
    """Distribution over the candidates of an impression, the explained one first.

    Impressions offer different numbers of candidates, so surrogates learn three classes: the explained candidate, its
    strongest rival, and all others.
    """


@keeps_all_classes.register
def _(answer: RankingAnswer) -> bool:
    return False


@coarse_classes.register
def _(reference: RankingAnswer, k: int) -> Tensor:
    rival = 1 + reference.logits[..., 1:].argmax(dim=-1, keepdim=True)
    return torch.cat([torch.zeros_like(rival), rival], dim=-1)
