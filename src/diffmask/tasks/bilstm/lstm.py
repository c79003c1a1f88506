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


def bidirectional_states(forward_lstm: nn.LSTM, backward_lstm: nn.LSTM, embedded: Embedded, length: Length) -> States:
    """What the one has read up to each token from the first, and beside it the other from the row's last.

    Behind a row's length the states mean nothing. By the compiled kernel where the LSTMs are frozen: it knows no slopes
    of weights.
    """
    if recurrent(forward_lstm, backward_lstm).requires_grad or not kernel_supported(forward_lstm, embedded):
        read, _ = forward_lstm(embedded)
        read_back, _ = backward_lstm(reverse_by_length(embedded, length))
        return torch.cat([read, reverse_by_length(read_back, length)], dim=-1)
    inputs = input_gates(forward_lstm, backward_lstm, embedded.flatten(0, 1)).view(*embedded.shape[:2], 2, -1)
    return _Recurrence.apply(inputs, length, recurrent(forward_lstm, backward_lstm)).flatten(-2)


def kernel_supported(lstm: nn.LSTM, inputs: Tensor) -> bool:
    """Whether a compiled kernel serves."""
    small = lstm.hidden_size <= SMALL and lstm.hidden_size % 4 == 0
    return small and inputs.device.type == "cpu" and inputs.dtype == torch.float32 and compiles()


@cache
def compiles() -> bool:
    """Whether numba is installed (the extra `fast`); without it the same is computed by torch, some times slower."""
    return find_spec("numba") is not None


def reverse_by_length(states: States, length: Length) -> States:
    """Each row from its own last token to its first, padding left where it is."""
    if int(length.min()) == states.shape[1]:  # Rows of one length: the same, faster.
        return states.flip(1)
    place = torch.arange(states.shape[1], device=states.device)
    order = torch.where(place < length[:, None], length[:, None] - 1 - place, place)[..., None]
    return states.gather(1, order.expand_as(states))


def input_gates(
    forward_lstm: nn.LSTM, backward_lstm: nn.LSTM, vectors: Float[Tensor, "place size"]
) -> Float[Tensor, "place gate"]:
    """What vectors add to the gates of both, [way, i f z o, width] in a row."""
    (weight, _, bias, bias_too), (back_weight, _, back_bias, back_bias_too) = (
        forward_lstm.all_weights[0],
        backward_lstm.all_weights[0],
    )
    biases = torch.cat([bias + bias_too, back_bias + back_bias_too])
    return torch.addmm(biases, vectors, torch.cat([weight, back_weight]).T)


def recurrent(forward_lstm: nn.LSTM, backward_lstm: nn.LSTM) -> Float[Tensor, "way gate width"]:
    """What the states before add to the gates."""
    return torch.stack([forward_lstm.all_weights[0][1], backward_lstm.all_weights[0][1]])


class _Recurrence(torch.autograd.Function):
    """From inputs [row, token, way, 4 width] to states [row, token, way, width], by the compiled kernel."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, length: Tensor, weight: Tensor) -> Tensor:
        from diffmask.tasks.bilstm import lstm_kernel

        row, token, way, gate = inputs.shape
        memory = [inputs.new_zeros(row, way, token + 2, size) for size in (gate, gate // 4, gate // 4)]
        given = arrays(inputs.contiguous(), length, weight.transpose(1, 2).contiguous())
        lstm_kernel.read_rows(*given, lstm_kernel.LSTMTrace(*arrays(*memory)), lstm_kernel.size_of(gate // 4))
        ctx.save_for_backward(length, weight, *memory)
        return memory[-1][:, :, 1:-1].transpose(1, 2).contiguous()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slopes: Tensor) -> tuple[Tensor | None, ...]:
        from diffmask.tasks.bilstm import lstm_kernel

        length, weight, *memory = ctx.saved_tensors
        gates, _, states = memory
        of_states, of_gates = torch.zeros_like(states), torch.zeros_like(gates)
        of_states[:, :, 1:-1] = slopes.transpose(1, 2)
        of_both, size = arrays(of_states, of_gates), lstm_kernel.size_of(weight.shape[-1])
        lstm_kernel.trace_rows_back(*arrays(length, weight), lstm_kernel.LSTMTrace(*arrays(*memory)), *of_both, size)
        return of_gates[:, :, 1:-1].transpose(1, 2), None, None


def arrays(*tensors: Tensor) -> list[Any]:
    """The same numbers as numpy's."""
    return [tensor.detach().numpy() for tensor in tensors]
