"""Information about the words that a hidden state has lost, and kept, in nats: Guan et al. 2019, section 3.

H(X) does not depend on the model, so H(X|s) compares layers, timestamps and models that read the same embeddings.

Which attributes of a word (its part of speech, its sentiment) a hidden state still holds: Guan et al. 2019.

Phis for every layer of a model, and for every timestamp of a recurrent one.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import cross_entropy

from diffmask.errors import InputError
from diffmask.methods.noise.distortion import Phi
from diffmask.methods.noise.solver import standard_normal

NATS_PER_BIT = math.log(2)
"""Divide nats by this to have bits."""


def word_entropy(sigma: Float[Tensor, "*row token"], width: int) -> Float[Tensor, "*row token"]:
    """H(X_i|s) = D/2 log(2 pi e) + D log sigma_i, D the width: what s no longer tells of word i, as Gaussian noise.

    A differential entropy, so it may be negative; padding, where sigma is 0, has 0.
    """
    entropy = width * (0.5 * math.log(2 * math.pi * math.e) + sigma.log())
    return torch.where(sigma > 0, entropy, 0)


def sentence_entropy(sigma: Float[Tensor, "*row token"], width: int) -> Float[Tensor, "*row"]:
    """H(X|s) = sum_i H(X_i|s): words are independent given s in the paper's approximation."""
    return word_entropy(sigma, width).sum(-1)


def word_information(sigma: Float[Tensor, "*row token"], width: int, spread: float) -> Float[Tensor, "*row token"]:
    """I(X_i; s) = D log(spread / sigma_i), if word vectors are Gaussian with standard deviation `spread`.

    Unlike H it does not change with the unit of the embedding, so that models with different embeddings compare.
    """
    return torch.where(sigma > 0, width * (math.log(spread) - sigma.log()), 0)


def layer_curve(values: Float[Tensor, "row layer token"], mask: Bool[Tensor, "row token"]) -> Float[Tensor, " layer"]:
    """Mean over all words of the rows of some quantity a word, for each layer: what a curve over layers shows."""
    weight = mask[:, None].to(values.dtype)
    return (values * weight).sum((0, 2)) / weight.sum()


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


States = Callable[[Float[Tensor, "copy token width"], Int[Tensor, " copy"]], Sequence[Float[Tensor, "copy ..."]]]
"""All states of a model, first layer first, from one pass: as `Phi`, but for all layers."""


def layer_phis(states: States, layers: int) -> list[Phi]:
    """s_l = states(x)[l]; write one phi a layer instead where the model can stop at that layer."""

    def at(layer: int) -> Phi:
        return lambda x, rows: states(x, rows)[layer]

    return [at(layer) for layer in range(layers)]


def timestamp_phis(
    recur: Callable[[Float[Tensor, "copy token width"]], Float[Tensor, "copy token hidden"]],
    mask: Bool[Tensor, "row token"],
) -> list[Phi]:
    """s_t, the recurrent state once words 0..t were read: timestamps as layers, Guan et al. 2019.

    `recur` gives the state after each word, as `lambda x: lstm(x)[0]`, for sentences padded on the right. After its
    last word a shorter sentence keeps its last state. Words that come after t are ignored by s_t: their sigma is scale.
    """
    last = mask.sum(1) - 1

    def after(time: int) -> Phi:
        def state(x: Float[Tensor, "copy token width"], rows: Int[Tensor, " copy"]) -> Float[Tensor, "copy hidden"]:
            outputs = recur(x[:, : time + 1])
            return outputs[torch.arange(len(x), device=x.device), last[rows].clamp(max=time)]

        return state

    return [after(time) for time in range(mask.shape[1])]
