"""The sentence of the answer is found, or not, by scores that a test wrote down."""

from pathlib import Path

import pytest
from transformers import AutoModelForQuestionAnswering

from diffmask.errors import TaskError
from diffmask.methods.baselines import Uniform
from diffmask.metrics.evidence import EvidenceSentence
from diffmask.tasks.classification import TextClassification
from diffmask.tasks.question_answering import QuestionAnswering, QuestionEncodingConfig
from support.tiny_models import tiny_model, word_pieces
from support.workspaces import Written, workspace_of

ROWS = [(("is it good ?", "the film is great . it was a mess ."), "mess")]
"""Tokens: [CLS] 0, the question 1 to 4, [SEP] 5, the first sentence 6 to 10, the answer's sentence 11 to 15."""


def make() -> QuestionAnswering:
    model = tiny_model("bert", 2, head=AutoModelForQuestionAnswering)
    encoding = QuestionEncodingConfig(overlap=4)
    return QuestionAnswering(model, word_pieces(segments=True), train=ROWS, test=ROWS, encoding=encoding)


def measured(scores: dict[int, float], path: Path) -> dict[str, float]:
    row = tuple(scores.get(column, 0.1) for column in range(17))
    records = EvidenceSentence(right_only=False).run(Written(scores=row), workspace_of(make(), path))
    return {record.metric: record.value for record in records}


def test_the_highest_score_in_the_answer_s_sentence_is_right(tmp_path: Path) -> None:
    found = measured({14: 5.0, 7: 4.0}, tmp_path)
    assert found["evidence_sentence_first"] == 1
    # Two of five places are decided, one rightly; eight tokens, four of them evidence, are tied for the other three.
    assert found["evidence_precision"] == pytest.approx((1 + 3 * 4 / 8) / 5)


def test_the_highest_score_elsewhere_is_wrong_and_the_question_does_not_count(tmp_path: Path) -> None:
    assert measured({2: 9.0, 8: 5.0, 14: 4.0}, tmp_path)["evidence_sentence_first"] == 0
    assert measured({2: 9.0, 8: 4.0, 14: 5.0}, tmp_path / "other")["evidence_sentence_first"] == 1


def test_equal_scores_are_at_chance(tmp_path: Path) -> None:
    records = list(EvidenceSentence(right_only=False).run(Uniform(), workspace_of(make(), tmp_path)))
    assert [record.value for record in records] == pytest.approx([0.5, 0.5])


def test_a_task_without_sentences_says_so(tmp_path: Path) -> None:
    task = TextClassification(tiny_model("bert", 2), word_pieces(), train=["good film"], test=["good film"])
    with pytest.raises(TaskError):
        list(EvidenceSentence().run(Uniform(), workspace_of(task, tmp_path)))
