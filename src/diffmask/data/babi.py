"""bABI 1-3: where is somebody, or something? Stories, questions, and the sentences that answer. Weston et al. 2015."""

import gzip
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from diffmask.data.worded import Worded, WordedData
from diffmask.errors import InputError

FILES = {
    1: "qa1_single-supporting-fact",
    2: "qa2_two-supporting-facts",
    3: "qa3_three-supporting-facts",
}
LOCATIONS = ("garden", "hallway", "kitchen", "office", "bedroom", "bathroom")
# fmt: off
OUTCOMES = (
    "put", "picked", "down", ".", "travelled", "was", "football", "got", "garden", "milk", "discarded", "is",
    "moved", "journeyed", "apple", "took", "Sandra", "before", "Mary", "Where", "John", "office", "there", "Daniel",
    "bathroom", "went", "left", "the", "back", "hallway", "dropped", "to", "bedroom", "kitchen", "grabbed", "up",
)
# fmt: on
"""Every word of the three tasks is an outcome, in the order of Madsen et al. 2022; only places are ever answers."""


@dataclass(frozen=True)
class Question:
    """A question, its answer, everything that was said before it, and which of it answers the question."""

    statements: tuple[str, ...]
    facts: tuple[int, ...]
    """Places among the statements."""
    question: str
    answer: str

    def worded(self) -> Worded:
        """The story's words with '.' between sentences; evidence are the words of the supporting facts."""
        words: list[str] = []
        evidence: list[bool] = []
        for place, statement in enumerate(self.statements):
            said = [*(["."] if place else []), *statement.split()]
            words += said
            evidence += [place in self.facts and word != "." for word in said]
        if self.answer not in LOCATIONS:
            raise InputError(f"'{self.answer}' is not a place of bABI's world: {', '.join(LOCATIONS)}")
        return Worded(tuple(words), tuple(self.question.split()), OUTCOMES.index(self.answer), tuple(evidence))


def parse(lines: Iterable[str]) -> Iterator[Question]:
    """The questions of a file; a line numbered 1 begins a story.

    >>> next(parse(["1 Mary moved to the bathroom.", "2 Where is Mary? \\tbathroom\\t1"]))
    Question(statements=('Mary moved to the bathroom',), facts=(0,), question='Where is Mary', answer='bathroom')
    """
    statements: dict[int, str] = {}
    for line in lines:
        number, _, text = line.strip().partition(" ")
        if int(number) == 1:
            statements = {}
        if "\t" not in text:
            statements[int(number)] = text.strip().removesuffix(".")
            continue
        question, answer, facts = text.split("\t")
        order = list(statements)
        yield Question(
            tuple(statements.values()),
            tuple(order.index(int(fact)) for fact in facts.split()),
            question.strip().removesuffix("?").strip(),
            answer,
        )


def read(folder: Path, task: int, split: str) -> list[Question]:
    """The questions of `train` or `test`, from a folder such as `en-10k`, packed or not."""
    places = [folder / f"{FILES[task]}_{split}.txt{end}" for end in (".gz", "")]
    found = next((place for place in places if place.is_file()), None)
    if found is None:
        raise InputError(f"there is no {places[0]} (nor {places[1].name}): give a folder of bABI such as en-10k")
    raw = gzip.decompress(found.read_bytes()) if found.suffix == ".gz" else found.read_bytes()
    return list(parse(raw.decode().strip().split("\n")))


def split_questions(questions: list[Question], test: list[Question]) -> WordedData:
    """85 and 15 % of the training questions, the very ones of Madsen et al. 2022, and the test questions."""
    order = np.random.RandomState(0).permutation(len(questions)).tolist()
    held_out = len(order) - len(order) * 85 // 100
    return WordedData(
        train=[questions[index].worded() for index in order[held_out:]],
        valid=[questions[index].worded() for index in order[:held_out]],
        test=[question.worded() for question in test],
        names=OUTCOMES,
    )


def load_babi(folder: Path, task: int) -> WordedData:
    """The three splits of a task, from its files."""
    return split_questions(read(folder, task, "train"), read(folder, task, "test"))
