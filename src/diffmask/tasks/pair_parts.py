"""What the kernel of pairs works on: the model, its rows, the slopes of both, and room for the row at hand.

Whoever edits it empties `__pycache__`, as `lstm_kernel` says.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from diffmask.tasks.lstm_kernel import Floats, Ints, Memory, Size, compiled, memory_for

Bools = NDArray[np.bool_]


class Linear(NamedTuple):
    """A weight [out, in], and the same turned."""

    weight: Floats
    turned: Floats


class Reading(NamedTuple):
    """An LSTM in both directions."""

    inputs: Floats
    """What each word adds to the gates, [word, way, 4 width]."""
    recurrent: Linear
    """What the state before adds, one for each way."""


class Pair(NamedTuple):
    """The model."""

    text: Reading
    question: Reading
    state: Linear
    """W of the attention, one for each way."""
    attention: Linear
    """U of the attention."""
    score: Floats
    pooled: Linear
    asked: Linear
    answer: Linear
    attention_bias: Floats
    """Of W and U together."""
    combined_bias: Floats
    """Of A and B together."""
    answer_bias: Floats


class Rows(NamedTuple):
    """What is computed once a row, [row, ...]: from it and its slopes follow those of all weights but some."""

    question: Floats
    context: Floats
    combined: Floats
    """tanh(A c + B q)."""
    logits: Floats
    of_attention: Floats
    """Slopes of U q, already summed over tokens."""
    of_combined: Floats
    of_logits: Floats


class Slopes(NamedTuple):
    """The slopes of weights that every token adds to; those of LSTMs as `turned` is laid out."""

    text_inputs: Floats
    text: Floats
    question_inputs: Floats
    question: Floats
    state: Floats
    score: Floats


class Texts(NamedTuple):
    """The rows that are asked about."""

    tokens: Ints
    length: Ints
    attended: Bools
    pair: Ints
    pair_length: Ints


class Scratch(NamedTuple):
    """What is known of the row at hand."""

    text: Memory
    asked: Memory
    hidden: Floats
    """tanh(W v_t + U q), [token, width]."""
    alpha: Floats
    of_hidden: Floats
    of_gates: Floats
    of_states: Floats
    asked_for: Floats
    """U q, with the biases of the attention."""


@compiled
def scratch_for(tokens: int, words: int, size: Size) -> Scratch:
    """Room for a text of so many tokens and a question of so many words."""
    width, longest = 4 * len(size), max(tokens, words)
    hidden = np.empty((tokens, width), np.float32)
    return Scratch(
        memory_for(tokens, size),
        memory_for(words, size),
        hidden,
        np.empty(tokens, np.float32),
        np.empty_like(hidden),
        np.empty((longest + 2, 4 * width), np.float32),
        np.empty((2, longest + 2, width), np.float32),
        np.empty(width, np.float32),
    )
