"""What the kernel of pairs works on: the model, its rows, the slopes of both, and room for the row at hand.

Whoever edits it empties `__pycache__`, as `lstm_kernel` says.

A small BiLSTM of pairs with attention, row by row, compiled by numba: its answers, and the slopes of its loss.

logits = F tanh(A c + B q): q the last states of the question, c the mean of the text's states v_t under
alpha = softmax(w' tanh(W v_t + U q)). A row is answered and learned from before the next is read, so that all of it
stays in the processor's cache.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from diffmask.tasks.bilstm.lstm_kernel import (
    ONE,
    Floats,
    Ints,
    LSTMTrace,
    Size,
    add_product,
    add_products,
    compiled,
    in_any_order,
    memory_for,
    read,
    tanh,
    trace_back,
)

Bools = NDArray[np.bool_]


class Linear(NamedTuple):
    """A weight [out, in], and the same turned."""

    weight: Floats
    transposed: Floats


class BiLSTMWeights(NamedTuple):
    """An LSTM in both directions."""

    inputs: Floats
    """What each word adds to the gates, [word, way, 4 width]."""
    recurrent: Linear
    """What the state before adds, one for each way."""


class PairWeights(NamedTuple):
    """The model."""

    text: BiLSTMWeights
    question: BiLSTMWeights
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


class RowActivations(NamedTuple):
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


class PairGradients(NamedTuple):
    """The slopes of weights that every token adds to; those of LSTMs as `transposed` is laid out."""

    text_inputs: Floats
    text: Floats
    question_inputs: Floats
    question: Floats
    state: Floats
    score: Floats


class PairInputs(NamedTuple):
    """The rows that are asked about."""

    tokens: Ints
    length: Ints
    attended: Bools
    pair: Ints
    pair_length: Ints


class RowBuffers(NamedTuple):
    """What is known of the row at hand."""

    text: LSTMTrace
    asked: LSTMTrace
    hidden: Floats
    """tanh(W v_t + U q), [token, width]."""
    alpha: Floats
    of_hidden: Floats
    of_gates: Floats
    of_states: Floats
    asked_for: Floats
    """U q, with the biases of the attention."""


@compiled
def scratch_for(tokens: int, words: int, size: Size) -> RowBuffers:
    """Room for a text of so many tokens and a question of so many words."""
    width, longest = 4 * len(size), max(tokens, words)
    hidden = np.empty((tokens, width), np.float32)
    return RowBuffers(
        memory_for(tokens, size),
        memory_for(words, size),
        hidden,
        np.empty(tokens, np.float32),
        np.empty_like(hidden),
        np.empty((longest + 2, 4 * width), np.float32),
        np.empty((2, longest + 2, width), np.float32),
        np.empty(width, np.float32),
    )


ZERO = np.float32(0)


@in_any_order
def dot(left: Floats, right: Floats, count: int) -> np.float32:
    """The sum of products."""
    total = ZERO
    for j in range(count):
        total += left[j] * right[j]
    return total


@compiled
def attend(model: PairWeights, length: int, attended: Bools, question: Floats, kept: RowBuffers, size: Size) -> None:
    """Fills hidden and alpha; a token that may not be attended to has none."""
    width = 4 * len(size)
    asked, alpha, states = kept.asked_for, kept.alpha, kept.text.states
    for j in range(width):
        asked[j] = model.attention_bias[j]
    add_product(asked, question, model.attention.transposed, 2 * width, width)
    largest, whole = -np.inf, ZERO
    for token in range(length):
        if attended[token]:
            hidden = kept.hidden[token]
            for j in range(width):
                hidden[j] = asked[j]
            for way in range(2):
                add_product(hidden, states[way, token + 1], model.state.transposed[way], width, width)
            for j in range(width):
                hidden[j] = tanh(hidden[j])
            alpha[token] = dot(hidden, model.score, width)
            largest = max(largest, alpha[token])
    for token in range(length):
        alpha[token] = np.exp(alpha[token] - largest) if attended[token] else ZERO
        whole += alpha[token]
    if whole > 0:
        for token in range(length):
            alpha[token] /= whole


@compiled
def answer_row(
    model: PairWeights, texts: PairInputs, row: int, kept: RowBuffers, rows: RowActivations, size: Size
) -> None:
    """Fills the row's question, context, combined and logits."""
    width, length, pair_length = 4 * len(size), texts.length[row], texts.pair_length[row]
    question, context = rows.question[row], rows.context[row]
    combined, logits = rows.combined[row], rows.logits[row]
    for way in range(2):
        asked, text = model.question, model.text
        read(way, asked.inputs, texts.pair[row], pair_length, asked.recurrent.transposed[way], kept.asked, size)
        read(way, text.inputs, texts.tokens[row], length, text.recurrent.transposed[way], kept.text, size)
    question[:width] = kept.asked.states[0, pair_length]
    question[width:] = kept.asked.states[1, 1]
    attend(model, length, texts.attended[row], question, kept, size)
    context[:] = 0
    for token in range(length):
        share = kept.alpha[token]
        for way in range(2):
            state, mean = kept.text.states[way, token + 1], context[way * width :]
            for j in range(width):
                mean[j] += share * state[j]
    for j in range(width):
        combined[j] = model.combined_bias[j]
    add_product(combined, context, model.pooled.transposed, 2 * width, width)
    add_product(combined, question, model.asked.transposed, 2 * width, width)
    for j in range(width):
        combined[j] = tanh(combined[j])
    logits[:] = model.answer_bias
    add_product(logits, combined, model.answer.transposed, width, len(logits))


@compiled
def learn_attention(
    model: PairWeights,
    length: int,
    of_context: Floats,
    of_attention: Floats,
    kept: RowBuffers,
    slopes: PairGradients,
    size: Size,
) -> None:
    """From the slope of the context to those of the text's states, of U q, and of the attention's weights."""
    width, states, alpha = 4 * len(size), kept.text.states, kept.alpha
    mean = ZERO
    for token in range(length):
        value = dot(of_context[:width], states[0, token + 1], width)
        value += dot(of_context[width:], states[1, token + 1], width)
        kept.of_hidden[token, 0] = value
        mean += alpha[token] * value
    of_attention[:] = 0
    for token in range(length):
        hidden, of_hidden, share = kept.hidden[token], kept.of_hidden[token], alpha[token]
        of_score = share * (of_hidden[0] - mean)
        if share == 0:  # Never attended to: what stands in `hidden` is another row's.
            of_hidden[:] = 0
        else:
            for j in range(width):
                slopes.score[j] += of_score * hidden[j]
                of_hidden[j] = of_score * model.score[j] * (ONE - hidden[j] * hidden[j])
                of_attention[j] += of_hidden[j]
        for way in range(2):
            of_state, of_mean = kept.of_states[way, token + 1], of_context[way * width :]
            for j in range(width):
                of_state[j] = share * of_mean[j]
            add_product(of_state, of_hidden, model.state.weight[way], width, width)
    for way in range(2):
        add_products(slopes.state[way], kept.of_hidden, states[way, 1:], length, width, width)


@compiled
def learn_reading(
    reading: BiLSTMWeights,
    place: Ints,
    length: int,
    memory: LSTMTrace,
    kept: RowBuffers,
    of_inputs: Floats,
    of_weight: Floats,
    size: Size,
) -> None:
    """From the slopes of the states to those of an LSTM."""
    width, of_gates = 4 * len(size), kept.of_gates
    for way in range(2):
        trace_back(way, length, reading.recurrent.weight[way], memory, kept.of_states[way], of_gates, size)
        for token in range(length):
            found, total = of_gates[token + 1], of_inputs[place[token], way]
            for j in range(4 * width):
                total[j] += found[j]
        # A token's gates have seen the state beside it: to its left, or to its right.
        add_products(of_weight[way], memory.states[way, 2 * way :], of_gates[1:], length, width, 4 * width)


@compiled
def learn_row(
    model: PairWeights,
    texts: PairInputs,
    row: int,
    kept: RowBuffers,
    rows: RowActivations,
    slopes: PairGradients,
    size: Size,
) -> None:
    """From the slope of the row's logits to that of everything before."""
    width, length, pair_length = 4 * len(size), texts.length[row], texts.pair_length[row]
    combined, of_combined, of_logits = rows.combined[row], rows.of_combined[row], rows.of_logits[row]
    of_context, of_question = np.zeros(2 * width, np.float32), np.zeros(2 * width, np.float32)
    of_combined[:] = 0
    for label in range(len(of_logits)):
        slope, weight = of_logits[label], model.answer.weight[label]
        for j in range(width):
            of_combined[j] += slope * weight[j]
    for j in range(width):
        of_combined[j] *= ONE - combined[j] * combined[j]
    add_product(of_context, of_combined, model.pooled.weight, width, 2 * width)
    add_product(of_question, of_combined, model.asked.weight, width, 2 * width)
    learn_attention(model, length, of_context, rows.of_attention[row], kept, slopes, size)
    learn_reading(model.text, texts.tokens[row], length, kept.text, kept, slopes.text_inputs, slopes.text, size)
    add_product(of_question, rows.of_attention[row], model.attention.weight, width, 2 * width)
    kept.of_states[:, : pair_length + 2] = 0
    kept.of_states[0, pair_length] = of_question[:width]
    kept.of_states[1, 1] = of_question[width:]
    asked, of_asked = texts.pair[row], slopes.question
    learn_reading(model.question, asked, pair_length, kept.asked, kept, slopes.question_inputs, of_asked, size)


@compiled
def forward_rows(model: PairWeights, texts: PairInputs, rows: RowActivations, size: Size) -> None:
    """Fills the logits of all rows."""
    kept = scratch_for(texts.tokens.shape[1], texts.pair.shape[1], size)
    for row in range(len(texts.length)):
        answer_row(model, texts, row, kept, rows, size)


@compiled
def learn(
    model: PairWeights, texts: PairInputs, target: Ints, rows: RowActivations, slopes: PairGradients, size: Size
) -> None:
    """Fills the logits, and the slopes of their mean cross-entropy."""
    kept = scratch_for(texts.tokens.shape[1], texts.pair.shape[1], size)
    count = np.float32(len(target))
    for row in range(len(target)):
        answer_row(model, texts, row, kept, rows, size)
        logits, of_logits = rows.logits[row], rows.of_logits[row]
        largest, whole = logits.max(), ZERO
        for j in range(len(logits)):
            of_logits[j] = np.exp(logits[j] - largest)
            whole += of_logits[j]
        for j in range(len(logits)):
            of_logits[j] /= whole * count
        of_logits[target[row]] -= ONE / count
        learn_row(model, texts, row, kept, rows, slopes, size)
