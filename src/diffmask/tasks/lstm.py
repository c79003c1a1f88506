"""The states of an LSTM in both directions over rows of unequal length."""

from functools import cache
from importlib.util import find_spec
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

Embedded = Float[Tensor, "row token size"]
States = Float[Tensor, "row token width"]
Length = Int[Tensor, " row"]

SMALL = 64
"""Widths up to which one row after another is faster than rows together."""


def both_ways(onward: nn.LSTM, back: nn.LSTM, embedded: Embedded, length: Length) -> States:
    """What the one has read up to each token from the first, and beside it the other from the row's last.

    Behind a row's length the states mean nothing.
    """
    if not _suits(onward, embedded):
        read, _ = onward(embedded)
        read_back, _ = back(turned(embedded, length))
        return torch.cat([read, turned(read_back, length)], dim=-1)
    place = torch.arange(embedded.shape[0] * embedded.shape[1]).view(embedded.shape[:2])
    return _row_by_row(onward, back, embedded.flatten(0, 1), place, length)


def both_ways_of_words(
    onward: nn.LSTM, back: nn.LSTM, embedding: nn.Embedding, tokens: Int[Tensor, "row token"], length: Length
) -> States:
    """The same of words, which enter the gates by E W: of few words that is one small product, whatever they are in."""
    if not _suits(onward, embedding.weight):
        return both_ways(onward, back, embedding(tokens), length)
    return _row_by_row(onward, back, embedding.weight, tokens, length)


def _suits(lstm: nn.LSTM, inputs: Tensor) -> bool:
    """Whether the compiled kernel serves."""
    small = lstm.hidden_size <= SMALL and lstm.hidden_size % 4 == 0
    return small and inputs.device.type == "cpu" and inputs.dtype == torch.float32 and compiles()


@cache
def compiles() -> bool:
    """Whether numba is installed (the extra `fast`); without it the same is computed by torch, some times slower."""
    return find_spec("numba") is not None


def turned(states: States, length: Length) -> States:
    """Each row from its own last token to its first, padding left where it is."""
    if int(length.min()) == states.shape[1]:  # Rows of one length: the same, faster.
        return states.flip(1)
    place = torch.arange(states.shape[1], device=states.device)
    order = torch.where(place < length[:, None], length[:, None] - 1 - place, place)[..., None]
    return states.gather(1, order.expand_as(states))


def _row_by_row(
    onward: nn.LSTM, back: nn.LSTM, inputs: Float[Tensor, "place size"], place: Int[Tensor, "row token"], length: Length
) -> States:
    """Both directions by one product of all inputs, then the recurrence by the compiled kernel."""
    return _BothWays.apply(inputs, place.contiguous(), length, *onward.all_weights[0], *back.all_weights[0]).flatten(-2)


class _BothWays(torch.autograd.Function):
    """From inputs [place, size] and the weights of both LSTMs to states [row, token, way, width].

    One function with all of its slopes: of a small model, a graph of many small steps would take longer than the work.
    """

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, place: Tensor, length: Tensor, *weights: Tensor) -> Tensor:
        from diffmask.tasks import lstm_kernel

        weight, recurrent, bias, bias_too = (torch.cat(pair) for pair in zip(weights[:4], weights[4:], strict=True))
        width, slots = recurrent.shape[-1], int(length.sum()) + len(length) + 1
        gates = torch.addmm(bias + bias_too, inputs, weight.T).view(-1, 2, 4 * width)
        recurrent = recurrent.view(2, 4 * width, width)
        memory = [inputs.new_empty(slots, 2, size * width) for size in (4, 1, 1)]
        shown = inputs.new_zeros(*place.shape, 2, width)
        given = (gates, place, length, recurrent.transpose(1, 2).contiguous())
        fill = lstm_kernel.forward(width)
        fill(*_arrays(*given), lstm_kernel.Memory(*_arrays(*memory)), *_arrays(shown))
        ctx.save_for_backward(inputs, place, length, weight, recurrent, *memory)
        return shown

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slopes: Tensor) -> tuple[Tensor | None, ...]:
        from diffmask.tasks import lstm_kernel

        inputs, place, length, weight, recurrent, *memory = ctx.saved_tensors
        gates, _, states = memory
        of_gates, of_inputs = torch.empty_like(gates), gates.new_zeros(len(inputs), *gates.shape[1:])
        given = (slopes.contiguous(), place, length, recurrent)
        fill = lstm_kernel.backward(recurrent.shape[-1])
        fill(*_arrays(*given), lstm_kernel.Memory(*_arrays(*memory)), *_arrays(of_gates, of_inputs))
        summed = of_inputs.flatten(1)
        of_embedded = summed @ weight if ctx.needs_input_grad[0] else None
        if not any(ctx.needs_input_grad[3:]):
            return of_embedded, *[None] * 10
        of_weight, of_bias = (summed.T @ inputs).chunk(2), summed.sum(dim=0).chunk(2)
        # A token's gates have seen the state beside it: to its left, or to its right.
        of_recurrent = of_gates[1:, 0].T @ states[:-1, 0], of_gates[:-1, 1].T @ states[1:, 1]
        ways = zip(of_weight, of_recurrent, of_bias, of_bias, strict=True)
        return of_embedded, None, None, *(slope for way in ways for slope in way)


def _arrays(*tensors: Tensor) -> list[Any]:
    return [tensor.detach().numpy() for tensor in tensors]
