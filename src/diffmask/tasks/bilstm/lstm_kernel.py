"""Small LSTM compiled by numba, one row and one direction at a time: no padding is computed and initial is packed.

Gates are i, f, z, o in this order, as in torch: c = f c' + i z, h = o tanh(c). The weights of a small LSTM fit into the
fastest cache of the processor, so batching rows gains little.

After a change of this file delete `__pycache__`: numba recompiles the changed functions, but not their callers in other
files.
"""

from inspect import unwrap
from typing import Any, NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]
WidthType = tuple[int, ...]
"""Width of an LSTM as a tuple of width / 4 zeros.

The length of a tuple is part of its type. A kernel is therefore compiled for one width, and its loops are unrolled.
"""

LEVELS = 12
"""Levels of Lambert's continued fraction tanh x = x / (1 + x^2 / (3 + x^2 / (5 + ...))): exact to 4e-7."""
TANH_LIMIT = np.float32(8.3)
"""Argument from which tanh is 1 in single precision."""
HALF, ONE = np.float32(0.5), np.float32(1)


def width_type(width: int) -> WidthType:
    """Return a width in the form that kernels take.

    >>> width_type(8)
    (0, 0)
    """
    return (0,) * (width // 4)


def lambert_fraction(levels: int) -> tuple[list[int], list[int]]:
    """Return the coefficients of p and q in the continued fraction x p(x^2) / q(x^2), constants first.

    >>> lambert_fraction(3)  # x (15 + x^2) / (15 + 6 x^2)
    ([15, 1], [15, 6])
    """
    above, below = [1], [2 * levels - 1]
    for odd in range(2 * levels - 3, 0, -2):
        longer = max(len(below), len(above) + 1)
        whole = [odd * value for value in below] + [0] * (longer - len(below))
        for power, value in enumerate(above, 1):
            whole[power] += value
        above, below = below, whole
    return above, below


_above, _below = lambert_fraction(LEVELS)
P0, P1, P2, P3, P4, P5 = (np.float32(value / _below[0]) for value in _above)
Q0, Q1, Q2, Q3, Q4, Q5, Q6 = (np.float32(value / _below[0]) for value in _below)


def jit(function: Any) -> Any:
    """Compile with numba: division never raises, and fused multiply-add allows vector instructions."""
    return _njit(function, {"contract"}, cache=True)


def jit_inline(function: Any) -> Any:
    """Compile with numba and inline into the caller, which knows the lengths of the loops."""
    return _njit(function, {"contract"}, inline="always")


def jit_reassociate(function: Any) -> Any:
    """Compile with numba and allow a sum to be reordered, so that it uses vector instructions."""
    return _njit(function, {"contract", "reassoc"}, cache=True)


def _njit(function: Any, fastmath: set[str], **options: Any) -> Any:
    """Compile the function itself; in tests it is wrapped by the shape checks."""
    return numba.njit(unwrap(function), fastmath=fastmath, error_model="numpy", **options)


@jit
def tanh(x: np.float32) -> np.float32:
    """Return tanh by Lambert's fraction; NaN stays NaN."""
    x = TANH_LIMIT if x > TANH_LIMIT else (-TANH_LIMIT if x < -TANH_LIMIT else x)
    y = x * x
    above = ((((P5 * y + P4) * y + P3) * y + P2) * y + P1) * y + P0
    below = (((((Q6 * y + Q5) * y + Q4) * y + Q3) * y + Q2) * y + Q1) * y + Q0
    return x * above / below


@jit
def sigmoid(x: np.float32) -> np.float32:
    """Return (1 + tanh(x / 2)) / 2."""
    return HALF + HALF * tanh(HALF * x)


@jit_inline
def add_product(total: Floats, vector: Floats, matrix: Floats, rows: int, columns: int) -> None:
    """Add vector @ matrix to total, four rows at a time; the number of rows is a multiple of four."""
    for k in range(0, rows, 4):
        a, b, c, d = vector[k], vector[k + 1], vector[k + 2], vector[k + 3]
        row_a, row_b, row_c, row_d = matrix[k], matrix[k + 1], matrix[k + 2], matrix[k + 3]
        for j in range(columns):
            total[j] += a * row_a[j] + b * row_b[j] + c * row_c[j] + d * row_d[j]


@jit_inline
def add_products(total: Floats, left: Floats, right: Floats, count: int, rows: int, columns: int) -> None:
    """Add left.T @ right to total over `count` tokens, four at a time."""
    fours = count - count % 4
    for t in range(0, fours, 4):
        left_a, left_b, left_c, left_d = left[t], left[t + 1], left[t + 2], left[t + 3]
        right_a, right_b, right_c, right_d = right[t], right[t + 1], right[t + 2], right[t + 3]
        for k in range(rows):
            a, b, c, d, row = left_a[k], left_b[k], left_c[k], left_d[k], total[k]
            for j in range(columns):
                row[j] += a * right_a[j] + b * right_b[j] + c * right_c[j] + d * right_d[j]
    for t in range(fours, count):
        last_left, last_right = left[t], right[t]
        for k in range(rows):
            a, row = last_left[k], total[k]
            for j in range(columns):
                row[j] += a * last_right[j]


class LSTMTrace(NamedTuple):
    """Gates, cells and states at each token of a row, [direction, slot, ...].

    Direction 0 runs from the first token, direction 1 from the last. Token t has slot t + 1, so that the slot of the
    previous state always exists: its initial state has slot 0 or length + 1.
    """

    gates: Floats
    cells: Floats
    states: Floats


@jit
def allocate_trace(tokens: int, size: WidthType) -> LSTMTrace:
    """Return an uninitialised trace for a number of tokens."""
    width = 4 * len(size)
    gates = np.empty((2, tokens + 2, 4 * width), np.float32)
    cells = np.empty((2, tokens + 2, width), np.float32)
    return LSTMTrace(gates, cells, np.empty_like(cells))


@jit
def forward_row(
    direction: int, inputs: Floats, index: Ints, length: int, weight: Floats, trace: LSTMTrace, size: WidthType
) -> None:
    """Fill one direction of the trace from inputs [vector, direction, 4 width]; token t has the vector index[t].

    The recurrent weight is [width, 4 width].
    """
    width = 4 * len(size)
    gates, cells, states = trace.gates[direction], trace.cells[direction], trace.states[direction]
    total, initial = np.empty(4 * width, np.float32), direction * (length + 1)
    cells[initial] = 0
    states[initial] = 0
    for step in range(length):
        token = step if direction == 0 else length - 1 - step
        slot, previous = token + 1, token + 2 * direction
        gate_input = inputs[index[token], direction]
        for j in range(4 * width):
            total[j] = gate_input[j]
        add_product(total, states[previous], weight, width, 4 * width)
        gate, cell, before, state = gates[slot], cells[slot], cells[previous], states[slot]
        for j in range(2 * width):
            gate[j] = sigmoid(total[j])
        for j in range(2 * width, 3 * width):
            gate[j] = tanh(total[j])
        for j in range(3 * width, 4 * width):
            gate[j] = sigmoid(total[j])
        for j in range(width):
            cell[j] = gate[width + j] * before[j] + gate[j] * gate[2 * width + j]
        for j in range(width):
            state[j] = gate[3 * width + j] * tanh(cell[j])


@jit
def backward_row(
    direction: int,
    length: int,
    weight: Floats,
    trace: LSTMTrace,
    state_gradients: Floats,
    gate_gradients: Floats,
    size: WidthType,
) -> None:
    """Fill the gradients of the gates, [slot, 4 width], from those of the states, [slot, width].

    The recurrent weight is [4 width, width].
    """
    width = 4 * len(size)
    gates, cells = trace.gates[direction], trace.cells[direction]
    d_state, d_cell = np.zeros(width, np.float32), np.zeros(width, np.float32)
    for step in range(length - 1, -1, -1):
        token = step if direction == 0 else length - 1 - step
        slot, previous = token + 1, token + 2 * direction
        gate, cell, before, d_output, d_gate = (
            gates[slot],
            cells[slot],
            cells[previous],
            state_gradients[slot],
            gate_gradients[slot],
        )
        for j in range(width):
            i, f, z, o = gate[j], gate[width + j], gate[2 * width + j], gate[3 * width + j]
            activation = tanh(cell[j])
            outer = d_state[j] + d_output[j]
            inner = d_cell[j] + outer * o * (ONE - activation * activation)
            d_gate[j] = inner * z * i * (ONE - i)
            d_gate[width + j] = inner * before[j] * f * (ONE - f)
            d_gate[2 * width + j] = inner * i * (ONE - z * z)
            d_gate[3 * width + j] = outer * activation * o * (ONE - o)
            d_cell[j] = inner * f
            d_state[j] = 0
        add_product(d_state, d_gate, weight, 4 * width, width)


@jit
def forward_rows(inputs: Floats, length: Ints, weight: Floats, trace: LSTMTrace, size: WidthType) -> None:
    """Fill the trace of all rows, [row, direction, slot, ...], from inputs [row, token, direction, 4 width]."""
    index = np.arange(inputs.shape[1])
    for row in range(len(length)):
        row_trace = LSTMTrace(trace.gates[row], trace.cells[row], trace.states[row])
        for direction in range(2):
            forward_row(direction, inputs[row], index, length[row], weight[direction], row_trace, size)


@jit
def backward_rows(
    length: Ints, weight: Floats, trace: LSTMTrace, state_gradients: Floats, gate_gradients: Floats, size: WidthType
) -> None:
    """Fill the gradients of the gates of all rows from those of their states."""
    for row in range(len(length)):
        row_trace = LSTMTrace(trace.gates[row], trace.cells[row], trace.states[row])
        for direction in range(2):
            backward_row(
                direction,
                length[row],
                weight[direction],
                row_trace,
                state_gradients[row, direction],
                gate_gradients[row, direction],
                size,
            )
