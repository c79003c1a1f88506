"""From texts to the rows of a batch: tokenization, maskable tokens, long texts, and rationales aligned to tokens."""

import warnings
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import accumulate
from typing import Any, ClassVar, Literal

import torch
from jaxtyping import Shaped
from torch import Tensor

from diffmask.core.batch import Batch
from diffmask.datasets.eraser import RationaleExample
from diffmask.datasets.tables import Columns, Example, Source, pair_of_texts, read_examples, require_text
from diffmask.errors import InputError, InputWarning, nearest
from diffmask.explanation.text_units import sentence_spans

EVIDENCE = "evidence"
"""Key of the rationales in `Batch.token_inputs`; the model does not receive them."""
SENTENCE = "sentence"
"""Key in `Batch.token_inputs` of the number of each token's sentence, from 1; 0 for tokens of no sentence."""


@dataclass(frozen=True, kw_only=True)
class TextEncodingConfig(Columns):
    """Columns of a table and the choices with which its texts become rows of tokens."""

    segments: Literal["both", "first", "second"] = "both"
    """Text of a pair that may be masked."""
    max_tokens: int | None = None
    """Largest number of tokens per row, special tokens included; None uses the model's limit."""
    long_texts: Literal["truncate", "stride"] = "truncate"
    """Whether a text over the limit loses its end, with a warning, or becomes several overlapping rows."""
    overlap: int = 32
    """Tokens that two neighbouring rows of a long text share."""

    truncation: ClassVar[str] = "longest_first"
    """Which text of a pair over the limit is cut: the longer one, or `only_second`, which can become several rows."""


@dataclass(frozen=True)
class EncodedBatch:
    """Batch with the mapping from its rows and tokens back to the texts."""

    batch: Batch
    sources: list[int]
    """Index of the text of each row."""
    encodings: list[Any]
    """`tokenizers.Encoding` of each row: offsets, words and segments of its tokens."""


@dataclass(frozen=True)
class TextEncoder:
    """Fast tokenizer with a `TextEncodingConfig`."""

    tokenizer: Any
    config: TextEncodingConfig
    model_limit: int | None
    """Largest number of tokens that the model accepts."""

    def __post_init__(self) -> None:
        if not self.tokenizer.is_fast:
            raise InputError(f"{type(self.tokenizer).__name__} has no offsets; load the fast tokenizer of the model")
        if self.tokenizer.pad_token_id is None:
            raise InputError(
                "the tokenizer has no padding token; set one, for example tokenizer.pad_token = tokenizer.eos_token "
                "and model.config.pad_token_id = tokenizer.pad_token_id"
            )

    @property
    def limit(self) -> int | None:
        """Largest number of tokens per row."""
        return min((size for size in (self.config.max_tokens, self.model_limit) if size is not None), default=None)

    def encode(self, examples: Sequence[Example]) -> tuple[list[int], list[Any]]:
        """Tokenize texts and return, per row, the index of its text and its encoding."""
        if not examples:
            raise InputError("there are no texts")
        for row, example in enumerate(examples):
            require_encodable(example, row)
        pairs = [example.pair for example in examples]
        if any(pair is None for pair in pairs) != all(pair is None for pair in pairs):
            raise InputError("some rows are pairs and some are single texts; give one kind at a time")
        one_text_is_cut = pairs[0] is None or self.config.truncation == "only_second"
        strides = self.config.long_texts == "stride" and one_text_is_cut
        encoded = self._tokenize(examples, self.config.overlap if strides else 0)
        rows = list(zip(encoded["overflow_to_sample_mapping"], encoded.encodings, strict=True))
        if not strides:
            rows = self._first_rows(rows, len(examples))
        return [text for text, _ in rows], [encoding for _, encoding in rows]

    def _tokenize(self, examples: Sequence[Example], stride: int) -> Any:
        pairs = None if examples[0].pair is None else [example.pair for example in examples]
        if pairs is not None and self.limit and self.config.truncation == "only_second":
            stride = min(stride, self.limit // 3)
            self._require_room(examples, stride, self.limit)
        return self.tokenizer(
            [example.text for example in examples],
            pairs,
            truncation=self.config.truncation if self.limit and pairs else bool(self.limit),
            max_length=self.limit,
            stride=stride,
            return_overflowing_tokens=True,
        )

    def _require_room(self, examples: Sequence[Example], stride: int, limit: int) -> None:
        """Raise an InputError if a first text leaves no room for a new token of the second one in each row."""
        special = self.tokenizer.num_special_tokens_to_add(pair=True)
        firsts = {example.text: None for example in examples}
        for text, ids in zip(firsts, self.tokenizer(list(firsts), add_special_tokens=False)["input_ids"], strict=True):
            if len(ids) + special + stride >= limit:
                raise InputError(
                    f"'{text[:40]}...' has {len(ids)} tokens: with an overlap of {stride} it leaves no room for the "
                    f"second text in rows of {limit} tokens; shorten it, or lower overlap"
                )

    def _first_rows(self, rows: list[tuple[int, Any]], texts: int) -> list[tuple[int, Any]]:
        """Return the first row of each text, and warn if there are others."""
        first = dict(reversed(rows))
        truncated = len({text for text, encoding in rows if encoding.overflowing})
        if truncated:
            warnings.warn(
                f"{truncated} of {texts} texts have more than {self.limit} tokens: their ends are cut off; "
                "with long_texts='stride' they become several rows",
                InputWarning,
                stacklevel=5,
            )
        return sorted(first.items())

    def batch(self, encodings: Sequence[Any], target: Tensor, device: torch.device) -> Batch:
        """Return the rows as a batch, padded on the right."""
        rows = [encoding.ids or [self._empty_text_token] for encoding in encodings]
        lengths = torch.tensor([len(row) for row in rows])
        type_ids = [encoding.type_ids or [0] for encoding in encodings]
        takes_type_ids = "token_type_ids" in self.tokenizer.model_input_names
        return Batch(
            tokens=pad_rows(rows, self.tokenizer.pad_token_id),
            present=torch.arange(int(lengths.max()))[None] < lengths[:, None],
            maskable=pad_rows([self._maskable(encoding) or [False] for encoding in encodings], False),
            target=target,
            token_inputs={"token_type_ids": pad_rows(type_ids, 0)} if takes_type_ids else {},
        ).to(device)

    def _maskable(self, encoding: Any) -> list[bool]:
        """Return whether each token belongs to a chosen segment and is no special token, typed or added."""
        # The tokenizer lists the unknown token as special, but in a text it replaces a word.
        special = set(self.tokenizer.all_special_ids) - {self.tokenizer.unk_token_id}
        segments = {"both": (0, 1), "first": (0,), "second": (1,)}[self.config.segments]
        return [
            segment in segments and token not in special
            for token, segment in zip(encoding.ids, encoding.sequence_ids, strict=True)
        ]

    @property
    def _empty_text_token(self) -> int:
        """Token of a row for a text without tokens: the model needs at least one."""
        known = (self.tokenizer.bos_token_id, self.tokenizer.eos_token_id, self.tokenizer.pad_token_id)
        return next(token for token in known if token is not None)


def require_encodable(example: Example, row: int) -> None:
    """Refuse what no tokenizer accepts: other types than text, and halves of surrogate pairs."""
    for text in (example.text, *([] if example.pair is None else [example.pair])):
        if not isinstance(text, str):
            raise InputError(f"row {row}: {type(text).__name__} is not a text; give a string")
        try:
            require_text(text)
        except InputError as error:
            raise InputError(f"row {row}: {error}") from None


def token_strings(tokenizer: Any, batch: Batch) -> list[list[str]]:
    """Return the tokens of each row as the tokenizer spells them; a model may know more tokens than its tokenizer."""
    return [
        [str(token) for token in tokenizer.convert_ids_to_tokens(row[real].tolist())]
        for row, real in zip(batch.tokens, batch.present, strict=True)
    ]


def pad_rows(rows: Sequence[Sequence[int]], filler: int) -> Tensor:
    """Return rows of different lengths as one tensor, padded on the right."""
    width = max(len(row) for row in rows)
    return torch.tensor([[*row, *[filler] * (width - len(row))] for row in rows])


def add_evidence(batch: Batch, examples: Sequence[Example], sources: Sequence[int], encodings: Sequence[Any]) -> Batch:
    """Return the batch with 1 at each token that overlaps the evidence, 0 elsewhere.

    Without a `RationaleExample` among the examples the batch is returned unchanged.
    """
    if not any(isinstance(example, RationaleExample) for example in examples):
        return batch
    evidence = torch.zeros(batch.tokens.shape)
    for row, (source, encoding) in enumerate(zip(sources, encodings, strict=True)):
        tokens = _evidence_tokens(examples[source], encoding)
        evidence[row, : len(tokens)] = torch.tensor(tokens)
    evidence = evidence.to(batch.tokens.device) * batch.maskable
    return replace(batch, token_inputs={**batch.token_inputs, EVIDENCE: evidence})


def _evidence_tokens(example: Example, encoding: Any) -> list[float]:
    if not isinstance(example, RationaleExample):
        return [0.0] * len(encoding.ids)
    text = example.text if example.evidence_segment == 0 else example.pair or ""
    marked = [0] * (len(text) + 1)
    for first, last in example.evidence:
        marked[first:last] = [1] * (last - first)
    # Cumulative counts: a token overlaps the evidence if the count grows between its first and last character.
    count = list(accumulate(marked, initial=0))
    return [
        float(segment == example.evidence_segment and count[last] > count[first])
        for (first, last), segment in zip(encoding.offsets, encoding.sequence_ids, strict=True)
    ]


def sentence_numbers(text: str, encoding: Any, segment: int) -> list[int]:
    """Return the number, from 1, of the sentence that each token of a segment is in; 0 for all other tokens."""
    starts = [first for first, _ in sentence_spans(text)]
    return [
        max(bisect_right(starts, first), 1) if place == segment else 0
        for (first, _), place in zip(encoding.offsets, encoding.sequence_ids, strict=True)
    ]


@dataclass(frozen=True, kw_only=True)
class TextTaskSpec:
    """What distinguishes a kind of task on texts: the head that it loads and the inputs that it reads."""

    name: str
    """Name of the task on the command line and in saved explainers."""
    auto_class: str
    """Class of `transformers` that loads the model with its head."""
    head_options: Mapping[str, Any] = field(default_factory=dict)
    """Options of the configuration that a new head needs."""
    encoding_class: type[TextEncodingConfig] = TextEncodingConfig
    """Config of the columns and of the tokenization."""
    input_fields: tuple[str, ...] = ("text", "pair")
    """Names of the text and of the second text of a pair, as a caller gives them."""
    placeholder: Any = "."
    """Smallest input that can be encoded."""
    hidden_inputs: frozenset[str] = frozenset()
    """Further keys of `Batch.token_inputs` that the model does not receive."""


class ReadsTexts(ABC):
    """A task that reads texts from tables, lists or data sets and encodes them as batches."""

    spec: ClassVar[TextTaskSpec]
    text_encoder: TextEncoder
    device: torch.device

    @abstractmethod
    def targets(
        self, examples: Sequence[Example], sources: Sequence[int], encodings: Sequence[Any]
    ) -> Shaped[Tensor, "row *event"]:
        """Return the labels of the rows as outcomes of the answer."""

    def read(self, source: Source) -> Iterable[Example]:
        """Yield the examples of a path, columns or rows."""
        return read_examples(source, self.text_encoder.config)

    def load(self, source: Source) -> Batch:
        """Return the texts and labels of a path, columns or rows as a batch."""
        return self.encode_examples(self.read(source)).batch

    def encode(self, texts: Iterable[Any]) -> Batch:
        """Return texts, or pairs of texts, as a batch without labels."""
        return self.encode_examples(self.to_example(text) for text in texts).batch

    def placeholder_batch(self) -> Batch:
        """Return the smallest input as a batch."""
        return self.encode([self.spec.placeholder])

    def to_example(self, given: Any) -> Example:
        """Return one input as an example: a text, a pair `(first, second)`, or a mapping such as a row of a table.

        A mapping has the names of `spec.input_fields` or the columns of the encoding; other columns are ignored.
        """
        if isinstance(given, Example):
            return given
        if isinstance(given, Mapping):
            return self._example_of_fields(given)
        return pair_of_texts(given) if isinstance(given, tuple | list) else Example(require_text(given))

    def _example_of_fields(self, given: Mapping[str, Any]) -> Example:
        columns = self.text_encoder.config
        first, second = (
            next((name for name in names if name in given), None)
            for names in (
                (self.spec.input_fields[0], columns.text_column),
                (*self.spec.input_fields[1:2], columns.pair_column, "text_pair"),
            )
        )
        if first is None:
            wanted = columns.text_column if self.spec.input_fields[0] == "text" else self.spec.input_fields[0]
            raise InputError(f"there is no column '{wanted}'; {nearest(wanted, map(str, given))}")
        return Example(require_text(given[first]), None if second is None else require_text(given[second]))

    def _require_fields(self, named: Mapping[str, Any]) -> None:
        for name in named:
            if name not in self.spec.input_fields:
                raise InputError(
                    f"{type(self).__name__} has no field '{name}'; {nearest(name, self.spec.input_fields)}"
                )
        if named and self.spec.input_fields[0] not in named:
            raise InputError(
                f"the field '{self.spec.input_fields[0]}' is missing; {type(self).__name__} reads {self._fields()}"
            )

    def _fields(self) -> str:
        return " and ".join(f"'{name}'" for name in self.spec.input_fields)

    def encode_examples(self, rows: Iterable[Example]) -> EncodedBatch:
        """Return examples as a batch with the mapping from its rows back to the texts."""
        examples = list(rows)
        sources, encodings = self.text_encoder.encode(examples)
        batch = self.text_encoder.batch(encodings, self.targets(examples, sources, encodings), self.device)
        batch = self.add_inputs(batch, examples, sources, encodings)
        return EncodedBatch(add_evidence(batch, examples, sources, encodings), sources, encodings)

    def add_inputs(
        self, batch: Batch, examples: Sequence[Example], sources: Sequence[int], encodings: Sequence[Any]
    ) -> Batch:
        """Return the batch with inputs of this task, such as the tokens that may be an answer."""
        return batch

    def reading_choices(self) -> dict[str, Any]:
        """Return the fields of the encoding as plain values, for a saved explainer."""
        return {field.name: getattr(self.text_encoder.config, field.name) for field in fields(self.spec.encoding_class)}
