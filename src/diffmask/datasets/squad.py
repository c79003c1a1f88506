"""Questions on passages: SQuAD's JSON (Rajpurkar et al. 2016, 2018), tables, data sets of the hub, and bABI stories.

Exact match and F1 follow the official evaluation of SQuAD: answers are compared in lower case, without punctuation,
articles and additional white space; of several gold answers the best counts.
"""

import json
import re
import string
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, TypeGuard

from diffmask.datasets.babi import Question, read_questions
from diffmask.datasets.eraser import RationaleExample
from diffmask.datasets.tables import DataSet, Example, read_lines
from diffmask.errors import InputError
from diffmask.explanation.text_units import Span, sentence_spans

NO_ANSWER = ""
"""Text of the answer to a question that its passage does not answer."""


@dataclass(frozen=True)
class Answers:
    """Gold answers of one question; none if the passage does not answer it."""

    texts: tuple[str, ...]
    starts: tuple[int | None, ...]
    """Index of each answer's first character in the passage; None if it is unknown."""

    def __str__(self) -> str:
        return self.texts[0] if self.texts else NO_ANSWER

    @property
    def span(self) -> Span | None:
        """Characters of the first answer whose place is known."""
        for text, start in zip(self.texts, self.starts, strict=True):
            if start is not None:
                return start, start + len(text)
        return None


@dataclass(frozen=True)
class QuestionExample(RationaleExample):
    """Question (`text`) on a passage (`pair`); `label` holds its `Answers`, and `evidence` spans of the passage."""

    evidence_segment: int = 1


def question_example(
    question: str, passage: str, answers: Any = None, evidence: Sequence[Span] | None = None
) -> QuestionExample:
    """Return an example; by default the evidence is the sentence of the first answer whose place is known."""
    if not passage.strip():
        raise InputError("the passage is empty; give the text that the question is about")
    if not question.strip():
        raise InputError("the question is empty")
    gold = to_answers(answers, passage)
    spans = _answer_sentence(passage, gold) if evidence is None else tuple(evidence)
    return QuestionExample(question, passage, gold, spans)


def _answer_sentence(passage: str, gold: Answers | None) -> tuple[Span, ...]:
    span = None if gold is None else gold.span
    if span is None:
        return ()
    return tuple((first, last) for first, last in sentence_spans(passage) if first < span[1] and last > span[0])


def to_answers(value: Any, passage: str) -> Answers | None:
    """Return answers from a text, texts, mappings, or the mapping of `datasets`; None stays None."""
    if value is None or isinstance(value, Answers):
        return value
    if isinstance(value, str):
        return _located([value] if value else [], passage)
    if isinstance(value, Mapping):
        texts, starts = value.get("text"), value.get("answer_start")
        if texts is None:
            raise InputError(f"answers have the keys 'text' and 'answer_start'; found {', '.join(map(str, value))}")
        return _located(list(texts), passage, None if starts is None else list(starts))
    if all(isinstance(answer, Mapping) for answer in value):
        texts = [answer["text"] for answer in value]
        return _located(texts, passage, [_start(answer) for answer in value])
    return _located(list(value), passage)


def _start(answer: Mapping[str, Any]) -> int | None:
    """Return where an answer starts; None if the file says that the place was guessed."""
    return answer.get("answer_start") if answer.get("start_certain", True) else None


def _located(texts: list[str], passage: str, starts: Sequence[int | None] | None = None) -> Answers:
    """Return answers with their places; without places, an answer that occurs once is found."""
    if starts is None:
        starts = [passage.find(text) if passage.count(text) == 1 else None for text in texts]
    for text, start in zip(texts, starts, strict=True):
        if start is not None and passage[start : start + len(text)] != text:
            raise InputError(f"the passage does not have the answer {text!r} at character {start}")
    return Answers(tuple(texts), tuple(starts))


def read_squad(path: str | Path) -> Iterator[QuestionExample]:
    """Yield the questions of a file in SQuAD's JSON, version 1.1 or 2.0; `.gz` is decompressed."""
    try:
        content = json.loads("".join(read_lines(Path(path))))
        paragraphs = [paragraph for article in content["data"] for paragraph in article["paragraphs"]]
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path} is not SQuAD's JSON (data, paragraphs, qas): {error!r}") from None
    for paragraph in paragraphs:
        for question in paragraph["qas"]:
            answers = [] if question.get("is_impossible") else question.get("answers")
            try:
                yield question_example(question["question"], paragraph["context"], answers)
            except InputError as error:
                raise InputError(f"{path}, question '{question.get('id')}': {error}") from None


def is_squad_file(source: object) -> TypeGuard[str | Path]:
    """Return whether a source is the path of a JSON file, which is then in SQuAD's format."""
    return isinstance(source, str | Path) and str(source).removesuffix(".gz").endswith(".json")


def load_squad(folder: Path) -> DataSet:
    """Load the files of a folder: names with `train` to train on, with `dev`, `valid`, `eval` or `test` to test on.

    A name with both, such as `dev_articles_train36`, is for training. A tenth of the training passages is for
    validation.
    """
    files = sorted(file for file in folder.glob("*.json*") if is_squad_file(file)) if folder.is_dir() else []
    train = [file for file in files if "train" in file.name]
    test = [file for file in files if file not in train]
    if not train or not test:
        raise InputError(f"{folder} needs SQuAD files to train on (NAME with 'train') and others to test on")
    rows = [row for file in train for row in read_squad(file)]
    held_out = {passage for number, passage in enumerate(dict.fromkeys(row.pair for row in rows)) if number % 10 == 9}
    return DataSet(
        train=[row for row in rows if row.pair not in held_out],
        valid=[row for row in rows if row.pair in held_out],
        test=[row for file in test for row in read_squad(file)],
    )


def exact_match(prediction: str, gold: Iterable[str]) -> float:
    """Return 1 if the prediction is one of the gold answers after normalisation, else 0.

    >>> exact_match("the Eiffel tower!", ["Eiffel Tower", "tower"])
    1.0
    """
    return float(any(_normal_words(prediction) == _normal_words(text) for text in _at_least_one(gold)))


def answer_f1(prediction: str, gold: Iterable[str]) -> float:
    """Return the largest F1 of words over the gold answers; no answer matches only no answer.

    >>> answer_f1("in Paris, France", ["Paris"])
    0.5
    """
    return max(_word_f1(_normal_words(prediction), _normal_words(text)) for text in _at_least_one(gold))


def _at_least_one(gold: Iterable[str]) -> list[str]:
    return list(gold) or [NO_ANSWER]


def _word_f1(predicted: list[str], gold: list[str]) -> float:
    if not predicted or not gold:
        return float(predicted == gold)
    common = (Counter(predicted) & Counter(gold)).total()
    return 2 * common / (len(predicted) + len(gold))


def _normal_words(text: str) -> list[str]:
    """Return the words in lower case, without punctuation and articles."""
    bare = "".join(character for character in text.lower() if character not in string.punctuation)
    return re.sub(r"\b(a|an|the)\b", " ", bare).split()


def babi_question(question: Question) -> QuestionExample:
    """Return a bABI question on its story; the answer is marked in the last supporting fact, the facts are evidence."""
    sentences = [f"{statement}." for statement in question.statements]
    starts = [0, *accumulate(len(sentence) + 1 for sentence in sentences)]
    spans = [(start, start + len(sentence)) for start, sentence in zip(starts, sentences, strict=False)]
    places = [
        spans[fact][0] + sentences[fact].find(question.answer)
        for fact in sorted(question.facts, reverse=True)
        if question.answer in sentences[fact]
    ]
    answers = Answers((question.answer,), (places[0] if places else None,))
    evidence = [spans[fact] for fact in question.facts]
    return question_example(f"{question.question}?", " ".join(sentences), answers, evidence)


def load_babi_questions(folder: Path, task: int) -> DataSet:
    """Load a bABI task as extractive question answering; a tenth of the training questions is for validation."""
    train: list[Example] = [babi_question(question) for question in read_questions(folder, task, "train")]
    return DataSet(
        train=[row for number, row in enumerate(train) if number % 10 != 9],
        valid=train[9::10],
        test=[babi_question(question) for question in read_questions(folder, task, "test")],
    )
