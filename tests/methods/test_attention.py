"""Attention and attention rollout, computed by hand."""

from collections.abc import Sequence

import pytest
import torch
from jaxtyping import Float
from torch import Tensor

from diffmask.core.batch import Batch
from diffmask.errors import ConfigError, InputError, TaskError
from diffmask.methods.attention import Attention, AttentionRollout
from diffmask.tasks.classification import TextClassification
from diffmask.tasks.toy import CountingTask
from support.linear import LinearTask
from support.tiny_models import tiny_model, word_pieces
from support.transformer import TransformerTask


class GivenAttention(LinearTask):
    """One text of two tokens, whose attention weights are given."""

    def __init__(self, weights: Sequence[object]) -> None:
        super().__init__([[1, 2]])
        self.weights = torch.tensor(weights)[None]

    def attentions(self, batch: Batch) -> Float[Tensor, "row layer head query key"]:
        return self.weights


TWO_HEADS = [[[[0.5, 0.5], [0.25, 0.75]], [[1.0, 0.0], [0.25, 0.75]]]]
TWO_LAYERS = [[[[0.5, 0.5], [0.0, 1.0]]], [[[0.25, 0.75], [1.0, 0.0]]]]


def test_attention_is_the_mean_over_heads_and_queries() -> None:
    task = GivenAttention(TWO_HEADS)
    attribution = Attention().fit(task)(task.data["test"])
    torch.testing.assert_close(attribution.scores, torch.tensor([[0.5, 0.5]]))
    largest = Attention(heads="max").fit(task)(task.data["test"])
    torch.testing.assert_close(largest.scores, torch.tensor([[(1.0 + 0.25) / 2, (0.5 + 0.75) / 2]]))


def test_attention_is_seen_from_every_layer() -> None:
    task = GivenAttention(TWO_LAYERS)
    attribution = Attention().fit(task)(task.data["test"])
    assert attribution.by_layer is not None
    torch.testing.assert_close(attribution.by_layer, torch.tensor([[[0.25, 0.75], [0.625, 0.375]]]))
    torch.testing.assert_close(attribution.scores, attribution.by_layer.mean(dim=1))
    assert attribution.layers == ("attention 0", "attention 1")


def test_a_model_that_pools_by_attention_has_one_query() -> None:
    task = GivenAttention([[[[0.2, 0.8]]]])
    torch.testing.assert_close(Attention().fit(task)(task.data["test"]).scores, torch.tensor([[0.2, 0.8]]))
    with pytest.raises(TaskError, match="only self-attention can be rolled out"):
        AttentionRollout().fit(task)


def test_rollout_multiplies_the_layers_with_their_residuals() -> None:
    task = GivenAttention(TWO_LAYERS)
    # (A_1 + I) / 2 = [[.75, .25], [0, 1]]; (A_2 + I) / 2 = [[.625, .375], [.5, .5]].
    product = torch.tensor([[0.625 * 0.75, 0.625 * 0.25 + 0.375], [0.5 * 0.75, 0.5 * 0.25 + 0.5]])
    attribution = AttentionRollout().fit(task)(task.data["test"])
    torch.testing.assert_close(attribution.scores[0], product.mean(dim=0))
    assert attribution.by_layer is not None
    torch.testing.assert_close(attribution.by_layer[0, 0], torch.tensor([0.375, 0.625]))
    first = AttentionRollout(query=0).fit(task)(task.data["test"])
    torch.testing.assert_close(first.scores[0], product[0])
    bare = AttentionRollout(residual=0.0, query=0).fit(task)(task.data["test"])
    torch.testing.assert_close(bare.scores[0], torch.tensor([0.125, 0.875]))


def test_attention_over_a_text_sums_to_one() -> None:
    task = TransformerTask()
    batch = task.data["test"]
    for method in (Attention(), AttentionRollout()):
        scores = method.fit(task).explain(batch.trim(), batch.target).scores
        torch.testing.assert_close(scores.sum(dim=1), torch.ones(len(batch), dtype=torch.float64))
        assert (scores[~batch.trim().present] == 0).all()


def test_the_error_for_a_task_without_attention_names_the_option(toy_task: CountingTask) -> None:
    for method in (Attention(), AttentionRollout()):
        with pytest.raises(TaskError, match='attn_implementation="eager"'):
            method.fit(toy_task)


def test_weights_of_the_wrong_shape_are_refused() -> None:
    with pytest.raises(InputError, match=r"returned \(1, 1, 1, 1, 3\) for \(1, 2\) tokens"):
        Attention().fit(GivenAttention([[[[0.2, 0.4, 0.4]]]]))
    with pytest.raises(ConfigError, match="residual must be at least 0 and below 1"):
        AttentionRollout(residual=1.0)


@pytest.mark.parametrize("method", [Attention(), AttentionRollout()], ids=["attention", "rollout"])
def test_no_hook_stays_on_the_model(method: Attention | AttentionRollout) -> None:
    # Transformers captures attention weights with hooks of its own on the model's blocks.
    model = tiny_model("bert")
    task = TextClassification(model, word_pieces(), train=[{"text": "the film is good", "label": 0}])

    def hooks() -> list[tuple[str, int, int]]:
        return [
            (name, len(module._forward_hooks), len(module._forward_pre_hooks)) for name, module in model.named_modules()
        ]

    before, implementation = hooks(), model.config._attn_implementation
    method.fit(task)(task.data["train"])
    assert hooks() == before
    assert model.config._attn_implementation == implementation
