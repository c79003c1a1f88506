"""Masked language models, sentence encoders and multiple choice."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import AutoModel, AutoModelForMaskedLM, AutoModelForMultipleChoice

from diffmask.core.distributions import divergence, logits
from diffmask.errors import InputError, TaskError
from diffmask.methods.leave_one_out import LeaveOneOut
from diffmask.tasks.masked_word import MaskedWord
from diffmask.tasks.multiple_choice import MultipleChoice
from diffmask.tasks.sentence_similarity import OTHER, SentenceSimilarity
from support.tiny_models import tiny_model, word_pieces

TEXTS = [("the film is [MASK]", "good"), ("a very [MASK] mess", "dull")]
PAIRS = [(("the film is good", "a great movie"), 0.9), (("the film is good", "i hated it"), 0.1)]


def blanks() -> MaskedWord:
    return MaskedWord(tiny_model("bert", head=AutoModelForMaskedLM), word_pieces(), train=TEXTS, test=TEXTS)


def pairs() -> SentenceSimilarity:
    return SentenceSimilarity(tiny_model("bert", head=AutoModel), word_pieces(), train=PAIRS, test=PAIRS)


def test_the_blank_is_predicted_and_never_masked() -> None:
    task = blanks()
    batch = task.data["test"]
    assert batch.tokens[0, 4] == task.mask_token and not batch.maskable[0, 4] and batch.maskable[0, 1:4].all()
    task.model.eval()
    whole = task.model(**task.model_inputs(batch[:1])).logits[0, 4].log_softmax(-1)
    torch.testing.assert_close(logits(task.predict(batch[:1]))[0], whole, rtol=1e-4, atol=1e-4)
    assert task.outcomes(batch.target) == ["good", "dull"] and task.score(batch) in (0.0, 0.5, 1.0)
    erased = replace(batch, tokens=batch.tokens.masked_fill(batch.maskable, 4))
    assert logits(task.predict(erased)).shape[0] == 2, "other erased words do not become the blank"


def test_a_blank_is_explained_and_verified() -> None:
    task = blanks()
    found = LeaveOneOut().fit(task)("the plot was [MASK] !")
    assert found.words == ("the", "plot", "was", "!") and found.verified
    assert found.prediction.label in task.tokenizer.get_vocab()


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("the film is good", "needs one blank"),
        ("[MASK] [MASK]", "found 2"),
        (("[MASK] film", "enjoyable"), "not one token"),
    ],
)
def test_a_wrong_blank_says_what_is_wrong(row: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        MaskedWord(tiny_model("bert", head=AutoModelForMaskedLM), word_pieces(), train=[row])


def test_a_similarity_is_the_cosine_of_two_encodings() -> None:
    task = pairs()
    batch = task.data["test"]
    task.model.eval()
    first, second = task.embed(batch[:1]), task.embed(task.encode([("a great movie", ".")]))
    torch.testing.assert_close(batch.inputs[OTHER][:1], second, rtol=1e-4, atol=1e-4)
    cosine = torch.nn.functional.cosine_similarity(first, second)
    torch.testing.assert_close(task.predict(batch[:1]).mean[:, 0], cosine, rtol=1e-4, atol=1e-4)
    changed = divergence(task.predict(batch[:1]), task.predict(batch[1:]))
    difference = task.predict(batch[:1]).mean - task.predict(batch[1:]).mean
    torch.testing.assert_close(changed, (difference[:, 0] / 0.1) ** 2 / 2, rtol=1e-3, atol=1e-4)


def test_a_similarity_is_explained_and_verified() -> None:
    task = pairs()
    found = LeaveOneOut().fit(task)(text="the film is good", pair="a great movie")
    assert found.words == ("the", "film", "is", "good") and found.verified
    assert found.prediction.label.startswith("similarity")
    assert abs(task.score(task.data["test"])) == pytest.approx(1.0, abs=1e-3), "two points lie on a line"
    with pytest.raises(InputError, match="two texts"):
        LeaveOneOut().fit(task)("the film")
    with pytest.raises(TaskError, match="ROAR"):
        task.retrain(task.data, 0)


CHOICES: list[dict[str, Any]] = [
    {"question": "is the film good", "choices": ["it is fun", "a mess"], "answer": 0},
    {"question": "was it dull", "choices": ["not very", "it was great and fun", "bad"], "answer": "bad"},
]


def choices() -> MultipleChoice:
    model = tiny_model("bert", 1, head=AutoModelForMultipleChoice)
    return MultipleChoice(model, word_pieces(segments=True), train=CHOICES, test=CHOICES)


def test_choices_are_answered_as_by_the_model_itself() -> None:
    task = choices()
    task.model.eval()
    for row, given in enumerate(CHOICES):
        pairs = [(given["question"], choice) for choice in given["choices"]]
        inputs = task.tokenizer(pairs, padding=True, return_tensors="pt")
        whole = task.model(**{name: value[None] for name, value in inputs.items()}).logits[0].log_softmax(-1)
        found = logits(task.predict(task.data["test"]))[row]
        torch.testing.assert_close(found[: len(pairs)], whole, rtol=1e-4, atol=1e-4)
        assert found[len(pairs) :].max() < -40, "choices that the row does not have"
    assert task.data["test"].target.tolist() == [0, 2]


def test_a_mask_of_the_shared_text_reaches_every_choice() -> None:
    task = choices()
    batch = task.data["test"]
    erased = batch.maskable & (torch.arange(batch.tokens.shape[1]) == 2)
    by_token = task.predict(replace(batch, tokens=batch.tokens.masked_fill(erased, task.mask_token or 0)))
    mask_state = task.model.get_input_embeddings().weight[task.mask_token]

    def edit(state: torch.Tensor) -> torch.Tensor:
        return torch.where(erased[..., None], mask_state, state)

    torch.testing.assert_close(logits(task.predict(batch, {"embedding": edit})), logits(by_token), rtol=1e-4, atol=1e-4)
    assert not torch.allclose(logits(by_token), logits(task.predict(batch)))
    answer, states = task.trace(batch)
    assert {state.shape[:2] for state in states.values()} == {batch.tokens.shape}
    torch.testing.assert_close(logits(answer), logits(task.predict(batch)))


def test_a_choice_is_explained_and_verified() -> None:
    task = choices()
    found = LeaveOneOut().fit(task)(question="is the film good", choices=["it is fun", "a mess"])
    assert found.words == ("is", "the", "film", "good") and found.verified
    assert found.prediction.label in ("it is fun", "a mess")
    with pytest.raises(InputError, match="1 choices"):
        LeaveOneOut().fit(task)(question="is it", choices=["it is fun"])
