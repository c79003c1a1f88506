"""A small LSTM, one row and one direction after the other, compiled by numba: real tokens only, and no packing.

Gates i, f, z, o in this order, as torch keeps them: c = f c' + i z, h = o tanh(c). The weights of a small LSTM stay in
the cache nearest to the processor, so that little is gained by taking rows together, and a row ends where it ends.

Who changes this file empties `__pycache__`: numba compiles again what is changed, not what calls it from elsewhere.
"""

from inspect import unwrap
from typing import Any, NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]
Size = tuple[int, ...]
"""A quarter of a width, as that many zeros.

A tuple's length is part of its type, so a kernel is compiled for one width: loops of unknown length are not unrolled.
"""

LEVELS = 12
"""Of Lambert's continued fraction tanh x = x / (1 + x^2 / (3 + x^2 / (5 + ...))): exact to 4e-7."""
LARGEST = np.float32(8.3)
"""Where tanh is 1 to the precision of the numbers."""
HALF, ONE = np.float32(0.5), np.float32(1)


def size_of(width: int) -> Size:
    """The width as kernels take it.

    >>> size_of(8)
    (0, 0)
    """
    return (0,) * (width // 4)


def lambert(levels: int) -> tuple[list[int], list[int]]:
    """The continued fraction as p(x^2) / q(x^2), constants first.

    >>> lambert(3)  # x (15 + x^2) / (15 + 6 x^2)
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


_above, _below = lambert(LEVELS)
P0, P1, P2, P3, P4, P5 = (np.float32(value / _below[0]) for value in _above)
Q0, Q1, Q2, Q3, Q4, Q5, Q6 = (np.float32(value / _below[0]) for value in _below)


def compiled(function: Any) -> Any:
    """By numba: divisions never raise and products are added in one instruction, so that many are done at a time."""
    return _by_numba(function, {"contract"}, cache=True)


def inlined(function: Any) -> Any:
    """The same, written out where it is called: there the lengths of its loops are known."""
    return _by_numba(function, {"contract"}, inline="always")


def in_any_order(function: Any) -> Any:
    """The same for a sum, of which many terms are added at a time."""
    return _by_numba(function, {"contract", "reassoc"}, cache=True)


def _by_numba(function: Any, liberties: set[str], **options: Any) -> Any:
    """Where calls are checked, as in tests, every function is wrapped; numba wants the function itself."""
    return numba.njit(unwrap(function), fastmath=liberties, error_model="numpy", **options)


@compiled
def tanh(x: np.float32) -> np.float32:
    """Lambert's fraction; not a number stays none."""
    x = LARGEST if x > LARGEST else (-LARGEST if x < -LARGEST else x)
    y = x * x
    above = ((((P5 * y + P4) * y + P3) * y + P2) * y + P1) * y + P0
    below = (((((Q6 * y + Q5) * y + Q4) * y + Q3) * y + Q2) * y + Q1) * y + Q0
    return x * above / below


@compiled
def sigmoid(x: np.float32) -> np.float32:
    """Half of 1 + tanh(x / 2)."""
    return HALF + HALF * tanh(HALF * x)


@inlined
def add_product(total: Floats, vector: Floats, matrix: Floats, rows: int, columns: int) -> None:
    """total += vector @ matrix, four rows at a time; their number is a multiple of four."""
    for k in range(0, rows, 4):
        a, b, c, d = vector[k], vector[k + 1], vector[k + 2], vector[k + 3]
        row_a, row_b, row_c, row_d = matrix[k], matrix[k + 1], matrix[k + 2], matrix[k + 3]
        for j in range(columns):
            total[j] += a * row_a[j] + b * row_b[j] + c * row_c[j] + d * row_d[j]


@inlined
def add_products(total: Floats, left: Floats, right: Floats, count: int, rows: int, columns: int) -> None:
    """total += left.T @ right over `count` tokens, four at a time."""
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
    """What was computed at each token of a row, [way, slot, ...].

    The way 0 reads from the first token, 1 from the last. Token t has the slot t + 1: what was read before it is
    beside it, also where nothing was.
    """

    gates: Floats
    cells: Floats
    states: Floats


@compiled
def memory_for(tokens: int, size: Size) -> LSTMTrace:
    """Room for so many tokens."""
    width = 4 * len(size)
    gates = np.empty((2, tokens + 2, 4 * width), np.float32)
    cells = np.empty((2, tokens + 2, width), np.float32)
    return LSTMTrace(gates, cells, np.empty_like(cells))


@compiled
def read(way: int, inputs: Floats, place: Ints, length: int, weight: Floats, memory: LSTMTrace, size: Size) -> None:
    """Fills a way of the memory from inputs [place, way, 4 width], a token's at its place.

    The weight, [width, 4 width], is of the state beside it.
    """
    width = 4 * len(size)
    gates, cells, states = memory.gates[way], memory.cells[way], memory.states[way]
    total, nothing = np.empty(4 * width, np.float32), way * (length + 1)
    cells[nothing] = 0
    states[nothing] = 0
    for step in range(length):
        token = step if way == 0 else length - 1 - step
        slot, beside = token + 1, token + 2 * way
        given = inputs[place[token], way]
        for j in range(4 * width):
            total[j] = given[j]
        add_product(total, states[beside], weight, width, 4 * width)
        gate, cell, before, state = gates[slot], cells[slot], cells[beside], states[slot]
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


@compiled
def trace_back(
    way: int, length: int, weight: Floats, memory: LSTMTrace, slopes: Floats, found: Floats, size: Size
) -> None:
    """Fills the slopes of the gates, [slot, 4 width], from those of the states, [slot, width].

    The weight is [4 width, width].
    """
    width = 4 * len(size)
    gates, cells = memory.gates[way], memory.cells[way]
    of_state, of_cell = np.zeros(width, np.float32), np.zeros(width, np.float32)
    for step in range(length - 1, -1, -1):
        token = step if way == 0 else length - 1 - step
        slot, beside = token + 1, token + 2 * way
        gate, cell, before, slope, of_gate = gates[slot], cells[slot], cells[beside], slopes[slot], found[slot]
        for j in range(width):
            i, f, z, o = gate[j], gate[width + j], gate[2 * width + j], gate[3 * width + j]
            shown = tanh(cell[j])
            outer = of_state[j] + slope[j]
            inner = of_cell[j] + outer * o * (ONE - shown * shown)
            of_gate[j] = inner * z * i * (ONE - i)
            of_gate[width + j] = inner * before[j] * f * (ONE - f)
            of_gate[2 * width + j] = inner * i * (ONE - z * z)
            of_gate[3 * width + j] = outer * shown * o * (ONE - o)
            of_cell[j] = inner * f
            of_state[j] = 0
        add_product(of_state, of_gate, weight, 4 * width, width)


@compiled
def read_rows(inputs: Floats, length: Ints, weight: Floats, memory: LSTMTrace, size: Size) -> None:
    """Reads rows of inputs [row, token, way, 4 width] into a memory of all of them, [row, way, slot, ...]."""
    place = np.arange(inputs.shape[1])
    for row in range(len(length)):
        own = LSTMTrace(memory.gates[row], memory.cells[row], memory.states[row])
        for way in range(2):
            read(way, inputs[row], place, length[row], weight[way], own, size)


@compiled
def trace_rows_back(length: Ints, weight: Floats, memory: LSTMTrace, slopes: Floats, found: Floats, size: Size) -> None:
    """Fills the slopes of all rows' gates from those of their states."""
    for row in range(len(length)):
        own = LSTMTrace(memory.gates[row], memory.cells[row], memory.states[row])
        for way in range(2):
            trace_back(way, length[row], weight[way], own, slopes[row, way], found[row, way], size)
