"""NRMS, a neural news recommender with multi-head self-attention. Wu et al. 2019.

A title's words are encoded by a Hugging Face encoder or by word vectors, mixed by self-attention (or by a convolution,
as in NAML, Wu et al. 2019b) and pooled to one vector. The same is done with the titles that a user has read. The score
of a candidate is the dot product of its vector and the user's.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from diffmask.errors import ConfigError

TitleTokens = Int[Tensor, "title token"]
TitleMask = Bool[Tensor, "title token"]
WordStates = Float[Tensor, "title token width"]


@dataclass(frozen=True)
class Slots:
    """Which titles are the candidates and the history of each impression."""

    candidates: Int[Tensor, "row candidate"]
    """Index of each candidate's title."""
    offered: Bool[Tensor, "row candidate"]
    """False for padding of impressions with fewer candidates."""
    history: Int[Tensor, "row read"]
    read: Bool[Tensor, "row read"]

    @staticmethod
    def of(candidates: Sequence[Sequence[int]], history: Sequence[Sequence[int]]) -> "Slots":
        """Pad lists of title indices, one of candidates and one of read titles per impression."""
        return Slots(*_pad(candidates), *_pad(history))


def _pad(rows: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    width = max(1, max((len(row) for row in rows), default=1))
    padded = torch.tensor([[*row, *[0] * (width - len(row))] for row in rows], dtype=torch.long)
    return padded, torch.arange(width)[None] < torch.tensor([[len(row)] for row in rows])


@dataclass(frozen=True, kw_only=True)
class NRMSConfig:
    """Size and kind of the layers."""

    words: Literal["self-attention", "convolution"] = "self-attention"
    """How the words of a title are mixed: NRMS, or NAML's convolution over three words."""
    width: int = 64
    """Width of word vectors that are trained from scratch; an encoder has its own."""
    heads: int = 16
    """Attention heads; must divide the width."""
    query_width: int = 200
    """Hidden width of the additive attention."""
    dropout: float = 0.2
    max_history: int = 50
    """Titles of the history that are read, the latest ones."""
    max_tokens: int = 50
    """Tokens per title, special ones included."""

    def __post_init__(self) -> None:
        smallest = min(self.width, self.heads, self.query_width, self.max_history, self.max_tokens - 2)
        if smallest < 1 or not 0 <= self.dropout < 1:
            raise ConfigError(f"nrms: sizes must be at least 1, max_tokens 3, dropout in [0, 1); found {self}")


class SelfAttention(nn.Module):
    """Multi-head self-attention with scaled dot products. A row without any present entry attends to nothing."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        if width % heads:
            raise ConfigError(f"nrms: {heads} heads do not divide a width of {width}; set heads to a divisor")
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(
        self, states: Float[Tensor, "row entry width"], present: Bool[Tensor, "row entry"]
    ) -> Float[Tensor, "row entry width"]:
        """Mix the present entries of each row."""
        query, key, value = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(states).chunk(3, dim=-1)
        )
        scores = query @ key.transpose(2, 3) / math.sqrt(key.shape[-1])
        weights = self.dropout(masked_softmax(scores, present[:, None, None]))
        return self.out((weights @ value).transpose(1, 2).flatten(start_dim=2))


class Convolution(nn.Module):
    """Convolution over three neighbouring words, as in NAML."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.filters = nn.Conv1d(width, width, kernel_size=3, padding=1)

    def forward(self, states: WordStates, present: TitleMask) -> WordStates:
        """Mix neighbouring words; absent ones count as zeros."""
        visible = states * present[..., None]
        return torch.relu(self.filters(visible.transpose(1, 2)).transpose(1, 2))


class AdditiveAttention(nn.Module):
    """a = softmax(v' tanh(W h + b)); the output is the mean of the states with these weights."""

    def __init__(self, width: int, query_width: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(width, query_width)
        self.query = nn.Linear(query_width, 1, bias=False)

    def weights(
        self, states: Float[Tensor, "row entry width"], present: Bool[Tensor, "row entry"]
    ) -> Float[Tensor, "row entry"]:
        """Return the attention weights; zeros for a row without any present entry."""
        return masked_softmax(self.query(torch.tanh(self.hidden(states))).squeeze(-1), present)

    def forward(
        self, states: Float[Tensor, "row entry width"], present: Bool[Tensor, "row entry"]
    ) -> Float[Tensor, "row width"]:
        """Pool the present entries of each row."""
        return (self.weights(states, present)[:, None] @ states).squeeze(1)


def masked_softmax(scores: Tensor, present: Tensor) -> Tensor:
    """Return the softmax over the present entries of the last axis; zeros if there are none.

    >>> masked_softmax(torch.tensor([[0.0, 0.0, 5.0], [1, 1, 1]]), torch.tensor([[True, True, False], [False] * 3]))
    tensor([[0.5000, 0.5000, 0.0000],
            [0.0000, 0.0000, 0.0000]])
    """
    finite = scores.masked_fill(~present, torch.finfo(scores.dtype).min)
    return finite.softmax(dim=-1) * present


class NRMS(nn.Module):
    """Scores of candidates for users.

    Sites of explanations are modules: the embedding and the blocks of the encoder, `word_mixer`, and `match`, an
    identity whose state joins each word with the vector that its title is multiplied with.
    """

    encoder: Any
    """Hugging Face encoder, or an `nn.Embedding` of words."""
    score_deviation: Tensor
    """Standard deviation of the scores of validation candidates: the unit of explained scores."""

    def __init__(self, config: NRMSConfig, encoder: nn.Module) -> None:
        super().__init__()
        self.config = config
        self.encoder = encoder
        width = int(encoder.embedding_dim if isinstance(encoder, nn.Embedding) else self.encoder.config.hidden_size)
        attention = config.words == "self-attention"
        self.word_mixer = SelfAttention(width, config.heads, config.dropout) if attention else Convolution(width)
        self.word_attention = AdditiveAttention(width, config.query_width)
        self.history_mixer = SelfAttention(width, config.heads, config.dropout)
        self.history_attention = AdditiveAttention(width, config.query_width)
        self.dropout = nn.Dropout(config.dropout)
        self.match = nn.Identity()
        self.register_buffer("score_deviation", torch.tensor(1.0))

    @property
    def embedding(self) -> nn.Embedding:
        """Embedding of the tokens."""
        return self.encoder if isinstance(self.encoder, nn.Embedding) else self.encoder.get_input_embeddings()

    def word_states(self, tokens: TitleTokens, present: TitleMask) -> WordStates:
        """Encode the words of every title."""
        if isinstance(self.encoder, nn.Embedding):
            states = self.dropout(self.encoder(tokens))
        else:
            states = self.encoder(input_ids=tokens, attention_mask=present.long()).last_hidden_state
        return self.word_mixer(states, present)

    def title_vectors(self, words: WordStates, present: TitleMask) -> Float[Tensor, "title width"]:
        """Pool the words of every title."""
        return self.dropout(self.word_attention(words, present))

    def user_vectors(self, titles: Float[Tensor, "title width"], slots: Slots) -> Float[Tensor, "row width"]:
        """Pool the titles that each user has read; zeros for an empty history."""
        read = self.history_mixer(titles[slots.history], slots.read)
        return self.dropout(self.history_attention(read, slots.read))

    def scores(self, titles: Float[Tensor, "title width"], slots: Slots) -> Float[Tensor, "row candidate"]:
        """Return <candidate, user>; the scores of padding have no meaning."""
        return (titles[slots.candidates] @ self.user_vectors(titles, slots)[..., None]).squeeze(-1)

    def encode(self, tokens: TitleTokens, present: TitleMask) -> Float[Tensor, "title width"]:
        """Return the vector of every title."""
        return self.title_vectors(self.word_states(tokens, present), present)

    def forward(
        self, tokens: TitleTokens, present: TitleMask, context: Float[Tensor, "other width"], slots: Slots
    ) -> Float[Tensor, "row candidate"]:
        """Score the candidates of every impression.

        Titles that are not explained may be given as vectors, in `context`; `slots` counts them after the others. The
        words of the others pass through `match`, whose state is [w; w * g]: w is a word after `word_mixer` and g the
        gradient of the first candidate's log-odds that its title meets, the user's vector for words of candidates and,
        for words that were read, the first candidate's vector minus the average of the others. Without it no state of
        a title would depend on the user, and no probe could know which of its words matter to whom.
        """
        words = self.word_states(tokens, present)
        guides = self._guides(torch.cat([self.title_vectors(words, present), context]), slots)[: len(words)]
        state = self.match(torch.cat([words, words * guides[:, None]], dim=-1))
        titles = self.title_vectors(state[..., : words.shape[-1]], present)
        return self.scores(torch.cat([titles, context]), slots)

    def _guides(self, titles: Float[Tensor, "title width"], slots: Slots) -> Float[Tensor, "title width"]:
        users = self.user_vectors(titles, slots)
        offered = titles[slots.candidates]
        others = slots.offered.clone()
        others[:, 0] = False
        weights = masked_softmax((offered @ users[..., None]).squeeze(-1), others)
        direction = offered[:, 0] - (weights[:, None] @ offered).squeeze(1)
        guides = torch.zeros_like(titles)
        guides = guides.index_put((slots.candidates[slots.offered],), _spread(users, slots.offered))
        return guides.index_put((slots.history[slots.read],), _spread(direction, slots.read))


def _spread(vectors: Float[Tensor, "row width"], present: Bool[Tensor, "row entry"]) -> Float[Tensor, "title width"]:
    """Repeat the vector of each row for its present entries."""
    return vectors[:, None].expand(-1, present.shape[1], -1)[present]
