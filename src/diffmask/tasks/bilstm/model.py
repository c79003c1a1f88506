"""Bidirectional LSTMs with attention pooling, over one text or a text and a question. Madsen et al. 2022, section 5.

There is no dropout; padding, [CLS] and [EOS] receive no attention.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from diffmask.datasets.tokenizers import PAD
from diffmask.tasks.bilstm.lstm import bidirectional_states, kernel_supported
from diffmask.tasks.bilstm.pair_loss import ModelInputs, pair_logits, pair_loss

Tokens = Int[Tensor, "row token"]
Mask = Bool[Tensor, "row token"]
States = Float[Tensor, "row token width"]
Vectors = Float[Tensor, "word size"]


def embedding_from(vectors: Vectors) -> nn.Embedding:
    """Return a trainable embedding that starts from these vectors, with zeros for padding."""
    initial = vectors.clone()
    initial[PAD] = 0.0
    return nn.Embedding.from_pretrained(initial, freeze=False, padding_idx=PAD)


class BiLSTMEncoder(nn.Module):
    """One LSTM layer per direction, each `width` wide."""

    def __init__(self, size: int, width: int) -> None:
        super().__init__()
        self.forward_lstm = nn.LSTM(size, width, batch_first=True)
        self.backward_lstm = nn.LSTM(size, width, batch_first=True)

    def forward(self, embedding: nn.Embedding, tokens: Tokens, present: Mask) -> States:
        """Return the state at every token."""
        return bidirectional_states(self.forward_lstm, self.backward_lstm, embedding(tokens), present.sum(dim=1))

    def last_states(self, states: States, present: Mask) -> Float[Tensor, "row width"]:
        """Return the last state of each direction, concatenated."""
        width, row = self.forward_lstm.hidden_size, torch.arange(len(present), device=present.device)
        last = states[row, present.sum(dim=1) - 1]
        return torch.cat([last[:, :width], states[:, 0, width:]], dim=-1)


class AttentionPooling(nn.Module):
    """Mean of the states v_t under alpha = softmax(w' tanh(W v_t + b [+ U q])) over the attended tokens."""

    def __init__(self, width: int, has_question: bool) -> None:
        super().__init__()
        self.state = nn.Linear(2 * width, width)
        self.question = nn.Linear(2 * width, width) if has_question else None
        self.score = nn.Linear(width, 1, bias=False)
        self.weights = nn.Identity()

    def forward(
        self, states: States, attended: Mask, question: Float[Tensor, "row width"] | None
    ) -> Float[Tensor, "row width"]:
        """Return the pooled state; zero for a text without attended tokens."""
        hidden = self.state(states)
        if self.question is not None and question is not None:
            hidden = hidden + self.question(question)[:, None]
        score = self.score(hidden.tanh()).squeeze(-1).masked_fill(~attended, torch.finfo(states.dtype).min)
        weights = self.weights(score.softmax(dim=1) * attended)
        return (weights[:, None] @ states).squeeze(1)


class BiLSTMModel(nn.Module):
    """Classifier with a training loss and with logits for inference, which a subclass may compute faster."""

    def loss(self, inputs: ModelInputs, target: Int[Tensor, " row"]) -> Float[Tensor, ""]:
        """Return the mean cross-entropy."""
        return cross_entropy(self(**inputs), target)

    def inference_logits(self, inputs: ModelInputs) -> Float[Tensor, "row class"]:
        """Return the logits of the classes."""
        return self(**inputs)


class SingleBiLSTM(BiLSTMModel):
    """logits = A c, where c is the pooled state of the text."""

    def __init__(self, embedding: Vectors, width: int, classes: int) -> None:
        super().__init__()
        self.embedding = embedding_from(embedding)
        self.encoder = BiLSTMEncoder(embedding.shape[1], width)
        self.states = nn.Identity()
        self.pooling = AttentionPooling(width, has_question=False)
        self.answer = nn.Linear(2 * width, classes)

    def forward(self, tokens: Tokens, present: Mask, attended: Mask) -> Float[Tensor, "row class"]:
        """Return the logits of the classes."""
        states = self.states(self.encoder(self.embedding, tokens, present))
        return self.answer(self.pooling(states, attended, None))


class PairBiLSTM(BiLSTMModel):
    """logits = F tanh(A c + B q), where c is the pooled state of the text and q the last states of the question."""

    def __init__(self, embedding: Vectors, width: int, classes: int) -> None:
        super().__init__()
        self.embedding = embedding_from(embedding)
        self.encoder = BiLSTMEncoder(embedding.shape[1], width)
        self.question_embedding = embedding_from(embedding)
        self.question_encoder = BiLSTMEncoder(embedding.shape[1], width)
        self.states = nn.Identity()
        self.pooling = AttentionPooling(width, has_question=True)
        self.context, self.question = nn.Linear(2 * width, width), nn.Linear(2 * width, width)
        self.answer = nn.Linear(width, classes)

    def forward(
        self,
        tokens: Tokens,
        present: Mask,
        attended: Mask,
        pair: Int[Tensor, "row word"],
        pair_present: Bool[Tensor, "row word"],
    ) -> Float[Tensor, "row class"]:
        """Return the logits of the classes."""
        question_states = self.question_encoder(self.question_embedding, pair, pair_present)
        question = self.question_encoder.last_states(question_states, pair_present)
        states = self.states(self.encoder(self.embedding, tokens, present))
        context = self.pooling(states, attended, question)
        return self.answer((self.context(context) + self.question(question)).tanh())

    def loss(self, inputs: ModelInputs, target: Int[Tensor, " row"]) -> Float[Tensor, ""]:
        """Return the mean cross-entropy, for a small model by the compiled kernel."""
        return pair_loss(self, inputs, target) if self._has_kernel() else super().loss(inputs, target)

    def inference_logits(self, inputs: ModelInputs) -> Float[Tensor, "row class"]:
        """Return the logits, for a small model by the compiled kernel, which has no sites and no gradients."""
        return pair_logits(self, inputs) if self._has_kernel() else super().inference_logits(inputs)

    def _has_kernel(self) -> bool:
        return kernel_supported(self.encoder.forward_lstm, self.embedding.weight)
