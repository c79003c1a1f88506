"""What every method must keep on every head of an encoder: few rows, tiny models."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForMultipleChoice,
    AutoModelForQuestionAnswering,
    AutoModelForTokenClassification,
)

from diffmask import registry
from diffmask.core.config import parse
from diffmask.core.explainer import Explainer
from diffmask.errors import TaskError
from diffmask.tasks.masked_word import MaskedWord
from diffmask.tasks.multiple_choice import MultipleChoice
from diffmask.tasks.question_answering import QuestionAnswering
from diffmask.tasks.sentence_similarity import SentenceSimilarity
from diffmask.tasks.text.text_task import TextTask
from diffmask.tasks.token_classification import TokenClassification
from diffmask.workspace.persistence import load_explainer, save_explainer
from support.tiny_models import tiny_model, word_pieces
from test_contract import FAST

torch.set_num_threads(1)
pytestmark = pytest.mark.filterwarnings("ignore::diffmask.errors.FitWarning")
QUICK: dict[str, dict[str, Any]] = {
    **FAST,
    "amortised": {"budget": "16 texts", "width": 16, "held_out": 4, "batch_size": 8},
    **{name: {"steps": 2, "batch_size": 8} for name in ("diffmask", "nested-diffmask", "surrogate-mask")},
}
ADJECTIVES = ["great", "dull", "good", "fun", "bad", "very good", "not bad", "enjoyable"]


def questions() -> TextTask:
    rows = [((f"is it {word} ?", f"the film is {word} . it was a mess ."), word) for word in ADJECTIVES]
    model = tiny_model("bert", 2, head=AutoModelForQuestionAnswering)
    return QuestionAnswering(model, word_pieces(segments=True), train=rows, valid=rows, test=rows)


def entities() -> TextTask:
    tags = {"the": "O", "film": "B-loc", "is": "O"}
    rows = [([*tags, *word.split()], [*tags.values(), *["B-per"] * len(word.split())]) for word in ADJECTIVES]
    names = dict(enumerate(["O", "B-loc", "B-per"]))
    model = tiny_model("bert", 3, head=AutoModelForTokenClassification, id2label=names)
    return TokenClassification(model, word_pieces(), train=rows, valid=rows, test=rows)


def blanks() -> TextTask:
    rows = [(f"the {noun} is [MASK] and {word}", "good") for noun in ("film", "plot") for word in ADJECTIVES[:4]]
    model = tiny_model("bert", head=AutoModelForMaskedLM)
    return MaskedWord(model, word_pieces(), train=rows, valid=rows, test=rows)


def pairs() -> TextTask:
    rows = [((f"the film is {word}", "a great movie"), number / 8) for number, word in enumerate(ADJECTIVES)]
    model = tiny_model("bert", head=AutoModel)
    return SentenceSimilarity(model, word_pieces(), train=rows, valid=rows, test=rows)


def choices() -> TextTask:
    rows = [{"question": f"is it {word}", "choices": ["it is fun", "a mess"], "answer": 0} for word in ADJECTIVES]
    model = tiny_model("bert", 1, head=AutoModelForMultipleChoice)
    return MultipleChoice(model, word_pieces(segments=True), train=rows, valid=rows, test=rows)


TASKS: dict[str, Callable[[], TextTask]] = {
    "question-answering": cache(questions),
    "token-classification": cache(entities),
    "fill-mask": cache(blanks),
    "sentence-similarity": cache(pairs),
    "multiple-choice": cache(choices),
}


@cache
def fitted(name: str, task_name: str) -> Explainer | str:
    method = parse("method", {"name": name, **QUICK.get(name, {})}, "contract")
    try:
        found: Explainer = method.fit(TASKS[task_name](), 3)
    except TaskError as error:
        return str(error)
    return found


QUICK_TASKS = ("question-answering", "token-classification")
"""Checked on every run; the others share most of their code with these and are checked on slow runs."""


@pytest.mark.parametrize(
    "task_name", [name if name in QUICK_TASKS else pytest.param(name, marks=pytest.mark.slow) for name in TASKS]
)
@pytest.mark.parametrize("name", [entry.name for entry in registry.entries("method")])
def test_a_method_keeps_its_contract_on_this_head(name: str, task_name: str, tmp_path: Path) -> None:
    task, explainer = TASKS[task_name](), fitted(name, task_name)
    if isinstance(explainer, str):
        pytest.skip(explainer)
    before = {key: value.clone() for key, value in task.model.state_dict().items()}
    batch = task.data["test"][:4]
    try:
        found = explainer(batch)
    except TaskError as error:
        pytest.skip(str(error))
    assert found.scores.isfinite().all() and (found.scores[~batch.maskable] == 0).all()
    alone = explainer(batch[1:2].trim()).scores[0]
    torch.testing.assert_close(alone, found.scores[1, : len(alone)], rtol=1e-4, atol=1e-4)
    padded = explainer(batch.pad(batch.tokens.shape[1] + 3))
    torch.testing.assert_close(padded.scores[:, :-3], found.scores, rtol=1e-4, atol=1e-4)
    save_explainer(explainer, explainer._known_config(), tmp_path / "explainer")
    loaded = load_explainer(tmp_path / "explainer", task)
    torch.testing.assert_close(loaded(batch).scores, found.scores, rtol=1e-4, atol=1e-4)
    assert all(torch.equal(value, before[key]) for key, value in task.model.state_dict().items())
