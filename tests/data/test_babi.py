"""bABI from files and from the generator."""

import os
from collections import Counter
from pathlib import Path
from statistics import mean

import numpy as np
import pytest
from sklearn.model_selection import train_test_split

from diffmask.datasets import babi
from diffmask.datasets.tokenizers import Vocabulary

SHARED = Path(os.environ.get("DIFFMASK_DATA", Path(__file__).parents[2].parent / "shared" / "data"))
ANSWERS = {
    1: (1663, 1657, 1644, 1659, 1644, 1733),
    2: (1770, 1729, 1550, 1614, 1755, 1582),
    3: (1686, 1694, 1573, 1670, 1611, 1766),
}
"""Of the 10,000 released training questions; of task 3 only a tenth may be at hand, too few to count."""
LINES = """1 Mary moved to the bathroom.
2 John went to the hallway.
3 Where is Mary? \tbathroom\t1
4 Mary went back to the garden.
5 Where is Mary? \tgarden\t4
1 John moved to the office.
2 Where is John? \toffice\t1
""".splitlines()


def real(task: int, folder: str = "en-10k") -> list[babi.Question]:
    path = SHARED / "babi" / folder
    if not path.is_dir():
        pytest.skip("there is no babi in the data folder; set DIFFMASK_DATA")
    return babi.read_questions(path, task, "train")


def test_a_story_has_all_earlier_statements_and_no_questions() -> None:
    first, second, third = babi.parse_questions(LINES)
    assert first.statements == ("Mary moved to the bathroom", "John went to the hallway")
    assert second.statements[2] == "Mary went back to the garden"
    assert second.facts == (2,)
    assert third.statements == ("John moved to the office",)


def test_evidence_is_the_words_of_the_supporting_facts() -> None:
    _, second, _ = babi.parse_questions(LINES)
    text = second.tokenized()
    evidence = [word for word, needed in zip(text.words, text.evidence, strict=True) if needed]
    assert evidence == ["Mary", "went", "back", "to", "the", "garden"]
    assert text.pair == ("Where", "is", "Mary")
    assert babi.OUTCOMES[text.label] == "garden"


def test_a_location_has_its_published_index_among_the_classes() -> None:
    assert len(set(babi.OUTCOMES)) == 36
    assert [babi.OUTCOMES.index(location) for location in babi.LOCATIONS] == [8, 29, 33, 21, 32, 24]


def test_the_files_have_the_published_sizes_and_vocabulary() -> None:
    real(1)
    data = babi.load_babi(SHARED / "babi" / "en-10k", 1)
    assert [len(split) for split in data.splits().values()] == [8500, 1500, 1000]
    assert len(Vocabulary.of(data.train)) == 25
    assert mean(len(text.words) + 2 for text in data.train) == pytest.approx(38, abs=0.5)
    assert len(Vocabulary.of([question.tokenized() for question in real(2)])) == 39


def answer_from_the_facts(question: babi.Question) -> str:
    """Return the answer by a second implementation of the rules: the last location in the supporting facts."""
    places = [word for fact in question.facts for word in question.statements[fact].split() if word in babi.LOCATIONS]
    return places[-1]


@pytest.mark.parametrize("task", [1, 2, 3])
def test_generated_questions_are_answered_by_exactly_their_facts(task: int) -> None:
    for question in babi.generate_questions(task, 200, seed=3):
        assert len(question.facts) == task == len(set(question.facts))
        assert answer_from_the_facts(question) == question.answer


@pytest.mark.parametrize(("task", "folder"), [(1, "en-10k"), (2, "en-10k"), (3, "en")])
def test_generated_stories_have_the_statistics_of_the_released_ones(task: int, folder: str) -> None:
    released = real(task, folder)
    if task == 3:
        released += babi.read_questions(SHARED / "babi" / "en", 3, "test")
    generated = babi.generate_questions(task, 6000, seed=1)
    lengths = [
        mean(len(question.tokenized().words) + 2 for question in questions) for questions in (released, generated)
    ]
    assert lengths[1] == pytest.approx(lengths[0], rel=0.03)
    counts = Counter(question.answer for question in generated)
    for location, count in zip(babi.LOCATIONS, ANSWERS[task], strict=True):
        assert counts[location] / len(generated) == pytest.approx(count / 10_000, abs=0.03)
    vocabularies = [
        set(Vocabulary.of([question.tokenized() for question in questions]).words)
        for questions in (released, generated)
    ]
    assert vocabularies[0] == vocabularies[1]


def test_the_same_seed_generates_the_same_stories() -> None:
    assert babi.generate_questions(2, 20, seed=5) == babi.generate_questions(2, 20, seed=5)


def test_the_split_is_the_published_one() -> None:
    questions = babi.generate_questions(1, 40, seed=0)
    train, valid = train_test_split(questions, train_size=0.85, random_state=np.random.RandomState(0))
    data = babi.split_questions(questions, [])
    assert list(data.train) == [question.tokenized() for question in train]
    assert list(data.valid) == [question.tokenized() for question in valid]
