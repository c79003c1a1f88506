"""Bidirectional LSTMs that pool by attention, over one text or a text and a question. Madsen et al. 2022, section 5.

No dropout; padding, [CLS] and [EOS] are never attended to.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from diffmask.datasets.tokenizers import PAD
from diffmask.tasks.bilstm.lstm import bidirectional_states, kernel_supported
from diffmask.tasks.bilstm.pair_loss import Given, pair_logits, pair_loss

Tokens = Int[Tensor, "row token"]
Mask = Bool[Tensor, "row token"]
States = Float[Tensor, "row token width"]
Vectors = Float[Tensor, "word size"]


def embedding_from(vectors: Vectors) -> nn.Embedding:
    """An embedding of its own that begins with these vectors, padding's at zero."""
    begun = vectors.clone()
    begun[PAD] = 0.0
    return nn.Embedding.from_pretrained(begun, freeze=False, padding_idx=PAD)


class BiLSTMEncoder(nn.Module):
    """One layer of LSTM in each direction, `width` each."""

    def __init__(self, size: int, width: int) -> None:
        super().__init__()
        self.forward_lstm = nn.LSTM(size, width, batch_first=True)
        self.backward_lstm = nn.LSTM(size, width, batch_first=True)

    def forward(self, embedding: nn.Embedding, tokens: Tokens, present: Mask) -> States:
        """The states at every token."""
        return bidirectional_states(self.forward_lstm, self.backward_lstm, embedding(tokens), present.sum(dim=1))

    def ends(self, states: States, present: Mask) -> Float[Tensor, "row width"]:
        """The last state of each direction, side by side."""
        width, row = self.forward_lstm.hidden_size, torch.arange(len(present), device=present.device)
        last = states[row, present.sum(dim=1) - 1]
        return torch.cat([last[:, :width], states[:, 0, width:]], dim=-1)


class AttentionPooling(nn.Module):
    """alpha = softmax(w' tanh(W v_t + b [+ U q])) over tokens that may be attended to; the mean of v_t under it."""

    def __init__(self, width: int, asked: bool) -> None:
        super().__init__()
        self.state = nn.Linear(2 * width, width)
        self.question = nn.Linear(2 * width, width) if asked else None
        self.score = nn.Linear(width, 1, bias=False)
        self.weights = nn.Identity()

    def forward(
        self, states: States, attended: Mask, question: Float[Tensor, "row width"] | None
    ) -> Float[Tensor, "row width"]:
        """The pooled state; a text without words is a mean of nothing, zero."""
        hidden = self.state(states)
        if self.question is not None and question is not None:
            hidden = hidden + self.question(question)[:, None]
        score = self.score(hidden.tanh()).squeeze(-1).masked_fill(~attended, torch.finfo(states.dtype).min)
        weights = self.weights(score.softmax(dim=1) * attended)
        return (weights[:, None] @ states).squeeze(1)


class Classifier(nn.Module):
    """A model of words, as it is trained and asked where nobody edits it."""

    def loss(self, given: Given, target: Int[Tensor, " row"]) -> Float[Tensor, ""]:
        """Mean cross-entropy of the answers to what `forward` takes."""
        return cross_entropy(self(**given), target)

    def inference_logits(self, given: Given) -> Float[Tensor, "row class"]:
        """The logits of the classes."""
        return self(**given)


class SingleBiLSTM(Classifier):
    """logits = A c, c the pooled states of the text."""

    def __init__(self, embedding: Vectors, width: int, classes: int) -> None:
        super().__init__()
        self.embedding = embedding_from(embedding)
        self.encoder = BiLSTMEncoder(embedding.shape[1], width)
        self.states = nn.Identity()
        self.pooling = AttentionPooling(width, asked=False)
        self.answer = nn.Linear(2 * width, classes)

    def forward(self, tokens: Tokens, present: Mask, attended: Mask) -> Float[Tensor, "row class"]:
        """The logits of the classes."""
        states = self.states(self.encoder(self.embedding, tokens, present))
        return self.answer(self.pooling(states, attended, None))


class PairBiLSTM(Classifier):
    """logits = F tanh(A c + B q): c the pooled states of the text, q the last states of the question."""

    def __init__(self, embedding: Vectors, width: int, classes: int) -> None:
        super().__init__()
        self.embedding = embedding_from(embedding)
        self.encoder = BiLSTMEncoder(embedding.shape[1], width)
        self.question_embedding = embedding_from(embedding)
        self.question_encoder = BiLSTMEncoder(embedding.shape[1], width)
        self.states = nn.Identity()
        self.pooling = AttentionPooling(width, asked=True)
        self.pooled, self.asked = nn.Linear(2 * width, width), nn.Linear(2 * width, width)
        self.answer = nn.Linear(width, classes)

    def forward(
        self,
        tokens: Tokens,
        present: Mask,
        attended: Mask,
        pair: Int[Tensor, "row word"],
        pair_present: Bool[Tensor, "row word"],
    ) -> Float[Tensor, "row class"]:
        """The logits of the classes."""
        asked = self.question_encoder(self.question_embedding, pair, pair_present)
        question = self.question_encoder.ends(asked, pair_present)
        states = self.states(self.encoder(self.embedding, tokens, present))
        context = self.pooling(states, attended, question)
        return self.answer((self.pooled(context) + self.asked(question)).tanh())

    def loss(self, given: Given, target: Int[Tensor, " row"]) -> Float[Tensor, ""]:
        """Of a small model, by a kernel that reads real tokens only."""
        return pair_loss(self, given, target) if self._compiles() else super().loss(given, target)

    def inference_logits(self, given: Given) -> Float[Tensor, "row class"]:
        """Of a small model, by the same kernel: without sites, and without slopes."""
        return pair_logits(self, given) if self._compiles() else super().inference_logits(given)

    def _compiles(self) -> bool:
        return kernel_supported(self.encoder.forward_lstm, self.embedding.weight)
