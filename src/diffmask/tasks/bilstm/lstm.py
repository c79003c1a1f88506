"""States of a bidirectional LSTM over rows of different lengths, by torch or by a compiled kernel."""

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

MAX_KERNEL_WIDTH = 64
"""Largest LSTM for which the kernel, one row after another, is faster than torch on all rows together."""
MIN_ROWS_TOGETHER = 16
"""Smallest number of rows that torch runs together: matrix products of fewer rows are inefficient."""


def bidirectional_states(forward_lstm: nn.LSTM, backward_lstm: nn.LSTM, embedded: Embedded, length: Length) -> States:
    """Return the forward and backward hidden states of a BiLSTM, concatenated per token.

    States at padding are undefined. Frozen LSTMs run in the compiled kernel, which has no gradients of the weights.
    """
    recurrent = recurrent_weights(forward_lstm, backward_lstm)
    if recurrent.requires_grad or not kernel_supported(forward_lstm, embedded):
        return _torch_states(forward_lstm, backward_lstm, embedded, length)
    inputs = input_gates(forward_lstm, backward_lstm, embedded.flatten(0, 1)).view(*embedded.shape[:2], 2, -1)
    return _Recurrence.apply(inputs, length, recurrent).flatten(-2)


def _torch_states(forward_lstm: nn.LSTM, backward_lstm: nn.LSTM, embedded: Embedded, length: Length) -> States:
    """Run torch's LSTMs on rows of similar length together: with rows of all lengths, half of the work is padding."""
    order = length.argsort()
    parts = []
    for rows in order.split(_rows_together(len(order))):
        longest = int(length[rows].max())
        states = _states_of(forward_lstm, backward_lstm, embedded[rows, :longest], length[rows])
        parts.append(nn.functional.pad(states, (0, 0, 0, embedded.shape[1] - longest)))
    return torch.cat(parts)[order.argsort()]


def _states_of(forward_lstm: nn.LSTM, backward_lstm: nn.LSTM, embedded: Embedded, length: Length) -> States:
    forward_states, _ = forward_lstm(embedded)
    backward_states, _ = backward_lstm(reverse_by_length(embedded, length))
    return torch.cat([forward_states, reverse_by_length(backward_states, length)], dim=-1)


def _rows_together(rows: int) -> int:
    """Return a quarter of the rows, at least `MIN_ROWS_TOGETHER`.

    >>> _rows_together(32), _rows_together(512), _rows_together(3)
    (16, 128, 16)
    """
    return max(MIN_ROWS_TOGETHER, -(-rows // 4))


def kernel_supported(lstm: nn.LSTM, inputs: Tensor) -> bool:
    """Return whether the compiled kernel can run this LSTM."""
    small = lstm.hidden_size <= MAX_KERNEL_WIDTH and lstm.hidden_size % 4 == 0
    return small and inputs.device.type == "cpu" and inputs.dtype == torch.float32 and has_numba()


@cache
def has_numba() -> bool:
    """Return whether numba is installed (the extra `fast`); without it torch computes the same, but slower."""
    return find_spec("numba") is not None


def reverse_by_length(states: States, length: Length) -> States:
    """Reverse the real tokens of each row; padding keeps its position."""
    if int(length.min()) == states.shape[1]:  # Rows of equal length: flip is faster than gather.
        return states.flip(1)
    position = torch.arange(states.shape[1], device=states.device)
    order = torch.where(position < length[:, None], length[:, None] - 1 - position, position)[..., None]
    return states.gather(1, order.expand_as(states))


def input_gates(
    forward_lstm: nn.LSTM, backward_lstm: nn.LSTM, vectors: Float[Tensor, "vector size"]
) -> Float[Tensor, "vector gate"]:
    """Return the contribution of input vectors to the gates, [direction, i f z o, width] flattened."""
    forward_weight, _, *forward_bias = forward_lstm.all_weights[0]
    backward_weight, _, *backward_bias = backward_lstm.all_weights[0]
    biases = torch.cat([forward_bias[0] + forward_bias[1], backward_bias[0] + backward_bias[1]])
    return torch.addmm(biases, vectors, torch.cat([forward_weight, backward_weight]).T)


def recurrent_weights(forward_lstm: nn.LSTM, backward_lstm: nn.LSTM) -> Float[Tensor, "direction gate width"]:
    """Return the weights from the previous states to the gates."""
    return torch.stack([forward_lstm.all_weights[0][1], backward_lstm.all_weights[0][1]])


class _Recurrence(torch.autograd.Function):
    """Compiled recurrence from inputs [row, token, direction, 4 width] to states [row, token, direction, width]."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, length: Tensor, weight: Tensor) -> Tensor:
        from diffmask.tasks.bilstm import lstm_kernel

        row, token, direction, gate = inputs.shape
        trace = [inputs.new_zeros(row, direction, token + 2, size) for size in (gate, gate // 4, gate // 4)]
        arguments = as_arrays(inputs.contiguous(), length, weight.transpose(1, 2).contiguous())
        width = lstm_kernel.width_type(gate // 4)
        lstm_kernel.forward_rows(*arguments, lstm_kernel.LSTMTrace(*as_arrays(*trace)), width)
        ctx.save_for_backward(length, weight, *trace)
        return trace[-1][:, :, 1:-1].transpose(1, 2).contiguous()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        from diffmask.tasks.bilstm import lstm_kernel

        length, weight, *trace = ctx.saved_tensors
        gates, _, states = trace
        state_gradient, gate_gradient = torch.zeros_like(states), torch.zeros_like(gates)
        state_gradient[:, :, 1:-1] = gradient.transpose(1, 2)
        lstm_kernel.backward_rows(
            *as_arrays(length, weight),
            lstm_kernel.LSTMTrace(*as_arrays(*trace)),
            *as_arrays(state_gradient, gate_gradient),
            lstm_kernel.width_type(weight.shape[-1]),
        )
        return gate_gradient[:, :, 1:-1].transpose(1, 2), None, None


def as_arrays(*tensors: Tensor) -> list[Any]:
    """Return tensors as NumPy arrays that share their memory."""
    return [tensor.detach().numpy() for tensor in tensors]
