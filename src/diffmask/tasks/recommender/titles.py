"""Impressions as rows of a batch, and rows as grids of titles for the model.

The tokens of a row are those of its explained titles, one after another: the explained candidate, the titles that the
user has read, or both. `token_inputs["title"]` counts them from 1. The other titles of the impression are in
`inputs["context"]`. `inputs["candidates"]` and `inputs["history"]` refer to explained titles by positive numbers and to
context titles by negative ones; 0 is padding. The explained candidate comes first, so that class 0 of the answer is it.
"""

import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from diffmask.core.batch import Batch
from diffmask.core.hooks import Edit
from diffmask.datasets.mind import Impression
from diffmask.datasets.tables import Example
from diffmask.errors import InputWarning
from diffmask.tasks.recommender.nrms import Slots
from diffmask.tasks.text.encoding import TextEncoder

Explained = Literal["candidate", "history", "both"]
"""Titles of an impression whose words are explained."""
ABSENT = -1
"""Token of padding in `inputs["context"]`."""


@dataclass(frozen=True)
class ExplainedCandidate:
    """One row: an impression and the candidate that is explained."""

    impression: Impression
    candidate: int

    def titles(self, explained: Explained, max_history: int) -> tuple[str, ...]:
        """Return the explained titles in the order of the row's tokens."""
        read = self.read(max_history)
        chosen = self.impression.candidates[self.candidate].title
        return {"candidate": (chosen,), "history": read, "both": (chosen, *read)}[explained]

    def read(self, max_history: int) -> tuple[str, ...]:
        """Return the latest titles of the history."""
        return self.impression.history[-max_history:]

    def order(self) -> list[int]:
        """Return the candidates with the explained one first."""
        others = [index for index in range(len(self.impression.candidates)) if index != self.candidate]
        return [self.candidate, *others]


class TitleTable:
    """Encoded titles; each title is tokenized once."""

    def __init__(self, text_encoder: TextEncoder) -> None:
        self.text_encoder = text_encoder
        self.encodings: dict[str, Any] = {}
        self._rows: dict[str, Batch] = {}

    def add(self, titles: Iterable[str]) -> None:
        """Tokenize titles that are not in the table yet."""
        new = [title for title in dict.fromkeys(titles) if title not in self.encodings]
        if not new:
            return
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", InputWarning)
            _, encodings = self.text_encoder.encode([Example(title) for title in new])
        if caught:
            limit = self.text_encoder.config.max_tokens
            message = f"some titles have more than {limit} tokens: their ends are not read; NRMSConfig(max_tokens=...)"
            warnings.warn(message, InputWarning, stacklevel=2)
        batch = self.text_encoder.batch(encodings, torch.zeros(len(new)), torch.device("cpu"))
        lengths = batch.present.sum(dim=1).tolist()
        for index, (title, encoding, length) in enumerate(zip(new, encodings, lengths, strict=True)):
            self.encodings[title] = encoding
            row = batch[index : index + 1]
            self._rows[title] = Batch(
                tokens=row.tokens[:, :length],
                present=row.present[:, :length],
                maskable=row.maskable[:, :length],
                target=row.target,
            )

    def tokens(self, title: str) -> list[int]:
        """Return the token ids of a title, special ones included."""
        return self._rows[title].tokens[0].tolist()

    def maskable(self, title: str) -> list[bool]:
        """Return which tokens of a title may be masked."""
        return self._rows[title].maskable[0].tolist()

    def grid(self, titles: Sequence[str], pad: int) -> Batch:
        """Return titles as the rows of a batch, for training."""
        tokens = _pad([self.tokens(title) for title in titles], pad)
        lengths = torch.tensor([[len(self.tokens(title))] for title in titles])
        maskable = _pad([self.maskable(title) for title in titles], False).bool()
        present = torch.arange(tokens.shape[1])[None] < lengths
        return Batch(tokens=tokens, present=present, maskable=maskable, target=torch.zeros(len(titles)))


def encode_rows(
    rows: Sequence[ExplainedCandidate], table: TitleTable, explained: Explained, max_history: int, pad: int
) -> Batch:
    """Return the batch of some rows; its target is the first clicked candidate, or the explained one."""
    offered = (candidate.title for row in rows for candidate in row.impression.candidates)
    table.add([*(title for row in rows for title in row.read(max_history)), *offered])
    parts = [_Row.of(row, explained, max_history) for row in rows]
    tokens = [[token for title in part.titles for token in table.tokens(title)] for part in parts]
    numbers = [
        [number for number, title in enumerate(part.titles, start=1) for _ in table.tokens(title)] for part in parts
    ]
    maskable = [[mark for title in part.titles for mark in table.maskable(title)] for part in parts]
    lengths = torch.tensor([[len(row)] for row in tokens])
    padded = _pad(tokens, pad)
    return Batch(
        tokens=padded,
        present=torch.arange(padded.shape[1])[None] < lengths,
        maskable=_pad(maskable, False).bool(),
        target=torch.tensor([_target(row) for row in rows]),
        inputs={
            "candidates": _pad([part.candidates for part in parts], 0),
            "history": _pad([part.history for part in parts], 0),
            "context": _pad_context([[table.tokens(title) for title in part.context] for part in parts]),
        },
        token_inputs={"title": _pad(numbers, 0)},
    )


@dataclass(frozen=True)
class _Row:
    """Explained titles, context titles, and the numbers of candidates and history among both."""

    titles: tuple[str, ...]
    context: tuple[str, ...]
    candidates: list[int]
    history: list[int]

    @staticmethod
    def of(row: ExplainedCandidate, explained: Explained, max_history: int) -> "_Row":
        read = row.read(max_history)
        chosen, *others = (row.impression.candidates[index].title for index in row.order())
        titles = row.titles(explained, max_history)
        context = {"candidate": (*read, *others), "history": (chosen, *others), "both": tuple(others)}[explained]
        negative = [-number for number in range(1, len(context) + 1)]
        if explained == "candidate":
            return _Row(titles, context, [1, *negative[len(read) :]], negative[: len(read)])
        if explained == "history":
            return _Row(titles, context, negative, list(range(1, len(read) + 1)))
        return _Row(titles, context, [1, *negative], list(range(2, len(read) + 2)))


def _target(row: ExplainedCandidate) -> int:
    clicked = [place for place, index in enumerate(row.order()) if row.impression.candidates[index].clicked]
    return clicked[0] if clicked else 0


def _pad(rows: Sequence[Sequence[int]], filler: int) -> Tensor:
    width = max(1, max(len(row) for row in rows))
    return torch.tensor([[*row, *[filler] * (width - len(row))] for row in rows], dtype=torch.long)


def _pad_context(rows: Sequence[Sequence[Sequence[int]]]) -> Int[Tensor, "row slot token"]:
    width = max([1, *(len(tokens) for row in rows for tokens in row)])
    slots = max([1, *(len(row) for row in rows)])
    empty = [ABSENT] * width
    padded = [[[*tokens, *empty[len(tokens) :]] for tokens in row] + [empty] * (slots - len(row)) for row in rows]
    return torch.tensor(padded, dtype=torch.long)


@dataclass(frozen=True)
class TitleGrid:
    """The explained titles of a batch, one per line, and the place of every token of the batch in that grid."""

    line: Int[Tensor, "row token"]
    """Line of each token; meaningless for padding."""
    place: Int[Tensor, "row token"]
    """Position of each token in its title."""
    belongs: Bool[Tensor, "row token"]
    """False for padding."""
    first: Int[Tensor, " row"]
    """Line of each row's first title."""
    lines: int
    width: int

    @staticmethod
    def of(batch: Batch) -> "TitleGrid":
        """Find the place of every token; tokens may have been deleted from their titles."""
        number = batch.token_inputs["title"]
        belongs = number > 0
        counts = number.amax(dim=1)
        first = counts.cumsum(dim=0) - counts
        # Count tokens of the same title: sort by title, and subtract the position of the title's first token.
        ordered, order = number.sort(dim=1, stable=True)
        position = torch.arange(number.shape[1], device=number.device).expand_as(number)
        previous = torch.nn.functional.pad(ordered[:, :-1], (1, 0), value=-1)
        starts = torch.where(ordered != previous, position, 0).cummax(dim=1).values
        place = torch.empty_like(number).scatter(1, order, position - starts)
        width = int(place[belongs].max()) + 1 if belongs.any() else 1
        return TitleGrid(first[:, None] + number - 1, place, belongs, first, int(counts.sum()), width)

    def to_grid(self, values: Shaped[Tensor, "row token"], filler: Any) -> Shaped[Tensor, "line place"]:
        """Arrange one value per token as titles."""
        grid = values.new_full((self.lines, self.width), filler)
        return grid.index_put((self.line[self.belongs], self.place[self.belongs]), values[self.belongs])

    def to_rows(self, grid: Shaped[Tensor, "line place *rest"]) -> Shaped[Tensor, "row token *rest"]:
        """Arrange values of a grid as rows of tokens, with zeros at padding."""
        rows = grid.new_zeros(*self.line.shape, *grid.shape[2:])
        return rows.index_put((self.belongs,), grid[self.line[self.belongs], self.place[self.belongs]])

    def adapt_edit(self, edit: Edit) -> Edit:
        """Return the edit of rows as an edit of the grid; states outside all titles stay as they are."""

        def adapted(state: Float[Tensor, "line place width"]) -> Float[Tensor, "line place width"]:
            edited = edit(self.to_rows(state))
            return state.index_put((self.line[self.belongs], self.place[self.belongs]), edited[self.belongs])

        return adapted


def slots_of(batch: Batch, grid: TitleGrid, context_line: Int[Tensor, "row slot"], offset: int) -> Slots:
    """Return the lines of candidates and history; context titles are counted after the `offset` explained ones."""

    def lines(numbers: Int[Tensor, "row entry"]) -> Int[Tensor, "row entry"]:
        explained = grid.first[:, None] + numbers - 1
        context = offset + context_line.gather(1, (-numbers - 1).clamp(min=0))
        return torch.where(numbers > 0, explained, torch.where(numbers < 0, context, 0))

    candidates, history = batch.inputs["candidates"], batch.inputs["history"]
    return Slots(lines(candidates), candidates != 0, lines(history), history != 0)


class VectorCache:
    """Vectors of context titles, computed once for the present weights of the model."""

    def __init__(self, limit: int = 200_000) -> None:
        self.limit = limit
        self._weights: tuple[tuple[int, int], ...] = ()
        self._vectors: dict[tuple[int, ...], Tensor] = {}

    def look_up(
        self,
        context: Int[Tensor, "row slot token"],
        weights: tuple[tuple[int, int], ...],
        encode: Callable[[list[tuple[int, ...]]], Float[Tensor, "title width"]],
    ) -> tuple[Float[Tensor, "title width"], Int[Tensor, "row slot"]]:
        """Return the vectors of all titles in `context` and the index of each."""
        if weights != self._weights or len(self._vectors) > self.limit:
            self._weights, self._vectors = weights, {}
        titles = [tuple(token for token in line if token != ABSENT) for line in context.flatten(0, 1).tolist()]
        index = {title: number for number, title in enumerate(dict.fromkeys(titles))}
        new = [title for title in index if title and title not in self._vectors]
        if new:
            self._vectors.update(zip(new, encode(new), strict=True))
        width = next(iter(self._vectors.values())).shape if self._vectors else torch.Size([0])
        vectors = [self._vectors[title] if title else torch.zeros(width) for title in index]
        lines = torch.tensor([index[title] for title in titles]).view(context.shape[:2])
        return torch.stack(vectors), lines
