"""The loss of a small BiLSTM of pairs with the slopes of all that it learns, by the compiled kernel."""

from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import cross_entropy

from diffmask.tasks.bilstm.lstm import arrays, input_gates, recurrent

if TYPE_CHECKING:
    from diffmask.tasks.bilstm.model import PairBiLSTM

Given = dict[str, Tensor]
"""What the model's `forward` takes, by name."""


def pair_loss(model: "PairBiLSTM", given: Given, target: Int[Tensor, " row"]) -> Float[Tensor, ""]:
    """Mean cross-entropy; `backward()` costs next to nothing, as the slopes are found on the way."""
    return _PairLoss.apply(target, _texts(given), *_learned(model))


@torch.no_grad()
def pair_logits(model: "PairBiLSTM", given: Given) -> Float[Tensor, "row class"]:
    """The logits alone."""
    from diffmask.tasks.bilstm import pair_kernel
    from diffmask.tasks.bilstm.pair_kernel import PairInputs, RowActivations

    learned, texts = _learned(model), PairInputs(*arrays(*_texts(given)))
    rows = _rows(learned, len(texts.tokens))
    _, _, _, logits, *_ = rows
    pair_kernel.forward_rows(_pair(learned), texts, RowActivations(*arrays(*rows)), _size(learned))
    return logits


def _texts(given: Given) -> list[Tensor]:
    """Tokens, length, what may be attended to, the question's words and length."""
    tokens, attended, pair = (given[name].contiguous() for name in ("tokens", "attended", "pair"))
    return [tokens, given["present"].sum(dim=1), attended, pair, given["pair_present"].sum(dim=1)]


def _learned(model: "PairBiLSTM") -> tuple[Tensor, ...]:
    """All that is learned, as the kernel takes it; words enter the gates by E W, of few words a small product."""
    pooling, text, question = model.pooling, model.encoder, model.question_encoder
    assert pooling.question is not None  # A model of pairs asks.
    return (
        input_gates(text.forward_lstm, text.backward_lstm, model.embedding.weight),
        recurrent(text.forward_lstm, text.backward_lstm),
        input_gates(question.forward_lstm, question.backward_lstm, model.question_embedding.weight),
        recurrent(question.forward_lstm, question.backward_lstm),
        pooling.state.weight,
        pooling.question.weight,
        pooling.score.weight,
        model.pooled.weight,
        model.asked.weight,
        model.answer.weight,
        pooling.state.bias + pooling.question.bias,
        model.pooled.bias + model.asked.bias,
        model.answer.bias,
    )


def _size(learned: tuple[Tensor, ...]) -> Any:
    from diffmask.tasks.bilstm.lstm_kernel import size_of

    return size_of(learned[1].shape[-1])


def _pair(learned: tuple[Tensor, ...]) -> Any:
    """The kernel's model."""
    from diffmask.tasks.bilstm.pair_kernel import BiLSTMWeights, Linear, PairWeights

    def linear(weight: Tensor) -> Linear:
        return Linear(*arrays(weight.contiguous(), weight.transpose(-1, -2).contiguous()))

    def reading(inputs: Tensor, weight: Tensor) -> BiLSTMWeights:
        (folded,) = arrays(inputs.view(len(inputs), 2, -1))
        return BiLSTMWeights(folded, linear(weight))

    text, of_text, question, of_question, state, attention, score, pooled, asked, answer, *biases = learned
    width = state.shape[0]
    return PairWeights(
        reading(text, of_text),
        reading(question, of_question),
        linear(state.view(width, 2, width).transpose(0, 1)),
        linear(attention),
        *arrays(score[0]),
        *map(linear, (pooled, asked, answer)),
        *arrays(*biases),
    )


def _rows(learned: tuple[Tensor, ...], count: int) -> list[Tensor]:
    """Room for what is computed once a row: question, context, combined, logits, and slopes of three."""
    width, classes = learned[4].shape[0], len(learned[-1])
    return [learned[0].new_empty(count, size) for size in (2 * width, 2 * width, width, classes, width, width, classes)]


class _PairLoss(torch.autograd.Function):
    """From all that is learned to the mean cross-entropy; slopes are found together with it, row by row."""

    @staticmethod
    def forward(ctx: Any, target: Tensor, texts: list[Tensor], *learned: Tensor) -> Tensor:
        from diffmask.tasks.bilstm import pair_kernel
        from diffmask.tasks.bilstm.pair_kernel import PairGradients, PairInputs, RowActivations

        width, rows = learned[4].shape[0], _rows(learned, len(target))
        shapes = (learned[0].shape, (2, width, 4 * width), learned[2].shape, (2, width, 4 * width), (2, width, width))
        slopes = [learned[0].new_zeros(shape) for shape in (*shapes, (width,))]
        folded = [slope.view(len(slope), 2, -1) if slope.dim() == 2 else slope for slope in slopes]
        pair_kernel.learn(
            _pair(learned),
            PairInputs(*arrays(*texts)),
            *arrays(target),
            RowActivations(*arrays(*rows)),
            PairGradients(*arrays(*folded)),
            _size(learned),
        )
        question, context, combined, logits, of_attention, of_combined, of_logits = rows
        text, of_text, asked, of_asked, state, score = slopes
        ctx.save_for_backward(
            *(text, of_text.transpose(1, 2), asked, of_asked.transpose(1, 2)),
            *(state.transpose(0, 1).flatten(1), of_attention.T @ question, score[None]),
            *(of_combined.T @ context, of_combined.T @ question, of_logits.T @ combined),
            *(slope.sum(dim=0) for slope in (of_attention, of_combined, of_logits)),
        )
        return cross_entropy(logits, target)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        return None, None, *(slope * found for found in ctx.saved_tensors)
