"""Which attributes of a word (its part of speech, its sentiment) a hidden state still holds: Guan et al. 2019."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import cross_entropy

from diffmask.errors import InputError
from diffmask.guan.gaussian import standard_normal

LogProbability = Callable[[Float[Tensor, "*word width"]], Float[Tensor, "*word concept"]]
"""log p(c | x) of every concept c, from a word's vector: any classifier on embeddings."""


@dataclass(frozen=True)
class ConceptClassifier:
    """log p(c | x) = log softmax(A x + b)."""

    weight: Float[Tensor, "concept width"]
    bias: Float[Tensor, " concept"]

    def __call__(self, x: Float[Tensor, "*word width"]) -> Float[Tensor, "*word concept"]:
        """The log probability of each concept."""
        return torch.log_softmax(x @ self.weight.T + self.bias, -1)


def fit_concepts(
    x: Float[Tensor, "word width"], concept: Int[Tensor, " word"], penalty: float = 1e-3
) -> ConceptClassifier:
    """Logistic regression: least mean cross entropy + penalty / 2 |A|^2 by L-BFGS from zero, hence without a seed."""
    if len(x) == 0 or int(concept.min()) < 0:
        raise InputError("concepts need at least one word, and labels counted from 0")
    concepts = int(concept.max()) + 1
    weight, bias = x.new_zeros(concepts, x.shape[1]).requires_grad_(), x.new_zeros(concepts).requires_grad_()
    optimizer = torch.optim.LBFGS([weight, bias], max_iter=200, line_search_fn="strong_wolfe")

    def objective() -> float:
        optimizer.zero_grad()
        loss = cross_entropy(x.detach() @ weight.T + bias, concept) + penalty / 2 * weight.square().sum()
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        return loss.item()

    with torch.enable_grad():
        optimizer.step(objective)  # type: ignore[no-untyped-call]  # torch leaves it untyped
    return ConceptClassifier(weight.detach(), bias.detach())


def concept_information(
    log_probability: LogProbability,
    x: Float[Tensor, "row token width"],
    sigma: Float[Tensor, "row token"],
    concept: Int[Tensor, "row token"],
    *,
    samples: int = 64,
    seed: int = 0,
) -> Float[Tensor, "row token"]:
    """E[log p(c_i | x_i + sigma_i eps)] - log p(c_i | x_i): nats about concept c_i that the state has lost, negated.

    0 where the state still tells the word's concept as well as the word does. Concepts of padding are not looked at as
    long as they are valid labels, and padding, where sigma is 0, has 0.
    """
    noise = standard_normal(seed, 0, (samples, *x.shape[1:])).to(x)
    label = concept[..., None]
    with torch.no_grad():
        clean = log_probability(x).gather(-1, label)
        total = torch.zeros_like(clean)
        for draw in noise:
            total += log_probability(x + sigma[..., None] * draw).gather(-1, label) - clean
    return (total / samples)[..., 0]
