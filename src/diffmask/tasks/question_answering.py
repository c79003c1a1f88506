"""Task of extractive question answering: the model marks the first and the last token of the answer in a passage."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, cast

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor
from torch.distributions import Categorical, Distribution

from diffmask.core.answers import SpanAnswer
from diffmask.core.batch import Batch
from diffmask.core.distributions import logits, predicted_outcome
from diffmask.datasets.squad import (
    Answers,
    QuestionExample,
    answer_f1,
    exact_match,
    is_squad_file,
    question_example,
    read_squad,
)
from diffmask.datasets.tables import Example, Source, read_examples
from diffmask.errors import InputError
from diffmask.explanation.verified_set import Prediction
from diffmask.tasks.text.encoding import (
    SENTENCE,
    TextEncodingConfig,
    TextTaskSpec,
    pad_rows,
    sentence_numbers,
)
from diffmask.tasks.text.heads import NO_LABEL
from diffmask.tasks.text.text_task import TextTask

ANSWERABLE = "answerable"
"""Key in `Batch.token_inputs` of 1 + the position that a token stands for in the answer; 0 if it is no answer."""
QUESTION = "question"
"""Key in `Batch.inputs` of the number of each row in `QuestionAnswering.questions`; -1 for a row without label."""
IMPOSSIBLE = -50.0
"""Logit, relative to the best, of positions that cannot be an answer: finite, so that every divergence is."""


@dataclass(frozen=True, kw_only=True)
class QuestionEncodingConfig(TextEncodingConfig):
    """Columns and tokenization of questions on passages.

    `segments` says which part may be masked: the question (first), the passage (second) or both.
    """

    text_column: str = "question"
    """Column of the question."""
    pair_column: str | None = "context"
    """Column of the passage."""
    label_column: str = "answers"
    """Column of the answers: a text, or texts with their places as in `datasets`."""
    max_tokens: int | None = 384
    """Largest number of tokens per row, special tokens included."""
    long_texts: Literal["truncate", "stride"] = "stride"
    """Whether a passage over the limit loses its end, with a warning, or becomes several overlapping rows."""
    overlap: int = 128
    """Tokens that two neighbouring rows of a long passage share; at most a third of the limit."""
    longest_answer: int = 30
    """Largest number of tokens of an answer."""
    no_answer: bool = False
    """Whether the model may say, at its first token, that the passage has no answer, as models of SQuAD 2 do."""

    truncation: ClassVar[str] = "only_second"


class LabelledQuestions:
    """Labelled questions of a task and the encodings of their rows; copies of the task share them."""

    def __init__(self) -> None:
        self.rows: list[tuple[Example, Any]] = []

    def __deepcopy__(self, memo: Any) -> "LabelledQuestions":
        return self

    def add(self, example: Example, encoding: Any) -> int:
        """Remember a row and return its number; -1 for a question without label."""
        if example.label is None:
            return -1
        self.rows.append((example, encoding))
        return len(self.rows) - 1


class QuestionAnswering(TextTask):
    """Extractive question answering: which words of the question and of the passage does the answer need?

    The answer is a distribution over the first and one over the last token; divergences are summed over both. The
    prediction is the best valid span. A passage over the limit becomes several rows; its prediction is the span of
    highest probability over the rows, as in the pipeline of `transformers`.

    Args:
        model: The model, or its folder or hub id.
        tokenizer: The model's fast tokenizer; needed only if `model` is a module.
        train, valid, test: Questions of each split: a file in SQuAD's JSON, a table or `datasets.Dataset` with the
            columns question, context and answers, or rows `((question, passage), answer)`.
        encoding: Columns, tokenization, which part may be masked, and the longest answer.
        source: Encoder and hyperparameters from which ROAR retrains the model.
    """

    spec: ClassVar[TextTaskSpec] = TextTaskSpec(
        name="question-answering",
        auto_class="AutoModelForQuestionAnswering",
        head_options={"num_labels": 2},
        encoding_class=QuestionEncodingConfig,
        input_fields=("question", "context"),
        placeholder=("?", "."),
        hidden_inputs=frozenset({ANSWERABLE, SENTENCE}),
    )
    answer_tokens_given: ClassVar[bool] = False

    @property
    def _reading(self) -> QuestionEncodingConfig:
        """Columns and tokenization."""
        config = self.text_encoder.config
        return config if isinstance(config, QuestionEncodingConfig) else QuestionEncodingConfig()

    def read_config(self, config: Any) -> None:
        """Fix the number of positions, so that answers to passages of any length can be compared."""
        if self.text_encoder.limit is None:
            raise InputError("the model has no limit of tokens: give max_tokens, the largest length of a row")
        self.positions = self.text_encoder.limit
        self.questions = LabelledQuestions()

    def read(self, source: Source) -> Iterable[Example]:
        """Yield the questions of a file in SQuAD's JSON, of a table or of rows."""
        if is_squad_file(source):
            return read_squad(source)
        return (self.to_example(row) for row in read_examples(source, self.text_encoder.config))

    def to_example(self, given: Any) -> Example:
        """Return a question on a passage; without one, say which fields there are."""
        example = super().to_example(given)
        if isinstance(example, QuestionExample):
            return example
        if example.pair is None:
            raise InputError("a question needs its passage: give question=... and context=..., or a pair of both")
        return question_example(example.text, example.pair, example.label)

    def add_inputs(
        self, batch: Batch, examples: Sequence[Example], sources: Sequence[int], encodings: Sequence[Any]
    ) -> Batch:
        """Mark the tokens that may be an answer: those of the passage and, for no answer, the first special token."""
        positions = pad_rows([self._positions(encoding) for encoding in encodings], 0).to(batch.tokens.device)
        rows = list(zip(sources, encodings, strict=True))
        numbered = [sentence_numbers(examples[source].pair or "", encoding, 1) for source, encoding in rows]
        sentences = pad_rows(numbered, 0).to(batch.tokens.device)
        numbers = [
            self.questions.add(examples[source], encoding) for source, encoding in zip(sources, encodings, strict=True)
        ]
        return replace(
            batch,
            inputs={**batch.inputs, QUESTION: torch.tensor(numbers, device=batch.tokens.device)},
            token_inputs={**batch.token_inputs, ANSWERABLE: positions, SENTENCE: sentences},
        )

    def _positions(self, encoding: Any) -> list[int]:
        places = [column + 1 if segment == 1 else 0 for column, segment in enumerate(encoding.sequence_ids)]
        if self._reading.no_answer:
            places[self._no_answer_column(encoding)] = 1
        return places

    def _no_answer_column(self, encoding: Any) -> int:
        marker = self.tokenizer.cls_token_id
        return encoding.ids.index(marker) if marker in encoding.ids else 0

    def targets(
        self, examples: Sequence[Example], sources: Sequence[int], encodings: Sequence[Any]
    ) -> Int[Tensor, "row 2"]:
        """Return the positions of the first and last token of the answer; -1 in rows that do not contain it."""
        return torch.tensor(
            [self._target(examples[source], encoding) for source, encoding in zip(sources, encodings, strict=True)]
        )

    def _target(self, example: Example, encoding: Any) -> tuple[int, int]:
        gold = example.label
        if not isinstance(gold, Answers):
            return NO_LABEL, NO_LABEL
        if not gold.texts and not self._reading.no_answer:
            raise InputError(f"'{example.text[:60]}' has no answer; give no_answer=True if the model can say so")
        missing = (0, 0) if self._reading.no_answer else (NO_LABEL, NO_LABEL)
        if gold.span is None:
            return missing if not gold.texts else (NO_LABEL, NO_LABEL)
        columns = [
            column
            for column, ((first, last), segment) in enumerate(zip(encoding.offsets, encoding.sequence_ids, strict=True))
            if segment == 1 and first < gold.span[1] and last > gold.span[0]
        ]
        whole = columns and encoding.offsets[columns[0]][0] <= gold.span[0]
        if not whole or encoding.offsets[columns[-1]][1] < gold.span[1]:
            return missing
        return columns[0], columns[-1]

    def probe(self, model: Any, inputs: Mapping[str, Tensor]) -> Float[Tensor, "row output"]:
        """Return the mean logits over the tokens that are there."""
        output = model(**inputs)
        both = torch.stack([output.start_logits, output.end_logits], dim=1)
        attention_mask = inputs["attention_mask"][:, None].to(both)
        return (both * attention_mask).sum(dim=-1) / attention_mask.sum(dim=-1)

    def distribution(self, values: Float[Tensor, "row 2 position"]) -> Distribution:
        """Return the answer with these logits."""
        return SpanAnswer(Categorical(logits=values, validate_args=False), self._reading.longest_answer)

    def forward_train(self, batch: Batch) -> Distribution:
        """Run the model in its current mode; every other position than those of the passage is impossible."""
        output = self.model(**self.model_inputs(batch))
        values = torch.stack([output.start_logits, output.end_logits], dim=2).float()
        values = self.padding.tokens_from_model(values, batch.present).transpose(1, 2)
        places = batch.token_inputs[ANSWERABLE]
        possible = ((places > 0) & batch.present)[:, None].expand_as(values)
        values = values.masked_fill(~possible, -torch.inf)
        values = (values - values.detach().amax(dim=-1, keepdim=True)).nan_to_num(neginf=IMPOSSIBLE, nan=0.0)
        answer = values.new_full((len(batch), 2, self.positions + 1), IMPOSSIBLE)
        # Tokens that are no answer are collected in one more column, which is then cut off.
        column = torch.where(possible, places[:, None] - 1, self.positions)
        return self.distribution(answer.scatter(2, column, values)[..., :-1])

    def answer_tokens(self, batch: Batch, answer: Distribution) -> Float[Tensor, "row token"]:
        """Return the probability that a token is the first or the last of the answer, divided by two."""
        probability = logits(answer).exp().mean(dim=1)
        places = batch.token_inputs[ANSWERABLE]
        return probability.gather(1, (places - 1).clamp(min=0)) * (places > 0)

    def prediction(self, answer: Distribution, example: Example, encodings: Sequence[Any]) -> Prediction:
        """Return the words of the most probable span over the rows of a passage."""
        spans, probability = predicted_spans(answer)
        row = int(probability.argmax())
        characters = passage_characters(encodings[row], spans[row].tolist())
        text = "no answer" if characters is None else (example.pair or "")[slice(*characters)]
        return Prediction(text, float(probability[row]), None if characters is None else (1, *characters))

    @torch.no_grad()
    def answers(self, batch: Batch) -> list[tuple[Example, str]]:
        """Return each labelled question of the batch with the words of the predicted answer."""
        spans, probability = predicted_spans(self.distribution(self.logits(batch)))
        best: dict[int, tuple[float, Example, str]] = {}
        numbers = batch.inputs[QUESTION].tolist()
        for number, span, value in zip(numbers, spans.tolist(), probability.tolist(), strict=True):
            if number < 0:
                continue
            example, encoding = self.questions.rows[number]
            # A long passage has several rows, which share their example: the most probable span is its answer.
            if id(example) not in best or value > best[id(example)][0]:
                best[id(example)] = value, example, answer_text(example, encoding, span)
        if not best:
            raise InputError("no question has a known answer: the model's own score needs answers")
        return [(example, text) for _, example, text in best.values()]

    def score(self, batch: Batch) -> float:
        """Return the mean F1 of the answers' words, as SQuAD's evaluation defines it."""
        return self.exact_match_and_f1(batch)[1]

    def exact_match_and_f1(self, batch: Batch) -> tuple[float, float]:
        """Return the share of exact answers and the mean F1, between 0 and 1."""
        answers = [(text, cast(Answers, example.label).texts) for example, text in self.answers(batch)]
        exact = sum(exact_match(text, gold) for text, gold in answers)
        return exact / len(answers), sum(answer_f1(text, gold) for text, gold in answers) / len(answers)

    def per_example_score(self, batch: Batch) -> Float[Tensor, " row"] | None:
        """Return the F1 of each question; None if a question has several rows."""
        answers = self.answers(batch)
        if len(answers) < len(batch):
            return None
        return torch.tensor([answer_f1(text, cast(Answers, example.label).texts) for example, text in answers])

    def row_scores(self, batch: Batch) -> Float[Tensor, " row"]:
        """Return for each row the F1 of its question; NaN for a question without known answer."""
        f1 = {id(example): answer_f1(text, cast(Answers, example.label).texts) for example, text in self.answers(batch)}
        rows = [self.questions.rows[number][0] if number >= 0 else None for number in batch.inputs[QUESTION].tolist()]
        return torch.tensor([f1.get(id(row), torch.nan) for row in rows], device=batch.tokens.device)

    def roar_maskable(self, batch: Batch) -> Bool[Tensor, "row token"]:
        """Return the maskable tokens of the passage."""
        return batch.maskable & (batch.token_inputs[ANSWERABLE] > 0)

    def outcomes(self, target: Shaped[Tensor, "row *event"]) -> list[str | None]:
        """Return the positions of each answer, None where the row does not contain it."""
        return [None if NO_LABEL in row else f"{row[0]} to {row[1]}" for row in target.tolist()]

    def require_trainable(self, data: Mapping[str, Batch]) -> None:
        """Raise an InputError if a split has no row with an answer; rows without one are not trained on."""
        for split, batch in data.items():
            if not any(self.outcomes(batch.target)):
                raise InputError(f"no question of '{split}' has an answer in its passage, which ROAR trains by")

    def share_with(self, task: Any) -> None:
        """Share the questions, by whose answers a retrained model is scored."""
        task.questions = self.questions


def predicted_spans(answer: Distribution) -> tuple[Int[Tensor, "row 2"], Float[Tensor, " row"]]:
    """Return the predicted first and last position of each row, and the probability of the span."""
    best = predicted_outcome(answer)
    return best, logits(answer).gather(2, best[..., None]).sum(dim=(1, 2)).exp()


def passage_characters(encoding: Any, span: Sequence[int]) -> tuple[int, int] | None:
    """Return the characters of the passage between two positions; None for no answer."""
    first, last = span
    if encoding.sequence_ids[first] != 1 or encoding.sequence_ids[last] != 1:
        return None
    return encoding.offsets[first][0], encoding.offsets[last][1]


def answer_text(example: Example, encoding: Any, span: Sequence[int]) -> str:
    """Return the words of the passage between two positions."""
    characters = passage_characters(encoding, span)
    return "" if characters is None else (example.pair or "")[slice(*characters)]
