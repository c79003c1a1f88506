"""Information about words and concepts in a hidden state, in nats, per layer: Guan et al. 2019, section 3.

H(X) does not depend on the model, so H(X|s) compares layers, timestamps and models that read the same embeddings.
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
from diffmask.methods.noise.solver import sample_noise

NATS_PER_BIT = math.log(2)
"""Divide nats by this to get bits."""


def word_entropy(sigma: Float[Tensor, "*row token"], width: int) -> Float[Tensor, "*row token"]:
    """Compute H(X_i|s) = D/2 log(2 pi e) + D log sigma_i, the entropy of Gaussian noise of width D.

    A differential entropy may be negative. Padding, where sigma is 0, has 0.
    """
    entropy = width * (0.5 * math.log(2 * math.pi * math.e) + sigma.log())
    return torch.where(sigma > 0, entropy, 0)


def sentence_entropy(sigma: Float[Tensor, "*row token"], width: int) -> Float[Tensor, "*row"]:
    """Compute H(X|s) = sum_i H(X_i|s): the paper approximates words as independent given s."""
    return word_entropy(sigma, width).sum(-1)


def word_information(sigma: Float[Tensor, "*row token"], width: int, deviation: float) -> Float[Tensor, "*row token"]:
    """Compute I(X_i; s) = D log(deviation / sigma_i) for Gaussian word vectors with that standard deviation.

    Unlike H it does not change with the unit of the embedding, so models with different embeddings can be compared.
    """
    return torch.where(sigma > 0, width * (math.log(deviation) - sigma.log()), 0)


def layer_curve(values: Float[Tensor, "row layer token"], mask: Bool[Tensor, "row token"]) -> Float[Tensor, " layer"]:
    """Average a quantity per word over all words of the rows, for each layer."""
    weight = mask[:, None].to(values.dtype)
    return (values * weight).sum((0, 2)) / weight.sum()


LogProbability = Callable[[Float[Tensor, "*word width"]], Float[Tensor, "*word concept"]]
"""Classifier on embeddings: log p(c | x) of every concept c, from a word's vector."""


@dataclass(frozen=True)
class ConceptClassifier:
    """log p(c | x) = log softmax(A x + b)."""

    weight: Float[Tensor, "concept width"]
    bias: Float[Tensor, " concept"]

    def __call__(self, x: Float[Tensor, "*word width"]) -> Float[Tensor, "*word concept"]:
        """Return the log probability of each concept."""
        return torch.log_softmax(x @ self.weight.T + self.bias, -1)


def fit_concept_classifier(
    x: Float[Tensor, "word width"], concept: Int[Tensor, " word"], penalty: float = 1e-3
) -> ConceptClassifier:
    """Fit a logistic regression: mean cross entropy + penalty / 2 |A|^2, by L-BFGS from zero, without a seed."""
    if len(x) == 0 or int(concept.min()) < 0:
        raise InputError("fitting a concept classifier needs at least one word, and labels counted from 0")
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
    """Compute E[log p(c_i | x_i + sigma_i eps)] - log p(c_i | x_i): minus the nats about concept c_i that s has lost.

    It is 0 if the state identifies the concept as well as the word does. Padding, where sigma is 0, has 0; its concept
    may be any valid label.
    """
    noise = sample_noise(seed, 0, (samples, *x.shape[1:])).to(x)
    label = concept[..., None]
    with torch.no_grad():
        clean = log_probability(x).gather(-1, label)
        total = torch.zeros_like(clean)
        for sample in noise:
            total += log_probability(x + sigma[..., None] * sample).gather(-1, label) - clean
    return (total / samples)[..., 0]


LayerStates = Callable[[Float[Tensor, "copy token width"], Int[Tensor, " copy"]], Sequence[Float[Tensor, "copy ..."]]]
"""States of all layers of a model, first layer first, from one forward pass; arguments as for `Phi`."""


def layer_phis(states: LayerStates, layers: int) -> list[Phi]:
    """Return s_l = states(x)[l] for each layer l; a phi that stops at its layer is faster, if the model allows it."""

    def at(layer: int) -> Phi:
        return lambda x, rows: states(x, rows)[layer]

    return [at(layer) for layer in range(layers)]


def timestamp_phis(
    recur: Callable[[Float[Tensor, "copy token width"]], Float[Tensor, "copy token hidden"]],
    mask: Bool[Tensor, "row token"],
) -> list[Phi]:
    """Return s_t, the recurrent state after words 0..t, for each timestamp t: Guan et al. 2019.

    `recur` returns the state after each word, such as `lambda x: lstm(x)[0]`, for sentences padded on the right. After
    its last word a shorter sentence keeps its last state. s_t ignores words after t: their sigma is the scale.
    """
    last = mask.sum(1) - 1

    def after(time: int) -> Phi:
        def state(x: Float[Tensor, "copy token width"], rows: Int[Tensor, " copy"]) -> Float[Tensor, "copy hidden"]:
            outputs = recur(x[:, : time + 1])
            return outputs[torch.arange(len(x), device=x.device), last[rows].clamp(max=time)]

        return state

    return [after(time) for time in range(mask.shape[1])]
