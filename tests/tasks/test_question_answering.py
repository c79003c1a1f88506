"""Questions on passages: their answers, their scores, long passages and models that may find no answer."""

import json
import re
import string
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributions import Categorical
from transformers import AutoModelForQuestionAnswering
from typer.testing import CliRunner

from diffmask.cli import app
from diffmask.core.answers import SpanAnswer
from diffmask.core.batch import delete_tokens
from diffmask.core.coarse_answers import coarsen
from diffmask.core.distributions import divergence, logits, predicted_outcome
from diffmask.datasets.squad import answer_f1, exact_match, question_example, read_squad, to_answers
from diffmask.errors import InputError
from diffmask.methods.gradients import Gradient
from diffmask.tasks.question_answering import QuestionAnswering, QuestionEncodingConfig, predicted_spans
from support.tiny_models import save_encoder, tiny_model, word_pieces

PASSAGE = "the film is great . it was very good fun"
ROWS = [
    (("is it good ?", PASSAGE), "great"),
    (("was it a mess", "the plot was a dull mess , but not bad"), "dull mess"),
]


def make(rows: Any = ROWS, **choices: Any) -> QuestionAnswering:
    model = tiny_model("bert", 2, head=AutoModelForQuestionAnswering)
    encoding = QuestionEncodingConfig(**{"overlap": 4, **choices})
    return QuestionAnswering(model, word_pieces(segments=True), train=rows, test=rows, encoding=encoding)


def squad_file(path: Path) -> Path:
    questions = [{"id": "1", "question": "is it good ?", "answers": [{"text": "great", "answer_start": 12}]}]
    impossible = [{"id": "2", "question": "is it bad ?", "answers": [], "is_impossible": True}]
    content = {"data": [{"paragraphs": [{"context": PASSAGE, "qas": questions + impossible}]}]}
    path.write_text(json.dumps(content))
    return path


@pytest.mark.parametrize(
    ("prediction", "gold", "exact", "f1"),
    [
        ("The Broncos", ["Denver Broncos"], 0, 2 / 3),
        ("denver broncos.", ["Denver Broncos", "Broncos"], 1, 1),
        ("", ["Paris"], 0, 0),
        ("", [], 1, 1),
        ("Paris", [], 0, 0),
        ("a an the", ["the"], 1, 1),
        ("of of the king", ["king of of of"], 0, 6 / 7),
    ],
)
def test_hand_cases_of_exact_match_and_f1(prediction: str, gold: list[str], exact: float, f1: float) -> None:
    assert exact_match(prediction, gold) == exact
    assert answer_f1(prediction, gold) == pytest.approx(f1)


def second_f1(prediction: str, gold: str) -> float:
    """Overlap by removing matched words one by one, as the definition says in words."""

    def words(text: str) -> list[str]:
        text = re.sub(f"[{re.escape(string.punctuation)}]", "", text.lower())
        return [word for word in re.sub(r"\b(?:a|an|the)\b", " ", text).split() if word]

    left, found, total = words(gold), 0, len(words(prediction))
    gold_total = len(left)
    for word in words(prediction):
        if word in left:
            left.remove(word)
            found += 1
    if total == 0 or gold_total == 0:
        return float(total == gold_total)
    precision, recall = found / total, found / gold_total
    return 2 * precision * recall / (precision + recall) if found else 0.0


def test_f1_is_that_of_a_second_implementation() -> None:
    generator = torch.Generator().manual_seed(0)
    bag = ["the", "A", "king", "King.", "of", "France,", "in", "1492", "U.S.", "-", "an"]
    for _ in range(300):
        draws = [torch.randint(len(bag), (int(torch.randint(5, (), generator=generator)),), generator=generator)] * 1
        draws.append(torch.randint(len(bag), (3,), generator=generator))
        first, second = (" ".join(bag[index] for index in draw.tolist()) for draw in draws)
        assert answer_f1(first, [second]) == pytest.approx(second_f1(first, second))


def test_the_prediction_is_the_best_valid_span() -> None:
    values = torch.randn(20, 2, 9, generator=torch.Generator().manual_seed(1)) * 3
    answer = SpanAnswer(Categorical(logits=values), longest=3)
    found = predicted_outcome(answer)
    for row, (first, last) in zip(logits(answer), found.tolist(), strict=True):
        valid = [(a, b) for a in range(9) for b in range(a, min(a + 3, 9)) if a > 0 or b == 0]
        assert (first, last) == max(valid, key=lambda span: float(row[0, span[0]] + row[1, span[1]]))


def test_a_coarse_answer_bounds_the_divergence_from_below() -> None:
    source = torch.Generator().manual_seed(2)
    first, second = (SpanAnswer(Categorical(logits=torch.randn(6, 2, 100, generator=source) * 2), 30) for _ in range(2))
    coarse, other = coarsen(first, first, 4), coarsen(second, first, 4)
    assert logits(coarse).shape == (6, 2, 5)
    torch.testing.assert_close(logits(coarse).exp().sum(-1), torch.ones(6, 2))
    chosen = logits(first).gather(2, predicted_outcome(first)[..., None]).squeeze(-1)
    torch.testing.assert_close(logits(coarse)[..., 0], chosen)
    bound = divergence(coarse, other)
    assert (bound <= divergence(first, second) + 1e-5).all() and (bound > 0).all()


def test_the_answer_is_a_span_of_the_passage() -> None:
    task = make()
    batch = task.data["test"]
    assert batch.target.tolist() == [[9, 9], [10, 11]]
    answer = task.predict(batch)
    probabilities = logits(answer).exp()
    possible = torch.tensor([[column >= 6 and column < 16] for column in range(task.positions)]).squeeze()
    assert probabilities[0, :, ~possible].max() < 1e-12
    torch.testing.assert_close(probabilities.sum(-1), torch.ones(2, 2))
    assert torch.isfinite(divergence(answer, task.predict(batch.map(lambda value: value.flip(0))))).all()
    alone = task.predict(batch[:1])
    assert task.prediction(alone, task.texts["test"][0], [task.questions.rows[0][1]]).label in PASSAGE


def test_scores_are_f1_of_the_words() -> None:
    task = make()
    exact, f1 = task.exact_match_and_f1(task.data["test"])
    texts = [text for _, text in task.answers(task.data["test"])]
    assert f1 == pytest.approx(sum(answer_f1(text, [row[1]]) for text, row in zip(texts, ROWS, strict=True)) / 2)
    assert task.score(task.data["test"]) == f1 >= exact
    found = task.per_example_score(task.data["test"])
    assert found is not None and float(found.mean()) == pytest.approx(f1)


def test_deleted_tokens_do_not_move_the_answer() -> None:
    task = make()
    batch = task.data["test"][:1]
    deleted = torch.zeros_like(batch.maskable)
    deleted[0, 2] = True
    shorter = task.predict(delete_tokens(batch, deleted).trim())
    places = (logits(shorter).exp() > 1e-9).nonzero()[:, 2].unique().tolist()
    assert places == list(range(6, 16)), "positions of the passage are those of the unchanged row"


def test_a_long_passage_becomes_rows_whose_best_span_is_the_answer() -> None:
    long = " ".join([PASSAGE] * 4)
    task = make([(("is it good ?", long), None)], max_tokens=20)
    encoded = task.encode_examples([question_example("is it good ?", long)])
    assert len(encoded.encodings) > 2 and encoded.batch.tokens.shape[1] == 20
    answer = task.predict(encoded.batch)
    best = task.prediction(answer, task.texts["train"][0], encoded.encodings)
    assert best.probability == pytest.approx(float(predicted_spans(answer)[1].max()))
    found = Gradient().fit(task)(question="is it good ?", context=long)
    picture = "".join(piece for piece, _ in found.heatmap().sentence)
    assert f"«{best.label}»" in picture, "the answer is marked in the picture"
    assert found.prediction == best and len(found.units) > 40 and found.verified


def test_only_the_chosen_part_may_be_masked() -> None:
    question, passage, both = (make(segments=part).data["test"].maskable[0] for part in ("first", "second", "both"))
    assert question.nonzero().flatten().tolist() == [1, 2, 3, 4]
    assert (question | passage).equal(both) and not (question & passage).any()


def test_a_model_may_find_no_answer(tmp_path: Path) -> None:
    task = make(squad_file(tmp_path / "dev.json"), no_answer=True)
    assert task.data["test"].target.tolist() == [[9, 9], [0, 0]]
    sure = logits(task.predict(task.data["test"])).clone()
    sure[:, :, 0] = 99.0
    answer = task.distribution(sure)
    assert task.prediction(answer, task.texts["test"][0], [task.questions.rows[0][1]] * 2).label == "no answer"
    with pytest.raises(InputError, match="no_answer=True"):
        make(squad_file(tmp_path / "dev.json"))


def test_every_form_of_a_question_is_the_same_batch(tmp_path: Path) -> None:
    columns = {"question": ["is it good ?"], "context": [PASSAGE]}
    forms: list[Any] = [
        [(("is it good ?", PASSAGE), "great")],
        {**columns, "answers": [{"text": ["great"], "answer_start": [12]}]},
        [{"question": "is it good ?", "context": PASSAGE, "answers": ["great"]}],
        list(read_squad(squad_file(tmp_path / "train.json")))[:1],
    ]
    first, *others = (make(form).data["train"] for form in forms)
    for other in others:
        assert torch.equal(first.tokens, other.tokens) and torch.equal(first.target, other.target)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"question": "is it ?"}, "needs its passage"),
        ({"context": "it is"}, "'question' is missing"),
        ({"question": "is it ?", "text": "it is"}, "no field 'text'"),
        ({"question": "", "context": "it is"}, "question is empty"),
        ({"question": "is it ?", "context": " "}, "passage is empty"),
        ({"question": "is it good ? " * 40, "context": PASSAGE}, "leaves no room"),
    ],
)
def test_a_wrong_question_says_what_is_wrong(given: dict[str, str], message: str) -> None:
    explainer = Gradient().fit(make())
    with pytest.raises(InputError, match=message):
        explainer(**given)


def test_an_answer_that_is_not_in_the_passage_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not have the answer"):
        to_answers([{"text": "great", "answer_start": 3}], PASSAGE)
    (tmp_path / "dev.json").write_text('{"rows": []}')
    with pytest.raises(InputError, match="not SQuAD's JSON"):
        list(read_squad(tmp_path / "dev.json"))


@pytest.mark.filterwarnings("ignore::diffmask.errors.FitWarning")
def test_the_command_line_trains_fits_and_explains(tmp_path: Path) -> None:
    save_encoder(tmp_path / "encoder")
    rows = [
        {"question": "is it good ?", "context": f"the film is {word} . it was {other} .", "answers": word}
        for word, other in [("great", "fun"), ("dull", "bad"), ("good", "fast"), ("fun", "a mess")] * 6
    ]
    data = tmp_path / "data"
    data.mkdir()
    for split in ("train", "valid", "test"):
        (data / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    steps = [
        ["train", "--task", "question-answering", "--model", str(tmp_path / "encoder"), "--data", str(data),
         "--out", str(tmp_path / "qa"), "epochs=1", "batch_size=8"],
        ["fit", "--model", str(tmp_path / "qa"), "--data", str(data), "--out", str(tmp_path / "explainer"),
         "steps=2", "batch_size=8"],
        ["explain", str(tmp_path / "explainer"), "--question", "is it good ?", "--context", PASSAGE,
         "--data", str(data / "test.jsonl"), "--out", str(tmp_path / "scores.jsonl")],
    ]  # fmt: skip
    for step in steps:
        result = CliRunner().invoke(app, step)
        assert result.exit_code == 0, result.output
    assert "Prediction:" in result.output
    first = json.loads((tmp_path / "scores.jsonl").read_text().splitlines()[0])
    assert first["prediction"] in rows[0]["context"] and set(first["segments"]) == {0, 1}


def test_a_retrained_model_is_scored_on_the_same_questions() -> None:
    task = make(ROWS * 4)
    task.source = replace(task.source, tuning=replace(task.source.tuning, epochs=1, batch_size=4))
    with pytest.warns(UserWarning, match="unknown"):
        again = task.retrain({"train": task.data["train"], "valid": task.data["test"]}, seed=0)
    assert 0 <= again.score(task.data["test"]) <= 1
    assert task.roar_maskable(task.data["test"])[0].nonzero().flatten().tolist() == list(range(6, 16))
