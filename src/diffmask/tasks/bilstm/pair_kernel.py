"""Small BiLSTM with attention over a text and a question, compiled by numba: logits, and gradients of the loss.

logits = F tanh(A c + B q): q is the last states of the question, c the mean of the text's states v_t under
alpha = softmax(w' tanh(W v_t + U q)). The forward and backward pass of a row run before the next row, so that its
values stay in the processor's cache.

After a change of this file delete `__pycache__`, as for `lstm_kernel`. Names with `d_` are gradients of the loss.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from diffmask.tasks.bilstm.lstm_kernel import (
    ONE,
    Floats,
    Ints,
    LSTMTrace,
    WidthType,
    add_product,
    add_products,
    allocate_trace,
    backward_row,
    forward_row,
    jit,
    jit_reassociate,
    tanh,
)

Bools = NDArray[np.bool_]


class Linear(NamedTuple):
    """Weight [out, in] and its transpose."""

    weight: Floats
    transposed: Floats


class BiLSTMWeights(NamedTuple):
    """Weights of a bidirectional LSTM."""

    inputs: Floats
    """Contribution of each word to the gates, [word, direction, 4 width]."""
    recurrent: Linear
    """Weights of the previous state, one per direction."""


class PairWeights(NamedTuple):
    """Weights of the model."""

    text: BiLSTMWeights
    question: BiLSTMWeights
    state: Linear
    """W of the attention, one per direction."""
    attention: Linear
    """U of the attention."""
    score: Floats
    context: Linear
    """A."""
    question_output: Linear
    """B."""
    answer: Linear
    attention_bias: Floats
    """Sum of the biases of W and U."""
    combined_bias: Floats
    """Sum of the biases of A and B."""
    answer_bias: Floats


class RowActivations(NamedTuple):
    """Activations of each row and their gradients, [row, ...], from which most gradients of the weights follow."""

    question: Floats
    context: Floats
    combined: Floats
    """tanh(A c + B q)."""
    logits: Floats
    d_attention: Floats
    """Gradient of U q, summed over tokens."""
    d_combined: Floats
    d_logits: Floats


class PairGradients(NamedTuple):
    """Gradients of the weights that are summed over tokens; those of LSTMs are transposed."""

    text_inputs: Floats
    text: Floats
    question_inputs: Floats
    question: Floats
    state: Floats
    score: Floats


class PairInputs(NamedTuple):
    """Tokens of the texts and questions."""

    tokens: Ints
    length: Ints
    attended: Bools
    pair: Ints
    pair_length: Ints


class RowBuffers(NamedTuple):
    """Intermediate values of the current row."""

    text: LSTMTrace
    question: LSTMTrace
    hidden: Floats
    """tanh(W v_t + U q), [token, width]."""
    alpha: Floats
    d_hidden: Floats
    d_gates: Floats
    d_states: Floats
    question_score: Floats
    """U q plus the biases of the attention."""


@jit
def allocate_buffers(tokens: int, words: int, size: WidthType) -> RowBuffers:
    """Return uninitialised buffers for a text of `tokens` and a question of `words`."""
    width, longest = 4 * len(size), max(tokens, words)
    hidden = np.empty((tokens, width), np.float32)
    return RowBuffers(
        allocate_trace(tokens, size),
        allocate_trace(words, size),
        hidden,
        np.empty(tokens, np.float32),
        np.empty_like(hidden),
        np.empty((longest + 2, 4 * width), np.float32),
        np.empty((2, longest + 2, width), np.float32),
        np.empty(width, np.float32),
    )


ZERO = np.float32(0)


@jit_reassociate
def dot_product(left: Floats, right: Floats, count: int) -> np.float32:
    """Return the sum of left * right over the first `count` entries."""
    total = ZERO
    for j in range(count):
        total += left[j] * right[j]
    return total


@jit
def attention_forward(
    model: PairWeights, length: int, attended: Bools, question: Floats, buffers: RowBuffers, size: WidthType
) -> None:
    """Fill hidden and alpha; alpha is 0 for a token that is not attended."""
    width = 4 * len(size)
    question_score, alpha, states = buffers.question_score, buffers.alpha, buffers.text.states
    for j in range(width):
        question_score[j] = model.attention_bias[j]
    add_product(question_score, question, model.attention.transposed, 2 * width, width)
    largest, total_weight = -np.inf, ZERO
    for token in range(length):
        if attended[token]:
            hidden = buffers.hidden[token]
            for j in range(width):
                hidden[j] = question_score[j]
            for direction in range(2):
                add_product(hidden, states[direction, token + 1], model.state.transposed[direction], width, width)
            for j in range(width):
                hidden[j] = tanh(hidden[j])
            alpha[token] = dot_product(hidden, model.score, width)
            largest = max(largest, alpha[token])
    for token in range(length):
        alpha[token] = np.exp(alpha[token] - largest) if attended[token] else ZERO
        total_weight += alpha[token]
    if total_weight > 0:
        for token in range(length):
            alpha[token] /= total_weight


@jit
def pair_forward_row(
    model: PairWeights, texts: PairInputs, row: int, buffers: RowBuffers, rows: RowActivations, size: WidthType
) -> None:
    """Fill the row's question, context, combined and logits."""
    width, length, words = 4 * len(size), texts.length[row], texts.pair_length[row]
    question, context = rows.question[row], rows.context[row]
    combined, logits = rows.combined[row], rows.logits[row]
    for direction in range(2):
        weight = model.question.recurrent.transposed[direction]
        forward_row(direction, model.question.inputs, texts.pair[row], words, weight, buffers.question, size)
        weight = model.text.recurrent.transposed[direction]
        forward_row(direction, model.text.inputs, texts.tokens[row], length, weight, buffers.text, size)
    question[:width] = buffers.question.states[0, words]
    question[width:] = buffers.question.states[1, 1]
    attention_forward(model, length, texts.attended[row], question, buffers, size)
    context[:] = 0
    for token in range(length):
        weight_of_token = buffers.alpha[token]
        for direction in range(2):
            state, mean = buffers.text.states[direction, token + 1], context[direction * width :]
            for j in range(width):
                mean[j] += weight_of_token * state[j]
    for j in range(width):
        combined[j] = model.combined_bias[j]
    add_product(combined, context, model.context.transposed, 2 * width, width)
    add_product(combined, question, model.question_output.transposed, 2 * width, width)
    for j in range(width):
        combined[j] = tanh(combined[j])
    logits[:] = model.answer_bias
    add_product(logits, combined, model.answer.transposed, width, len(logits))


@jit
def attention_backward(
    model: PairWeights,
    length: int,
    d_context: Floats,
    d_attention: Floats,
    buffers: RowBuffers,
    gradients: PairGradients,
    size: WidthType,
) -> None:
    """Compute from the gradient of the context those of the text's states, of U q and of the attention weights."""
    width, states, alpha = 4 * len(size), buffers.text.states, buffers.alpha
    mean = ZERO
    for token in range(length):
        d_alpha = dot_product(d_context[:width], states[0, token + 1], width)
        d_alpha += dot_product(d_context[width:], states[1, token + 1], width)
        buffers.d_hidden[token, 0] = d_alpha
        mean += alpha[token] * d_alpha
    d_attention[:] = 0
    for token in range(length):
        hidden, d_hidden, weight = buffers.hidden[token], buffers.d_hidden[token], alpha[token]
        d_score = weight * (d_hidden[0] - mean)
        if weight == 0:  # Not attended: `hidden` still holds values of another row.
            d_hidden[:] = 0
        else:
            for j in range(width):
                gradients.score[j] += d_score * hidden[j]
                d_hidden[j] = d_score * model.score[j] * (ONE - hidden[j] * hidden[j])
                d_attention[j] += d_hidden[j]
        for direction in range(2):
            d_state, d_mean = buffers.d_states[direction, token + 1], d_context[direction * width :]
            for j in range(width):
                d_state[j] = weight * d_mean[j]
            add_product(d_state, d_hidden, model.state.weight[direction], width, width)
    for direction in range(2):
        add_products(gradients.state[direction], buffers.d_hidden, states[direction, 1:], length, width, width)


@jit
def lstm_backward(
    weights: BiLSTMWeights,
    words: Ints,
    length: int,
    trace: LSTMTrace,
    buffers: RowBuffers,
    d_inputs: Floats,
    d_weight: Floats,
    size: WidthType,
) -> None:
    """Add the gradients of an LSTM's weights, from the gradients of its states."""
    width, d_gates = 4 * len(size), buffers.d_gates
    for direction in range(2):
        recurrent, d_states = weights.recurrent.weight[direction], buffers.d_states[direction]
        backward_row(direction, length, recurrent, trace, d_states, d_gates, size)
        for token in range(length):
            d_gate, total = d_gates[token + 1], d_inputs[words[token], direction]
            for j in range(4 * width):
                total[j] += d_gate[j]
        # The gates of a token depend on the previous state: of its left neighbour, or of its right one.
        previous = trace.states[direction, 2 * direction :]
        add_products(d_weight[direction], previous, d_gates[1:], length, width, 4 * width)


@jit
def pair_backward_row(
    model: PairWeights,
    texts: PairInputs,
    row: int,
    buffers: RowBuffers,
    rows: RowActivations,
    gradients: PairGradients,
    size: WidthType,
) -> None:
    """Backpropagate from the gradient of the row's logits."""
    width, length, words = 4 * len(size), texts.length[row], texts.pair_length[row]
    combined, d_combined, d_logits = rows.combined[row], rows.d_combined[row], rows.d_logits[row]
    d_context, d_question = np.zeros(2 * width, np.float32), np.zeros(2 * width, np.float32)
    d_combined[:] = 0
    for label in range(len(d_logits)):
        d_logit, weight = d_logits[label], model.answer.weight[label]
        for j in range(width):
            d_combined[j] += d_logit * weight[j]
    for j in range(width):
        d_combined[j] *= ONE - combined[j] * combined[j]
    add_product(d_context, d_combined, model.context.weight, width, 2 * width)
    add_product(d_question, d_combined, model.question_output.weight, width, 2 * width)
    attention_backward(model, length, d_context, rows.d_attention[row], buffers, gradients, size)
    d_inputs, d_weight = gradients.text_inputs, gradients.text
    lstm_backward(model.text, texts.tokens[row], length, buffers.text, buffers, d_inputs, d_weight, size)
    add_product(d_question, rows.d_attention[row], model.attention.weight, width, 2 * width)
    # Only the last state of each direction of the question has a gradient.
    buffers.d_states[:, : words + 2] = 0
    buffers.d_states[0, words] = d_question[:width]
    buffers.d_states[1, 1] = d_question[width:]
    d_inputs, d_weight = gradients.question_inputs, gradients.question
    lstm_backward(model.question, texts.pair[row], words, buffers.question, buffers, d_inputs, d_weight, size)


@jit
def pair_forward(model: PairWeights, texts: PairInputs, rows: RowActivations, size: WidthType) -> None:
    """Fill the logits of all rows."""
    buffers = allocate_buffers(texts.tokens.shape[1], texts.pair.shape[1], size)
    for row in range(len(texts.length)):
        pair_forward_row(model, texts, row, buffers, rows, size)


@jit
def pair_forward_backward(
    model: PairWeights,
    texts: PairInputs,
    target: Ints,
    rows: RowActivations,
    gradients: PairGradients,
    size: WidthType,
) -> None:
    """Fill the logits of all rows and the gradients of their mean cross-entropy."""
    buffers = allocate_buffers(texts.tokens.shape[1], texts.pair.shape[1], size)
    count = np.float32(len(target))
    for row in range(len(target)):
        pair_forward_row(model, texts, row, buffers, rows, size)
        logits, d_logits = rows.logits[row], rows.d_logits[row]
        largest, total = logits.max(), ZERO
        for j in range(len(logits)):
            d_logits[j] = np.exp(logits[j] - largest)
            total += d_logits[j]
        for j in range(len(logits)):
            d_logits[j] /= total * count
        d_logits[target[row]] -= ONE / count
        pair_backward_row(model, texts, row, buffers, rows, gradients, size)
