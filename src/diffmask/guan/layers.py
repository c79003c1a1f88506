"""Phis for every layer of a model, and for every timestamp of a recurrent one."""

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from diffmask.guan.distortion import Phi

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
