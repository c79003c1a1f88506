"""bABI tasks 1-3: where is a person or an object? Stories, questions and supporting facts. Weston et al. 2015.

`load_babi` reads the released files. Their generator was never published; `generate_babi` follows the rules that can be
read off them: two statements at a time, then a question if one with exactly as many supporting facts as the task
requires can be asked.
"""

import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from diffmask.datasets.tables import read_lines
from diffmask.datasets.tokenizers import TokenizedData, TokenizedExample
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
"""Classes in the order of Madsen et al. 2022: every word of the three tasks, although only locations are answers."""


@dataclass(frozen=True)
class Question:
    """Question with its answer, the statements before it and its supporting facts."""

    statements: tuple[str, ...]
    facts: tuple[int, ...]
    """Indices of the supporting statements."""
    question: str
    answer: str

    def tokenized(self) -> TokenizedExample:
        """Return the words of the story with '.' between sentences; evidence are the words of the supporting facts."""
        words: list[str] = []
        evidence: list[bool] = []
        for index, statement in enumerate(self.statements):
            sentence = [*(["."] if index else []), *statement.split()]
            words += sentence
            evidence += [index in self.facts and word != "." for word in sentence]
        if self.answer not in LOCATIONS:
            raise InputError(f"'{self.answer}' is not a location of bABI: {', '.join(LOCATIONS)}")
        return TokenizedExample(
            tuple(words), tuple(self.question.split()), OUTCOMES.index(self.answer), tuple(evidence)
        )


def parse_questions(lines: Iterable[str]) -> Iterator[Question]:
    """Parse the questions of a file; a line numbered 1 begins a story.

    >>> next(parse_questions(["1 Mary moved to the bathroom.", "2 Where is Mary? \\tbathroom\\t1"]))
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
        numbers = list(statements)
        yield Question(
            tuple(statements.values()),
            tuple(numbers.index(int(fact)) for fact in facts.split()),
            question.strip().removesuffix("?").strip(),
            answer,
        )


def read_questions(folder: Path, task: int, split: str) -> list[Question]:
    """Read the questions of `train` or `test` from a folder such as `en-10k`, with or without `.gz`."""
    candidates = [folder / f"{FILES[task]}_{split}.txt{end}" for end in (".gz", "")]
    file = next((path for path in candidates if path.is_file()), None)
    if file is None:
        raise InputError(f"there is no {candidates[0]} (nor {candidates[1].name}): give a folder such as en-10k")
    lines = [line for line in read_lines(file) if line.strip()]
    try:
        return list(parse_questions(lines))
    except ValueError as error:
        raise InputError(f"{file} is not in bABI's format: {error}") from None


def split_questions(questions: list[Question], test: list[Question]) -> TokenizedData:
    """Split the training questions 85 and 15 % into training and validation rows, exactly as Madsen et al. 2022."""
    order = np.random.RandomState(0).permutation(len(questions)).tolist()
    held_out = len(order) - len(order) * 85 // 100
    return TokenizedData(
        train=[questions[index].tokenized() for index in order[held_out:]],
        valid=[questions[index].tokenized() for index in order[:held_out]],
        test=[question.tokenized() for question in test],
        names=OUTCOMES,
    )


def load_babi(folder: Path, task: int) -> TokenizedData:
    """Load the three splits of a task from its files."""
    return split_questions(read_questions(folder, task, "train"), read_questions(folder, task, "test"))


PEOPLE = ("John", "Mary", "Sandra", "Daniel")
OBJECTS = ("apple", "football", "milk")
MOVE_VERBS = ("went to", "went back to", "moved to", "travelled to", "journeyed to")
TAKE_VERBS = ("got", "took", "grabbed", "picked up")
DROP_VERBS = ("dropped", "discarded", "left", "put down")
QUESTIONS_PER_STORY = 5


@dataclass(frozen=True)
class EventRates:
    """Probabilities of the events of a story, estimated from the released files."""

    move: float
    """Probability that a statement is a move, if an object could also be taken or dropped."""
    take_there: float
    """Probability that a statement about taking ends in 'there'."""
    drop_there: float
    """Probability that a statement about dropping ends in 'there'."""
    repeat: float
    """Probability that a question may be about an object that nobody touched since the last question."""


RATES = {
    1: EventRates(1.0, 0.0, 0.0, 1.0),
    2: EventRates(0.63, 1.0, 0.2, 0.64),
    3: EventRates(0.63, 0.19, 0.21, 0.42),
}


@dataclass(frozen=True)
class Move:
    """Statement about the location of a person."""

    line: int
    location: str


@dataclass(frozen=True)
class Transfer:
    """Last taking or dropping of an object."""

    line: int
    person: str
    dropped: bool
    taken: int
    """Statement in which the object was taken."""


@dataclass
class Story:
    """State of the world and the statements that describe it so far."""

    rng: random.Random
    rates: EventRates
    statements: list[str] = field(default_factory=list)
    moves: dict[str, list[Move]] = field(default_factory=lambda: {person: [] for person in PEOPLE})
    transfers: dict[str, Transfer] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.location = {name: self.rng.choice(LOCATIONS) for name in (*PEOPLE, *OBJECTS)}
        self.holder: dict[str, str] = {}

    def step(self) -> None:
        """Add one statement: a person takes an object at their location, drops one, or moves."""
        takes = [(person, item) for person in PEOPLE for item in OBJECTS if self._can_take(person, item)]
        drops = [(person, item) for item, person in self.holder.items()]
        if self.rng.random() < self.rates.move or not takes + drops:
            self.move()
        elif self.rng.choice([events for events in (takes, drops) if events]) is takes:
            self.take(*self.rng.choice(takes))
        else:
            self.drop(*self.rng.choice(drops))

    def move(self) -> None:
        """Move a random person to another location."""
        person = self.rng.choice(PEOPLE)
        location = self.rng.choice([name for name in LOCATIONS if name != self.location[person]])
        self.location[person] = location
        self.moves[person].append(Move(len(self.statements), location))
        self.statements.append(f"{person} {self.rng.choice(MOVE_VERBS)} the {location}")

    def take(self, person: str, item: str) -> None:
        """Let a person take an object, which moves with them from now on."""
        self.holder[item] = person
        self.transfers[item] = Transfer(len(self.statements), person, False, len(self.statements))
        self._state(person, TAKE_VERBS, item, self.rates.take_there)

    def drop(self, person: str, item: str) -> None:
        """Let a person drop an object at their location."""
        del self.holder[item]
        self.location[item] = self.location[person]
        self.transfers[item] = Transfer(len(self.statements), person, True, self.transfers[item].taken)
        self._state(person, DROP_VERBS, item, self.rates.drop_there)

    def _can_take(self, person: str, item: str) -> bool:
        return item not in self.holder and self.location[item] == self.location[person]

    def _state(self, person: str, verbs: tuple[str, ...], item: str, probability: float) -> None:
        end = " there" if self.rng.random() < probability else ""
        self.statements.append(f"{person} {self.rng.choice(verbs)} the {item}{end}")

    def ask(self, facts: tuple[int, ...], question: str, answer: str) -> Question:
        """Return a question about the statements so far."""
        return Question(tuple(self.statements), facts, question, answer)


def person_questions(story: Story, since: int) -> list[Question]:
    """Return the questions of task 1: where is a person? The fact is their last move."""
    located = [(person, moves[-1]) for person, moves in story.moves.items() if moves]
    return [story.ask((move.line,), f"Where is {person}", move.location) for person, move in located]


def object_questions(story: Story, since: int) -> list[Question]:
    """Return the questions of task 2: where is an object? The facts are its last transfer and that person's move."""
    questions = []
    for item, transfer in story.transfers.items():
        moves = [move for move in story.moves[transfer.person] if (move.line < transfer.line) == transfer.dropped]
        if moves and transfer.line >= since:
            facts = (transfer.line, moves[-1].line)
            questions.append(story.ask(facts, f"Where is the {item}", moves[-1].location))
    return questions


def previous_location_questions(story: Story, since: int) -> list[Question]:
    """Return the questions of task 3: where was an object before a location? The facts are a transfer and two moves."""
    questions = []
    for item, transfer in story.transfers.items():
        moves = [
            move
            for move in story.moves[transfer.person]
            if move.line > transfer.taken and (not transfer.dropped or move.line < transfer.line)
        ]
        if len(moves) >= 2 and transfer.line >= since:
            # Mostly the last two locations; in one of five questions an earlier pair.
            last = len(moves) - 1 if story.rng.random() < 0.8 else story.rng.randrange(1, len(moves))
            before, after = moves[last - 1], moves[last]
            facts = (transfer.line, after.line, before.line)
            questions.append(story.ask(facts, f"Where was the {item} before the {after.location}", before.location))
    return questions


POSSIBLE_QUESTIONS: dict[int, Callable[[Story, int], list[Question]]] = {
    1: person_questions,
    2: object_questions,
    3: previous_location_questions,
}


def generate_story(task: int, rng: random.Random) -> Iterator[Question]:
    """Generate one story and yield its five questions."""
    story, since, asked = Story(rng, RATES[task]), 0, 0
    while asked < QUESTIONS_PER_STORY:
        story.step()
        story.step()
        possible = POSSIBLE_QUESTIONS[task](story, since)
        if possible:
            yield rng.choice(possible)
            asked += 1
            since = 0 if rng.random() < story.rates.repeat else len(story.statements)


def generate_questions(task: int, count: int, seed: int) -> list[Question]:
    """Generate `count` questions, five per story."""
    rng = random.Random(seed)
    stories = range(-(-count // QUESTIONS_PER_STORY))
    return [question for _ in stories for question in generate_story(task, rng)][:count]


def generate_babi(task: int) -> TokenizedData:
    """Generate as many questions as were published: 10,000 for training and validation, 1,000 for the test."""
    return split_questions(generate_questions(task, 10_000, seed=1), generate_questions(task, 1_000, seed=2))
