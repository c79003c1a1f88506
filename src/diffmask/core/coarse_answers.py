"""Coarse answers: of very many classes only the most probable stay apart, so that a surrogate can learn them."""

from functools import singledispatch
from typing import Any

import torch
from jaxtyping import Int, Shaped
from torch import Tensor
from torch.distributions import Categorical, Distribution, Independent

from diffmask.core.distributions import logits, predicted_outcome

MANY_CLASSES = 64
"""Answers with more classes per decision are coarsened before a surrogate learns them."""
COARSE_CLASSES = 4
"""Classes of each decision that a coarsened answer keeps apart."""


@singledispatch
def coarsen(answer: Distribution, reference: Distribution, k: int = COARSE_CLASSES) -> Distribution:
    """Return the answer over few classes: the k most probable ones of `reference`, the predicted one first, and a rest.

    Class 0 is the predicted outcome of `reference`, whose rows may be fewer: then each has as many adjacent copies in
    `answer`. By the data-processing inequality the KL between two coarsened answers is a lower bound of their KL.
    Answers with at most `MANY_CLASSES` classes per decision, and those of other families, are returned unchanged.
    """
    return answer


@coarsen.register
def _(answer: Categorical, reference: Distribution, k: int = COARSE_CLASSES) -> Distribution:
    if keeps_all_classes(answer):
        return answer
    classes = coarse_classes(reference, k)
    classes = classes.repeat_interleave(len(answer.logits) // len(classes), dim=0)
    chosen = answer.logits.gather(-1, classes)
    rest = answer.logits.scatter(-1, classes, -torch.inf).logsumexp(dim=-1, keepdim=True)
    # With no class left the rest is impossible, but its logit must be a number.
    rest = rest.clamp(min=chosen.amin().item() - 30.0)
    return Categorical(logits=torch.cat([chosen, rest], dim=-1), validate_args=False)


@singledispatch
def keeps_all_classes(answer: Distribution) -> bool:
    """Return whether `coarsen` returns answers like this one unchanged."""
    return True


@keeps_all_classes.register
def _(answer: Categorical) -> bool:
    return answer.logits.shape[-1] <= MANY_CLASSES


@keeps_all_classes.register(Independent)
def _(answer: Any) -> bool:
    return keeps_all_classes(answer.base_dist)


@coarsen.register(Independent)
def _(answer: Any, reference: Distribution, k: int = COARSE_CLASSES) -> Distribution:
    base = coarsen(answer.base_dist, reference, k)
    if base is answer.base_dist:
        return answer
    return Independent(base, answer.reinterpreted_batch_ndims, validate_args=False)


@singledispatch
def coarse_classes(reference: Distribution, k: int) -> Int[Tensor, "row *event class"]:
    """Return the predicted class of each decision, then the most probable other ones, k in all."""
    predicted = predicted_outcome(reference).long()[..., None]
    return logits(reference).scatter(-1, predicted, torch.inf).topk(k, dim=-1).indices


def coarse_outcome(
    outcome: Shaped[Tensor, "row *event"], reference: Distribution, k: int = COARSE_CLASSES
) -> Shaped[Tensor, "row *event"]:
    """Return the class of an outcome in the answer that `coarsen` makes of `reference`; the last, the rest, if none."""
    if keeps_all_classes(reference):
        return outcome
    matches = coarse_classes(reference, k) == outcome.long()[..., None]
    return torch.where(matches.any(dim=-1), matches.int().argmax(dim=-1), matches.shape[-1])
