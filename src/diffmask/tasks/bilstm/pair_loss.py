"""Loss and logits of a small `PairBiLSTM` by the compiled kernel, which computes the gradients in the same pass."""

from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import cross_entropy

from diffmask.tasks.bilstm.lstm import as_arrays, input_gates, recurrent_weights

if TYPE_CHECKING:
    from diffmask.tasks.bilstm.model import PairBiLSTM

ModelInputs = dict[str, Tensor]
"""Arguments of the model's `forward` by name."""


def pair_loss(model: "PairBiLSTM", inputs: ModelInputs, target: Int[Tensor, " row"]) -> Float[Tensor, ""]:
    """Return the mean cross-entropy; `backward()` is almost free because the gradients are computed here."""
    return _PairLoss.apply(target, _token_arrays(inputs), *_parameters(model))


@torch.no_grad()
def pair_logits(model: "PairBiLSTM", inputs: ModelInputs) -> Float[Tensor, "row class"]:
    """Return the logits."""
    from diffmask.tasks.bilstm import pair_kernel
    from diffmask.tasks.bilstm.pair_kernel import PairInputs, RowActivations

    parameters, texts = _parameters(model), PairInputs(*as_arrays(*_token_arrays(inputs)))
    rows = _row_tensors(parameters, len(texts.tokens))
    _, _, _, logits, *_ = rows
    width = _width_type(parameters)
    pair_kernel.pair_forward(_pair_weights(parameters), texts, RowActivations(*as_arrays(*rows)), width)
    return logits


def _token_arrays(inputs: ModelInputs) -> list[Tensor]:
    """Return tokens, lengths, attended tokens, question words and question lengths."""
    tokens, attended, pair = (inputs[name].contiguous() for name in ("tokens", "attended", "pair"))
    return [tokens, inputs["present"].sum(dim=1), attended, pair, inputs["pair_present"].sum(dim=1)]


def _parameters(model: "PairBiLSTM") -> tuple[Tensor, ...]:
    """Return all parameters as the kernel takes them; the small vocabulary is multiplied by the input weights once."""
    pooling, text, question = model.pooling, model.encoder, model.question_encoder
    assert pooling.question is not None  # A PairBiLSTM has a question.
    return (
        input_gates(text.forward_lstm, text.backward_lstm, model.embedding.weight),
        recurrent_weights(text.forward_lstm, text.backward_lstm),
        input_gates(question.forward_lstm, question.backward_lstm, model.question_embedding.weight),
        recurrent_weights(question.forward_lstm, question.backward_lstm),
        pooling.state.weight,
        pooling.question.weight,
        pooling.score.weight,
        model.context.weight,
        model.question.weight,
        model.answer.weight,
        pooling.state.bias + pooling.question.bias,
        model.context.bias + model.question.bias,
        model.answer.bias,
    )


def _width_type(parameters: tuple[Tensor, ...]) -> Any:
    from diffmask.tasks.bilstm.lstm_kernel import width_type

    return width_type(parameters[1].shape[-1])


def _pair_weights(parameters: tuple[Tensor, ...]) -> Any:
    """Return the parameters as the kernel's `PairWeights`."""
    from diffmask.tasks.bilstm.pair_kernel import BiLSTMWeights, Linear, PairWeights

    def linear(weight: Tensor) -> Linear:
        return Linear(*as_arrays(weight.contiguous(), weight.transpose(-1, -2).contiguous()))

    def lstm(inputs: Tensor, recurrent: Tensor) -> BiLSTMWeights:
        (by_direction,) = as_arrays(inputs.view(len(inputs), 2, -1))
        return BiLSTMWeights(by_direction, linear(recurrent))

    text, text_recurrent, question, question_recurrent, state, attention, score, *linears = parameters
    width = state.shape[0]
    return PairWeights(
        lstm(text, text_recurrent),
        lstm(question, question_recurrent),
        linear(state.view(width, 2, width).transpose(0, 1)),
        linear(attention),
        *as_arrays(score[0]),
        *map(linear, linears[:3]),
        *as_arrays(*linears[3:]),
    )


def _row_tensors(parameters: tuple[Tensor, ...], count: int) -> list[Tensor]:
    """Return uninitialised tensors of the fields of `RowActivations`."""
    width, classes = parameters[4].shape[0], len(parameters[-1])
    sizes = (2 * width, 2 * width, width, classes, width, width, classes)
    return [parameters[0].new_empty(count, size) for size in sizes]


class _PairLoss(torch.autograd.Function):
    """Mean cross-entropy as a function of all parameters, with gradients computed in the forward pass."""

    @staticmethod
    def forward(ctx: Any, target: Tensor, texts: list[Tensor], *parameters: Tensor) -> Tensor:
        from diffmask.tasks.bilstm import pair_kernel
        from diffmask.tasks.bilstm.pair_kernel import PairGradients, PairInputs, RowActivations

        width, rows = parameters[4].shape[0], _row_tensors(parameters, len(target))
        recurrent = (2, width, 4 * width)
        shapes = (parameters[0].shape, recurrent, parameters[2].shape, recurrent, (2, width, width), (width,))
        gradients = [parameters[0].new_zeros(shape) for shape in shapes]
        by_direction = [value.view(len(value), 2, -1) if value.dim() == 2 else value for value in gradients]
        pair_kernel.pair_forward_backward(
            _pair_weights(parameters),
            PairInputs(*as_arrays(*texts)),
            *as_arrays(target),
            RowActivations(*as_arrays(*rows)),
            PairGradients(*as_arrays(*by_direction)),
            _width_type(parameters),
        )
        question, context, combined, logits, d_attention, d_combined, d_logits = rows
        text, text_recurrent, asked, asked_recurrent, state, score = gradients
        # In the order of `_parameters`.
        ctx.save_for_backward(
            *(text, text_recurrent.transpose(1, 2), asked, asked_recurrent.transpose(1, 2)),
            *(state.transpose(0, 1).flatten(1), d_attention.T @ question, score[None]),
            *(d_combined.T @ context, d_combined.T @ question, d_logits.T @ combined),
            *(value.sum(dim=0) for value in (d_attention, d_combined, d_logits)),
        )
        return cross_entropy(logits, target)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return None, None, *(gradient * value for value in ctx.saved_tensors)
