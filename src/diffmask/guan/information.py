"""Information about the words that a hidden state has lost, and kept, in nats: Guan et al. 2019, section 3.

H(X) does not depend on the model, so H(X|s) compares layers, timestamps and models that read the same embeddings.
"""

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor

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
