"""A SetFit classifier as one module: a sentence encoder and the linear head on its embedding."""

from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from diffmask.errors import InputError


class EmbeddingClassifier(nn.Module):
    """logits = W e(text) + b, where e is the embedding of a sentence-transformers model, as SetFit computes it."""

    def __init__(self, body: Any, head: nn.Linear, config: Any, *, normalised: bool) -> None:
        super().__init__()
        self.body, self.head, self.config, self.normalised = body, head, config, normalised

    @classmethod
    def of_setfit(cls, model: Any) -> "EmbeddingClassifier":
        """Return the module of a `SetFitModel` whose head is SetFit's own or scikit-learn's logistic regression."""
        head = _linear(getattr(model, "model_head", None))
        body = model.model_body
        config = deepcopy(_encoder(body).config)
        labels = list(model.labels or range(head.out_features))
        config.id2label = {index: str(label) for index, label in enumerate(labels)}
        config.label2id = {label: index for index, label in config.id2label.items()}
        config.problem_type = "single_label_classification"
        return cls(body, head, config, normalised=bool(model.normalize_embeddings))

    def get_input_embeddings(self) -> Any:
        """Return the token embedding of the encoder."""
        return _encoder(self.body).get_input_embeddings()

    def forward(self, input_ids: Tensor, attention_mask: Tensor, **inputs: Tensor) -> Any:
        """Return an output with `logits`, as the classifiers of `transformers` do."""
        from transformers.modeling_outputs import SequenceClassifierOutput

        features = self.body({"input_ids": input_ids, "attention_mask": attention_mask, **inputs})
        embedding = features["sentence_embedding"]
        return SequenceClassifierOutput(logits=self.head(normalize(embedding) if self.normalised else embedding))


def _encoder(body: Any) -> Any:
    """Return the transformer inside a sentence-transformers model."""
    from transformers import PreTrainedModel

    return next(module for module in body.modules() if isinstance(module, PreTrainedModel))


def _linear(head: Any) -> nn.Linear:
    """Return a head as one linear layer whose softmax gives the head's probabilities."""
    if isinstance(getattr(head, "linear", None), nn.Linear) and not getattr(head, "multitarget", False):
        layer, scale = head.linear, 1 / (head.temperature + head.eps)
        weight, bias = layer.weight.detach(), layer.bias
        offset = torch.zeros(len(weight)) if bias is None else bias.detach()
        # One output is a probability by the sigmoid: the softmax of 0 and the logit is the same.
        return _layer(weight * scale, offset * scale)
    if type(head).__name__ == "LogisticRegression" and hasattr(head, "coef_"):
        return _layer(torch.as_tensor(head.coef_), torch.as_tensor(head.intercept_))
    raise InputError(
        f"the head of this SetFitModel is {type(head).__name__}; one linear layer for one class per text is explained. "
        "Train it without multi_target_strategy, or write a Task around it (docs/howto/own_task.md)"
    )


def _layer(weight: Tensor, bias: Tensor) -> nn.Linear:
    if len(weight) == 1:
        weight, bias = torch.cat([torch.zeros_like(weight), weight]), torch.cat([torch.zeros_like(bias), bias])
    layer = nn.Linear(weight.shape[1], weight.shape[0])
    with torch.no_grad():
        layer.weight.copy_(weight)
        layer.bias.copy_(bias)
    return layer
