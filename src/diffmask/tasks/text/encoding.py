"""Marked characters as marked tokens, kept beside the tokens they belong to.

From texts to the rows of a batch: which tokens may be masked, and what happens to a text that is too long.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, Literal

import torch
from torch import Tensor

from diffmask.core.batch import Batch
from diffmask.datasets.eraser import RationaleExample
from diffmask.datasets.tables import Columns, Example
from diffmask.errors import InputError, InputWarning

EVIDENCE = "evidence"
"""Name of the marks among a batch's inputs a token; the model is not given them."""


def add_evidence(batch: Batch, examples: Sequence[Example], sources: Sequence[int], encodings: Sequence[Any]) -> Batch:
    """The batch with 1 at each token of the first text that shares a character with the evidence; 0 elsewhere.

    Where no example is marked the batch stays as it is.
    """
    if not any(isinstance(example, RationaleExample) for example in examples):
        return batch
    marks = torch.zeros(batch.tokens.shape)
    for row, (number, encoding) in enumerate(zip(sources, encodings, strict=True)):
        found = _marks(examples[number], encoding)
        marks[row, : len(found)] = torch.tensor(found)
    marks = marks.to(batch.tokens.device) * batch.maskable
    return replace(batch, token_inputs={**batch.token_inputs, EVIDENCE: marks})


def _marks(example: Example, encoding: Any) -> list[float]:
    if not isinstance(example, RationaleExample):
        return [0.0] * len(encoding.ids)
    inside = [0] * (len(example.text) + 1)
    for first, last in example.evidence:
        inside[first:last] = [1] * (last - first)
    so_far = list(accumulate(inside, initial=0))
    return [
        float(segment == 0 and so_far[last] > so_far[first])
        for (first, last), segment in zip(encoding.offsets, encoding.sequence_ids, strict=True)
    ]


@dataclass(frozen=True, kw_only=True)
class TextEncodingConfig(Columns):
    """How texts are read."""

    segments: Literal["both", "first", "second"] = "both"
    """Which text of a pair may be masked."""
    max_tokens: int | None = None
    """Longest row in tokens, special ones included; the model's own limit where none is given."""
    long: Literal["truncate", "stride"] = "truncate"
    """A text over the limit loses its end, with a warning, or becomes several rows that overlap."""
    overlap: int = 32
    """Tokens that two neighbouring rows of a long text share."""


@dataclass(frozen=True)
class EncodedBatch:
    """A batch with what leads from its rows and tokens back to the texts."""

    batch: Batch
    sources: list[int]
    """For each row the number of its text."""
    encodings: list[Any]
    """For each row its `tokenizers.Encoding`: offsets, words and segments of the tokens."""


@dataclass(frozen=True)
class TextEncoder:
    """A fast tokenizer with the choices of a `TextEncodingConfig`."""

    tokenizer: Any
    config: TextEncodingConfig
    limit: int | None
    """The model's own limit."""

    def __post_init__(self) -> None:
        if not self.tokenizer.is_fast:
            raise InputError(f"{type(self.tokenizer).__name__} knows no offsets; load the fast tokenizer of the model")
        if self.tokenizer.pad_token_id is None:
            raise InputError(
                "the tokenizer has no padding token; set one, for example tokenizer.pad_token = tokenizer.eos_token "
                "and model.config.pad_token_id = tokenizer.pad_token_id"
            )

    @property
    def longest(self) -> int | None:
        """The longest row, in tokens."""
        known = [size for size in (self.config.max_tokens, self.limit) if size is not None]
        return min(known) if known else None

    def encode(self, examples: Sequence[Example]) -> tuple[list[int], list[Any]]:
        """For each row the number of its text, and its encoding."""
        if not examples:
            raise InputError("there are no texts")
        pairs = [example.pair for example in examples]
        if any(pair is None for pair in pairs) != all(pair is None for pair in pairs):
            raise InputError("some rows are pairs and some are single texts; give one kind at a time")
        strides = self.config.long == "stride" and pairs[0] is None
        found = self.tokenizer(
            [example.text for example in examples],
            None if pairs[0] is None else pairs,
            truncation="longest_first" if self.longest else "do_not_truncate",
            max_length=self.longest,
            stride=self.config.overlap if strides else 0,
            return_overflowing_tokens=True,
        )
        rows = list(zip(found["overflow_to_sample_mapping"], found.encodings, strict=True))
        return _unzip(rows if strides else self._beginnings(rows, len(examples)))

    def _beginnings(self, rows: list[tuple[int, Any]], texts: int) -> list[tuple[int, Any]]:
        """The first row of each text, and a warning if there are others."""
        first = dict(reversed(rows))
        cut = len({number for number, encoding in rows if encoding.overflowing})
        if cut:
            warnings.warn(
                f"{cut} of {texts} texts have more than {self.longest} tokens: their ends are not read; "
                "with long='stride' they become several rows",
                InputWarning,
                stacklevel=5,
            )
        return sorted(first.items())

    def batch(self, encodings: Sequence[Any], target: Tensor, device: torch.device) -> Batch:
        """Rows padded on the right."""
        rows = [encoding.ids or [self._nothing] for encoding in encodings]
        lengths = torch.tensor([len(row) for row in rows])
        present = torch.arange(int(lengths.max()))[None] < lengths[:, None]
        types = [encoding.type_ids or [0] for encoding in encodings]
        wanted = "token_type_ids" in self.tokenizer.model_input_names
        return Batch(
            tokens=_padded(rows, self.tokenizer.pad_token_id),
            present=present,
            maskable=_padded([self._maskable(encoding) or [False] for encoding in encodings], False),
            target=target,
            token_inputs={"token_type_ids": _padded(types, 0)} if wanted else {},
        ).to(device)

    def _maskable(self, encoding: Any) -> list[bool]:
        """Tokens of the chosen segments that the text itself brought, special tokens typed into it excepted."""
        # An unknown word is a special token to the tokenizer, and a word to everybody else.
        special = set(self.tokenizer.all_special_ids) - {self.tokenizer.unk_token_id}
        wanted = {"both": (0, 1), "first": (0,), "second": (1,)}[self.config.segments]
        return [
            segment in wanted and token not in special
            for token, segment in zip(encoding.ids, encoding.sequence_ids, strict=True)
        ]

    @property
    def _nothing(self) -> int:
        """The one token of a row for a text without any: a model must be given something."""
        known = (self.tokenizer.bos_token_id, self.tokenizer.eos_token_id, self.tokenizer.pad_token_id)
        return next(token for token in known if token is not None)


def _unzip(rows: list[tuple[int, Any]]) -> tuple[list[int], list[Any]]:
    return [number for number, _ in rows], [encoding for _, encoding in rows]


def _padded(rows: Sequence[Sequence[int]], filler: int) -> Tensor:
    width = max(len(row) for row in rows)
    return torch.tensor([[*row, *[filler] * (width - len(row))] for row in rows])
