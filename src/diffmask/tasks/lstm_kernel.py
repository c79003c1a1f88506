"""A small LSTM in both directions, row by row, compiled by numba: real tokens only, and no packing.

Gates i, f, z, o in this order, as torch keeps them: c = f c' + i z, h = o tanh(c). The weights of a small LSTM stay in
the cache nearest to the processor, so that little is gained by taking rows together, and a row ends where it ends.
"""

from functools import cache
from inspect import unwrap
from typing import Any, NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]

LEVELS = 12
"""Of Lambert's continued fraction tanh x = x / (1 + x^2 / (3 + x^2 / (5 + ...))): exact to 4e-7."""
LARGEST = np.float32(8.3)
"""Where tanh is 1 to the precision of the numbers."""
HALF, ONE = np.float32(0.5), np.float32(1)


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
    """By numba: divisions never raise and products are added in one instruction, so that many are done at a time.

    Where calls are checked, as in tests, every function is wrapped; numba wants the function itself.
    """
    return numba.njit(unwrap(function), fastmath={"contract"}, error_model="numpy", cache=True)


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


class Memory(NamedTuple):
    """What was computed at each token, [slot, way, ...].

    The way 0 reads from the first token, 1 from the row's last. Tokens have slots one after the other, with one of
    zeros before each row and after the last: what was read before a token is beside it, also where nothing was.
    """

    gates: Floats
    cells: Floats
    states: Floats


# What follows is compiled for a width that it knows, since loops of unknown length are not unrolled. Products take four
# rows of a matrix at a time. They stand in both: with a function in its closure a kernel is compiled by every process.


@cache
def forward(width: int) -> Any:
    """Fills the memory, and the states [row, token, way, width], from inputs [place, way, 4 width].

    A token's input is at `place[row, token]`; weights are [way, width, 4 width]. Behind a row's length nothing is
    shown.
    """

    @compiled
    def fill(inputs: Floats, place: Ints, length: Ints, recurrent: Floats, memory: Memory, shown: Floats) -> None:
        total = np.empty(4 * width, np.float32)
        for way in range(2):
            first = 1
            memory.cells[0, way] = 0
            memory.states[0, way] = 0
            for row in range(len(length)):
                memory.cells[first + length[row], way] = 0
                memory.states[first + length[row], way] = 0
                for step in range(length[row]):
                    token = step if way == 0 else length[row] - 1 - step
                    slot, beside = first + token, first + token - 1 + 2 * way
                    total[:] = inputs[place[row, token], way]
                    state, weight = memory.states[beside, way], recurrent[way]
                    for k in range(0, width, 4):
                        a, b, c, d = state[k], state[k + 1], state[k + 2], state[k + 3]
                        row_a, row_b, row_c, row_d = weight[k], weight[k + 1], weight[k + 2], weight[k + 3]
                        for j in range(4 * width):
                            total[j] += a * row_a[j] + b * row_b[j] + c * row_c[j] + d * row_d[j]
                    gate, cell, before = memory.gates[slot, way], memory.cells[slot, way], memory.cells[beside, way]
                    for j in range(2 * width):
                        gate[j] = sigmoid(total[j])
                    for j in range(2 * width, 3 * width):
                        gate[j] = tanh(total[j])
                    for j in range(3 * width, 4 * width):
                        gate[j] = sigmoid(total[j])
                    for j in range(width):
                        cell[j] = gate[width + j] * before[j] + gate[j] * gate[2 * width + j]
                    state = memory.states[slot, way]
                    for j in range(width):
                        state[j] = gate[3 * width + j] * tanh(cell[j])
                    shown[row, token, way] = state
                first += length[row] + 1

    return fill


@cache
def backward(width: int) -> Any:
    """Fills the slopes of gates [slot, way, 4 width] from those of states, and adds them up to those of the inputs.

    Weights are [way, 4 width, width].
    """

    @compiled
    def fill(
        slopes: Floats,
        place: Ints,
        length: Ints,
        recurrent: Floats,
        memory: Memory,
        of_gates: Floats,
        of_inputs: Floats,
    ) -> None:
        of_state, of_cell = np.empty(width, np.float32), np.empty(width, np.float32)
        for way in range(2):
            first = 1
            of_gates[0, way] = 0
            for row in range(len(length)):
                of_gates[first + length[row], way] = 0
                of_state[:] = 0
                of_cell[:] = 0
                for step in range(length[row] - 1, -1, -1):
                    token = step if way == 0 else length[row] - 1 - step
                    slot, beside = first + token, first + token - 1 + 2 * way
                    gate, cell, before = memory.gates[slot, way], memory.cells[slot, way], memory.cells[beside, way]
                    slope, found = slopes[row, token, way], of_gates[slot, way]
                    for j in range(width):
                        i, f, z, o = gate[j], gate[width + j], gate[2 * width + j], gate[3 * width + j]
                        shown = tanh(cell[j])
                        outer = of_state[j] + slope[j]
                        inner = of_cell[j] + outer * o * (ONE - shown * shown)
                        found[j] = inner * z * i * (ONE - i)
                        found[width + j] = inner * before[j] * f * (ONE - f)
                        found[2 * width + j] = inner * i * (ONE - z * z)
                        found[3 * width + j] = outer * shown * o * (ONE - o)
                        of_cell[j] = inner * f
                        of_state[j] = 0
                    weight = recurrent[way]
                    for k in range(0, 4 * width, 4):
                        a, b, c, d = found[k], found[k + 1], found[k + 2], found[k + 3]
                        row_a, row_b, row_c, row_d = weight[k], weight[k + 1], weight[k + 2], weight[k + 3]
                        for j in range(width):
                            of_state[j] += a * row_a[j] + b * row_b[j] + c * row_c[j] + d * row_d[j]
                    total = of_inputs[place[row, token], way]
                    for j in range(4 * width):
                        total[j] += found[j]
                first += length[row] + 1

    return fill
