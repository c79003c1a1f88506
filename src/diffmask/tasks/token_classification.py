"""Task of a token classifier: which words made these words an entity, or a word this part of speech?"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, cast

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor
from torch.distributions import Categorical, Distribution

from diffmask.core.batch import Batch
from diffmask.core.distributions import logits
from diffmask.core.hooks import frozen
from diffmask.datasets.conll import (
    OUTSIDE,
    TaggedSentence,
    TagSpan,
    is_conll_file,
    read_conll,
    span_f1,
    tag_spans,
    tagged_sentence,
)
from diffmask.datasets.tables import Example, Source, read_examples, read_inputs
from diffmask.errors import InputError, TaskError
from diffmask.explanation.collection import ExplanationList
from diffmask.explanation.text_units import word_spans
from diffmask.explanation.verified_set import Prediction
from diffmask.tasks.text.encoding import EVIDENCE, EncodedBatch, TextEncodingConfig, TextTaskSpec, pad_rows
from diffmask.tasks.text.heads import NO_LABEL, correct_classes
from diffmask.tasks.text.text_task import TextTask

SPAN = "span"
"""Key in `Batch.token_inputs` of the first pieces of the words that a row is about."""
TAGS = "tags"
"""Key in `Batch.token_inputs` of 1 + the gold tag of each word's first piece; 0 elsewhere. Only for training."""


@dataclass(frozen=True, kw_only=True)
class TokenEncodingConfig(TextEncodingConfig):
    """Columns and tokenization of tagged sentences, and what a row is about."""

    text_column: str = "tokens"
    """Column of the sentence: its words as a list, or a text."""
    label_column: str = "tags"
    """Column of the tags, one per word: names, or numbers of the model's labels."""
    unit: Literal["entity", "word", "sentence"] = "entity"
    """What is explained: every predicted entity, every word, or nothing (whole sentences, to train on)."""


@dataclass(frozen=True)
class TagRow(TaggedSentence):
    """Sentence of which one span is explained."""

    span: TagSpan | None = None


class TagAnswer(Categorical):
    """Tags of whole sentences; the log-probability is the mean over the tagged words of each row."""

    def __init__(self, scores: Float[Tensor, "row token tag"], tags: Shaped[Tensor, "row token"]) -> None:
        super().__init__(logits=scores, validate_args=False)
        self.tags = tags

    def log_prob(self, value: Tensor) -> Float[Tensor, " row"]:
        """Return the mean log-probability of the tags of the words; `value` repeats no tag and is not read."""
        chosen = self.logits.gather(-1, (self.tags - 1).clamp(min=0)[..., None]).squeeze(-1)
        tagged = self.tags > 0
        return (chosen * tagged).sum(dim=1) / tagged.sum(dim=1).clamp(min=1)


class TokenClassification(TextTask):
    """Token classifier; every predicted entity of a sentence is a decision of its own.

    B- and I- tags of one type are merged. The answer of a row is a distribution over types: the renormalised mean of
    log-probabilities over the first pieces of the entity's words. The entity's own words are its `ground_truth`, as
    far as a name is known by itself: a metric of evidence then asks whether they are ranked first.

    Args:
        model: The model, or its folder or hub id.
        tokenizer: The model's fast tokenizer; needed only if `model` is a module.
        train, valid, test: Sentences of each split: a file in CoNLL's format, a table or `datasets.Dataset` with the
            columns tokens and tags, or rows `(words, tags)`.
        encoding: Columns, tokenization, and whether entities or words are explained.
    """

    spec: ClassVar[TextTaskSpec] = TextTaskSpec(
        name="token-classification",
        auto_class="AutoModelForTokenClassification",
        encoding_class=TokenEncodingConfig,
        input_fields=("text",),
        hidden_inputs=frozenset({SPAN, TAGS}),
    )
    answer_tokens_given: ClassVar[bool] = True

    @property
    def _unit(self) -> str:
        """What a row is about."""
        return str(getattr(self.text_encoder.config, "unit", "entity"))

    def read_config(self, config: Any) -> None:
        """Read the tags, and the types that B- and I- tags of one name share; the type O comes first."""
        self.tags = tuple(str(config.id2label.get(index, index)) for index in range(config.num_labels))
        kinds = [tag.partition("-")[2] or tag for tag in self.tags]
        self.kinds = tuple(dict.fromkeys([*([OUTSIDE] if OUTSIDE in kinds else []), *kinds]))
        self.kind_of_tag = torch.tensor([self.kinds.index(kind) for kind in kinds])

    def read(self, source: Source) -> Iterable[Example]:
        """Yield the sentences of a CoNLL file, of a table or of rows."""
        if is_conll_file(source):
            return read_conll(cast(Any, source))
        config = self.text_encoder.config
        if isinstance(source, Mapping) and config.text_column in source:
            source = [dict(zip(source, values, strict=True)) for values in zip(*source.values(), strict=True)]
        if isinstance(source, str) or not isinstance(source, Iterable):
            source = [{**vars(row)} for row in read_examples(source, config)]
        return (self.to_example(row) for row in cast(Iterable[Any], source))

    def to_example(self, given: Any) -> Example:
        """Return a sentence: a text, its words, `(words, tags)`, or a mapping with the columns of the config."""
        config = self.text_encoder.config
        if isinstance(given, TaggedSentence):
            return given
        if isinstance(given, Mapping) and config.text_column in given:
            given = (given[config.text_column], given.get(config.label_column))
        if isinstance(given, tuple) and len(given) == 2 and not isinstance(given[0], str):
            words, tags = given
            return tagged_sentence(words, None if tags is None else [self._tag(tag) for tag in tags])
        if isinstance(given, list):
            return tagged_sentence(given)
        example = super().to_example(given)
        if not example.text.strip():
            raise InputError("the sentence is empty")
        return TaggedSentence(example.text, None, None, tuple(word_spans(example.text)))

    def _tag(self, tag: Any) -> str:
        return self.tags[tag] if isinstance(tag, int) else str(tag)

    def encode_examples(self, rows: Iterable[Example]) -> EncodedBatch:
        """Return a row for every span of the sentences: predicted entities, or words; else one for each sentence."""
        examples = [cast(TaggedSentence, self.to_example(row)) for row in rows]
        if self._unit == "sentence" or all(isinstance(row, TagRow) for row in examples):
            return super().encode_examples(examples)
        spans = self.predicted_spans(examples)
        chosen = [
            (source, TagRow(row.text, None, row.label, row.words, span))
            for source, row in enumerate(examples)
            for span in spans[source]
        ]
        if not chosen:
            raise InputError(f"the model finds no entity in {len(examples)} sentences; with unit='word' words are rows")
        encoded = super().encode_examples([row for _, row in chosen])
        sources = [chosen[index][0] for index in encoded.sources]
        return EncodedBatch(encoded.batch, sources, encoded.encodings)

    def predicted_spans(self, examples: Sequence[TaggedSentence]) -> list[list[TagSpan]]:
        """Return the spans to explain of each sentence: the predicted entities, or every word."""
        tags = self._predicted_tags(examples)
        if self._unit == "word":
            return [
                [TagSpan(tag.partition("-")[2] or tag, place, place) for place, tag in enumerate(row)] for row in tags
            ]
        return [tag_spans(row) for row in tags]

    @torch.no_grad()
    def _predicted_tags(self, examples: Sequence[TaggedSentence], rows_at_once: int = 64) -> list[list[str]]:
        """Return one tag per word; a word beyond the model's limit is O."""
        sentence_tags: list[list[str]] = []
        for start in range(0, len(examples), rows_at_once):
            part = [replace_span(row, None) for row in examples[start : start + rows_at_once]]
            encoded = super().encode_examples(part)
            with frozen(self.model):
                best = self.token_logits(encoded.batch).argmax(dim=-1).tolist()
            for row, encoding, tags in zip(part, encoded.encodings, best, strict=True):
                pieces = first_pieces(row, encoding)
                sentence_tags.append([self.tags[tags[column]] if column is not None else OUTSIDE for column in pieces])
        return sentence_tags

    def add_inputs(
        self, batch: Batch, examples: Sequence[Example], sources: Sequence[int], encodings: Sequence[Any]
    ) -> Batch:
        """Mark the first pieces of the explained words, all their pieces as evidence, and the gold tags of words."""
        spans, tags, own = [], [], []
        for source, encoding in zip(sources, encodings, strict=True):
            row = cast(TaggedSentence, examples[source])
            marked, gold = [0] * len(encoding.ids), [0] * len(encoding.ids)
            span = row.span if isinstance(row, TagRow) else None
            own.append(_own_tokens(row, span, encoding))
            for word, column in enumerate(first_pieces(row, encoding)):
                if column is not None and span is not None and span.first <= word <= span.last:
                    marked[column] = 1
                if column is not None and row.label is not None:
                    gold[column] = 1 + self._tag_index(row.label[word])
            spans.append(marked)
            tags.append(gold)
        extra = {SPAN: pad_rows(spans, 0), TAGS: pad_rows(tags, 0), EVIDENCE: pad_rows(own, 0).float()}
        device = batch.tokens.device
        moved = {name: value.to(device) for name, value in extra.items()}
        return replace(batch, token_inputs={**batch.token_inputs, **moved})

    def _tag_index(self, tag: str) -> int:
        if tag not in self.tags:
            raise InputError(f"'{tag}' is not a tag of the model: {', '.join(self.tags)}")
        return self.tags.index(tag)

    def targets(
        self, examples: Sequence[Example], sources: Sequence[int], encodings: Sequence[Any]
    ) -> Shaped[Tensor, " row"]:
        """Return the gold type of the first word of each span; -1 for a sentence without tags."""
        return torch.tensor([self._target(cast(TaggedSentence, examples[source])) for source in sources])

    def _target(self, row: TaggedSentence) -> int:
        span = row.span if isinstance(row, TagRow) else None
        if row.label is None or span is None:
            return NO_LABEL if row.label is None else 0
        return int(self.kind_of_tag[self._tag_index(row.label[span.first])])

    def probe(self, model: Any, inputs: Mapping[str, Tensor]) -> Float[Tensor, "row output"]:
        """Return the mean logits over the tokens that are there."""
        values = model(**inputs).logits
        attention_mask = inputs["attention_mask"][..., None].to(values)
        return (values * attention_mask).sum(dim=1) / attention_mask.sum(dim=1)

    def token_logits(self, batch: Batch) -> Float[Tensor, "row token tag"]:
        """Return the logits of every token's tags."""
        values = self.model(**self.model_inputs(batch)).logits.float()
        return self.padding.tokens_from_model(values, batch.present)

    def forward_train(self, batch: Batch) -> Distribution:
        """Run the model in its current mode; whole sentences answer with all their tags."""
        values = self.token_logits(batch)
        if not batch.token_inputs[SPAN].any() and self._unit == "sentence":
            return TagAnswer(values, batch.token_inputs[TAGS])
        columns = [
            values.log_softmax(dim=-1)[..., self.kind_of_tag.to(values.device) == kind].logsumexp(dim=-1)
            for kind in range(len(self.kinds))
        ]
        by_kind = torch.stack(columns, dim=-1)
        marked = (batch.token_inputs[SPAN] > 0) & batch.present
        mean = (by_kind * marked[..., None]).sum(dim=1) / marked.sum(dim=1, keepdim=True).clamp(min=1)
        return self.distribution(mean)

    def answer_tokens(self, batch: Batch, answer: Distribution) -> Float[Tensor, "row token"]:
        """Return equal weights of the first pieces of the explained words."""
        marked = ((batch.token_inputs[SPAN] > 0) & batch.present).float()
        return marked / marked.sum(dim=1, keepdim=True).clamp(min=1)

    def distribution(self, values: Float[Tensor, "row kind"]) -> Distribution:
        """Return a categorical distribution over types."""
        return Categorical(logits=values, validate_args=False)

    def prediction(self, answer: Distribution, example: Example, encodings: Sequence[Any]) -> Prediction:
        """Return the words of the span with their predicted type."""
        best = logits(answer)[0].softmax(dim=-1).max(dim=-1)
        kind = self.kinds[int(best.indices)]
        span = example.span if isinstance(example, TagRow) else None
        if span is None:
            return Prediction(kind, float(best.values))
        words = cast(TagRow, example).words
        start, end = words[span.first][0], words[span.last][1]
        return Prediction(f"{example.text[start:end]}: {kind}", float(best.values), (0, start, end))

    def explain(
        self, explainer: Any, inputs: Any = None, target: Any = None, *, verify: bool = True, **named: Any
    ) -> Any:
        """Return the explanations of one sentence, one for each entity; of a list of sentences, a list of such lists.

        A sentence is a text or, wrapped in a list of sentences, a list of words.
        """
        if target is not None:
            raise InputError("an entity is explained for its predicted type; leave target out")
        if (inputs is None) == (not named):
            raise InputError("give a sentence, a list of sentences, or text=...")
        self._require_fields(named)
        examples, single = read_inputs(named if inputs is None else inputs, self.to_example)
        explanations = self.explain_examples(explainer, examples, verify=verify)
        return explanations[0] if single else explanations

    def explain_examples(
        self, explainer: Any, examples: Sequence[Example], *, verify: bool, targets: Sequence[Tensor] | None = None
    ) -> Any:
        """Return a list of explanations for each sentence; all spans are explained together."""
        sentences = [cast(TaggedSentence, self.to_example(row)) for row in examples]
        spans = self.predicted_spans(sentences)
        rows = [
            replace_span(row, span)
            for row, sentence_spans in zip(sentences, spans, strict=True)
            for span in sentence_spans
        ]
        remaining = iter(super().explain_examples(explainer, rows, verify=verify))
        return [ExplanationList([next(remaining) for _ in sentence_spans]) for sentence_spans in spans]

    def score(self, batch: Batch) -> float:
        """Return the accuracy of types over labelled spans; over whole sentences, the F1 of spans."""
        if self._unit == "sentence":
            return self._sentence_f1(batch)
        scores = self.per_example_score(batch)
        return float(scores.mean())

    def per_example_score(self, batch: Batch) -> Float[Tensor, " row"]:
        """Return 1 for each labelled span whose type is right."""
        return correct_classes(self.logits, batch)

    @torch.no_grad()
    def _sentence_f1(self, batch: Batch) -> float:
        predicted, gold = [], []
        for start in range(0, len(batch), 64):
            rows = batch[start : start + 64].trim()
            with frozen(self.model):
                best = self.token_logits(rows).argmax(dim=-1)
            for tags, wanted in zip(best, rows.token_inputs[TAGS], strict=True):
                tagged = wanted > 0
                predicted.append([self.tags[index] for index in tags[tagged].tolist()])
                gold.append([self.tags[index - 1] for index in wanted[tagged].tolist()])
        return span_f1(predicted, gold)

    def span_f1(self, source: Source) -> float:
        """Return the F1 of predicted spans of tagged sentences, as seqeval defines it."""
        examples = [cast(TaggedSentence, row) for row in self.read(source)]
        return span_f1(self._predicted_tags(examples), [list(row.label) for row in examples])

    def roar_maskable(self, batch: Batch) -> Bool[Tensor, "row token"]:
        """Return all maskable tokens."""
        return batch.maskable

    def outcomes(self, target: Shaped[Tensor, " row"]) -> list[str | None]:
        """Return the names of the types."""
        return [None if index == NO_LABEL else self.kinds[index] for index in target.tolist()]

    def retrain(self, data: Mapping[str, Batch], seed: int) -> TextTask:
        """Raise a TaskError: the rows are spans, and a tagger is trained on sentences."""
        raise TaskError("ROAR cannot retrain a token classifier: its rows are single spans of sentences")

    def init_head(self, seed: int) -> Any:
        """Return the encoder with a new head for the same tags."""
        return self.source.init_labelled(self.spec.auto_class, self.tags, seed)


def replace_span(row: TaggedSentence, span: TagSpan | None) -> TagRow:
    """Return the sentence with the span that is explained."""
    return TagRow(row.text, None, row.label, row.words, span)


def _own_tokens(row: TaggedSentence, span: TagSpan | None, encoding: Any) -> list[int]:
    """Return 1 for every piece of the explained words."""
    if span is None:
        return [0] * len(encoding.ids)
    start, end = row.words[span.first][0], row.words[span.last][1]
    return [
        int(segment == 0 and start <= first < end)
        for (first, _), segment in zip(encoding.offsets, encoding.sequence_ids, strict=True)
    ]


def first_pieces(row: TaggedSentence, encoding: Any) -> list[int | None]:
    """Return the column of the first piece of each word; None for a word that was cut off."""
    columns: dict[int, int] = {}
    for column, ((first, last), segment) in enumerate(zip(encoding.offsets, encoding.sequence_ids, strict=True)):
        if segment == 0 and last > first:
            columns.setdefault(first, column)
    starts = sorted(columns)
    piece_columns: list[int | None] = []
    for first, last in row.words:
        inside = [start for start in starts if first <= start < last]
        piece_columns.append(columns[inside[0]] if inside else None)
    return piece_columns
