"""bABI 1-3: where is somebody, or something? Stories, questions, and the sentences that answer. Weston et al. 2015.

bABI stories of our own: four people in six rooms, three things to carry, and who is where. Weston et al. 2015.

The released stories come from a generator that was never published. This one follows what can be read off them: two
statements at a time, then a question if one with exactly as many supporting facts as the task asks for can be asked.
"""

import gzip
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

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
"""Every word of the three tasks is an outcome, in the order of Madsen et al. 2022; only places are ever answers."""


@dataclass(frozen=True)
class Question:
    """A question, its answer, everything that was said before it, and which of it answers the question."""

    statements: tuple[str, ...]
    facts: tuple[int, ...]
    """Places among the statements."""
    question: str
    answer: str

    def tokenized(self) -> TokenizedExample:
        """The story's words with '.' between sentences; evidence are the words of the supporting facts."""
        words: list[str] = []
        evidence: list[bool] = []
        for place, statement in enumerate(self.statements):
            said = [*(["."] if place else []), *statement.split()]
            words += said
            evidence += [place in self.facts and word != "." for word in said]
        if self.answer not in LOCATIONS:
            raise InputError(f"'{self.answer}' is not a place of bABI's world: {', '.join(LOCATIONS)}")
        return TokenizedExample(
            tuple(words), tuple(self.question.split()), OUTCOMES.index(self.answer), tuple(evidence)
        )


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


def split_questions(questions: list[Question], test: list[Question]) -> TokenizedData:
    """85 and 15 % of the training questions, the very ones of Madsen et al. 2022, and the test questions."""
    order = np.random.RandomState(0).permutation(len(questions)).tolist()
    held_out = len(order) - len(order) * 85 // 100
    return TokenizedData(
        train=[questions[index].tokenized() for index in order[held_out:]],
        valid=[questions[index].tokenized() for index in order[:held_out]],
        test=[question.tokenized() for question in test],
        names=OUTCOMES,
    )


def load_babi(folder: Path, task: int) -> TokenizedData:
    """The three splits of a task, from its files."""
    return split_questions(read(folder, task, "train"), read(folder, task, "test"))


PEOPLE = ("John", "Mary", "Sandra", "Daniel")
THINGS = ("apple", "football", "milk")
MOVES = ("went to", "went back to", "moved to", "travelled to", "journeyed to")
GETS = ("got", "took", "grabbed", "picked up")
DROPS = ("dropped", "discarded", "left", "put down")
QUESTIONS = 5


@dataclass(frozen=True)
class World:
    """How often things happen."""

    move: float
    """Share of statements in which somebody moves, where somebody could also take or drop something."""
    there_got: float
    """Share of takings that end in 'there'."""
    there_dropped: float
    """Share of droppings that end in 'there'."""
    old: float
    """Share of questions that may be about a thing that nobody touched since the last question."""


WORLDS = {1: World(1.0, 0.0, 0.0, 1.0), 2: World(0.63, 1.0, 0.2, 0.64), 3: World(0.63, 0.19, 0.21, 0.42)}


@dataclass(frozen=True)
class Move:
    """A statement by which a person's place is known."""

    line: int
    place: str


@dataclass(frozen=True)
class Touch:
    """The last taking or dropping of a thing."""

    line: int
    person: str
    dropped: bool
    taken: int
    """The statement in which it was taken."""


@dataclass
class Story:
    """What was said so far, what is true, and what can be known from what was said."""

    source: random.Random
    world: World
    said: list[str] = field(default_factory=list)
    moves: dict[str, list[Move]] = field(default_factory=lambda: {person: [] for person in PEOPLE})
    touched: dict[str, Touch] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.place = {name: self.source.choice(LOCATIONS) for name in (*PEOPLE, *THINGS)}
        self.holder: dict[str, str] = {}

    def go_on(self) -> None:
        """One more statement: somebody takes something that is where they are, drops something, or moves."""
        gets = [(person, thing) for person in PEOPLE for thing in THINGS if self._can_get(person, thing)]
        drops = [(person, thing) for thing, person in self.holder.items()]
        if self.source.random() < self.world.move or not gets + drops:
            self.move()
        elif self.source.choice([chosen for chosen in (gets, drops) if chosen]) is gets:
            self.get(*self.source.choice(gets))
        else:
            self.drop(*self.source.choice(drops))

    def move(self) -> None:
        """Somebody goes to a place where they are not."""
        person = self.source.choice(PEOPLE)
        place = self.source.choice([name for name in LOCATIONS if name != self.place[person]])
        self.place[person] = place
        self.moves[person].append(Move(len(self.said), place))
        self.said.append(f"{person} {self.source.choice(MOVES)} the {place}")

    def get(self, person: str, thing: str) -> None:
        """A thing goes along with a person from now on."""
        self.holder[thing] = person
        self.touched[thing] = Touch(len(self.said), person, False, len(self.said))
        self._say(person, GETS, thing, self.world.there_got)

    def drop(self, person: str, thing: str) -> None:
        """A thing stays where it is from now on."""
        del self.holder[thing]
        self.place[thing] = self.place[person]
        self.touched[thing] = Touch(len(self.said), person, True, self.touched[thing].taken)
        self._say(person, DROPS, thing, self.world.there_dropped)

    def _can_get(self, person: str, thing: str) -> bool:
        return thing not in self.holder and self.place[thing] == self.place[person]

    def _say(self, person: str, verbs: tuple[str, ...], thing: str, there: float) -> None:
        end = " there" if self.source.random() < there else ""
        self.said.append(f"{person} {self.source.choice(verbs)} the {thing}{end}")

    def ask(self, facts: tuple[int, ...], question: str, answer: str) -> Question:
        """A question about what was said so far."""
        return Question(tuple(self.said), facts, question, answer)


def somebody(story: Story, since: int) -> list[Question]:
    """Task 1: where is a person who has moved? The last move says it."""
    known = [(person, moves[-1]) for person, moves in story.moves.items() if moves]
    return [story.ask((move.line,), f"Where is {person}", move.place) for person, move in known]


def something(story: Story, since: int) -> list[Question]:
    """Task 2: where is a thing? Who holds or dropped it, and their last move until then."""
    found = []
    for thing, touch in story.touched.items():
        moves = [move for move in story.moves[touch.person] if (move.line < touch.line) == touch.dropped]
        if moves and touch.line >= since:
            found.append(story.ask((touch.line, moves[-1].line), f"Where is the {thing}", moves[-1].place))
    return found


def something_before(story: Story, since: int) -> list[Question]:
    """Task 3: where was a thing before it was somewhere? Who held it, and two moves with it in hand."""
    found = []
    for thing, touch in story.touched.items():
        moves = [
            move
            for move in story.moves[touch.person]
            if move.line > touch.taken and (not touch.dropped or move.line < touch.line)
        ]
        if len(moves) >= 2 and touch.line >= since:
            # The last two places most often; one time in five an earlier pair.
            last = len(moves) - 1 if story.source.random() < 0.8 else story.source.randrange(1, len(moves))
            before, after = moves[last - 1], moves[last]
            facts = (touch.line, after.line, before.line)
            found.append(story.ask(facts, f"Where was the {thing} before the {after.place}", before.place))
    return found


ASKING: dict[int, Callable[[Story, int], list[Question]]] = {1: somebody, 2: something, 3: something_before}


def tell(task: int, source: random.Random) -> Iterator[Question]:
    """The five questions of one story."""
    story, since, asked = Story(source, WORLDS[task]), 0, 0
    while asked < QUESTIONS:
        story.go_on()
        story.go_on()
        possible = ASKING[task](story, since)
        if possible:
            yield source.choice(possible)
            asked += 1
            since = 0 if source.random() < story.world.old else len(story.said)


def draw(task: int, questions: int, seed: int) -> list[Question]:
    """So many questions, five a story."""
    source = random.Random(seed)
    return [question for _ in range(-(-questions // QUESTIONS)) for question in tell(task, source)][:questions]


def generate_babi(task: int) -> TokenizedData:
    """As many as were published: 10,000 and 1,000 questions."""
    return split_questions(draw(task, 10_000, seed=1), draw(task, 1_000, seed=2))
