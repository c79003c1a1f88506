"""Standard normal noise that does not change with the size of the batch, with padding, or with the device."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

STREAM = 1_000_003
HALF_STEP = 2.0**-24


def standard_normal(seed: int, step: int, size: tuple[int, int, int]) -> Float[Tensor, "sample token width"]:
    """eps = sqrt(2) erfinv(2u - 1), u uniform and drawn token by token: more tokens leave the first ones as they were.

    Each (seed, step) opens its own stream, so that a longer step never shifts the noise of the next one. `torch.randn`
    is not used: it fills blocks of 16, which makes a value depend on how many values were asked for.
    """
    sample, token, width = size
    generator = torch.Generator().manual_seed(seed * STREAM + step)
    uniform = torch.rand(token, sample, width, generator=generator)
    # Half a step of the 24-bit grid makes it symmetric about 0 and keeps -1, where erfinv is infinite, out of it.
    normal = uniform.mul_(2).add_(HALF_STEP - 1).erfinv_().mul_(math.sqrt(2))
    return normal.transpose(0, 1).contiguous()
