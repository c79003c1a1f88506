"""Seeded prompts with planted facts: several short facts, a question about one of them, and the known answer."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from diffmask.errors import ConfigError


@dataclass(frozen=True)
class _Relation:
    """A kind of fact: its sentence, the question about it and the values it takes."""

    sentence: str
    question: str
    values: tuple[str, ...]


RELATIONS = (
    _Relation(
        "{name} lives in {value}.",
        "Where does {name} live?",
        ("Lisbon", "Oslo", "Nairobi", "Kyoto", "Lima", "Dublin", "Cairo", "Boston", "Prague", "Sydney"),
    ),
    _Relation(
        "{name} works as a {value}.",
        "What does {name} work as?",
        ("baker", "nurse", "pilot", "lawyer", "teacher", "farmer", "plumber", "painter", "dentist", "tailor"),
    ),
    _Relation(
        "{name} plays the {value}.",
        "Which instrument does {name} play?",
        ("violin", "piano", "flute", "guitar", "drums", "trumpet", "harp", "cello", "organ", "banjo"),
    ),
    _Relation(
        "{name} has a pet {value}.",
        "Which pet does {name} have?",
        ("rabbit", "parrot", "turtle", "cat", "dog", "snake", "hamster", "goldfish", "pony", "lizard"),
    ),
    _Relation(
        "{name} drives a {value} car.",
        "What is the colour of {name}'s car?",
        ("red", "blue", "green", "black", "white", "yellow", "silver", "brown", "purple", "orange"),
    ),
    _Relation(
        "{name} likes to eat {value}.",
        "What does {name} like to eat?",
        ("rice", "pizza", "soup", "cheese", "bread", "salad", "pasta", "fish", "apples", "noodles"),
    ),
)
NAMES = (
    "Maria", "Peter", "Anna", "Tom", "Lucy", "David", "Emma", "Jack", "Sarah", "Paul", "Julia", "Mark", "Laura",
    "Simon", "Alice", "Henry", "Clara", "Oscar", "Nina", "Victor",
)  # fmt: skip


@dataclass(frozen=True)
class PlantedFact:
    """One prompt with the number of the fact that answers it."""

    facts: tuple[str, ...]
    question: str
    answer: str
    """The word that a right response contains."""
    sentence: str
    """The answer as a sentence, which is the planted fact itself."""
    evidence: int
    """Number of the fact that is asked for, from 0."""

    @property
    def document(self) -> str:
        """The facts as one passage."""
        return " ".join(self.facts)

    def answered_by(self, response: str) -> bool:
        """Return whether a response contains the answer."""
        return self.answer.lower() in response.lower()


def planted_facts(count: int, seed: int = 0, *, facts: int | Sequence[int] = 6) -> Iterator[PlantedFact]:
    """Yield `count` prompts; every fact of a prompt is about another person, and each person has one fact.

    `facts` is the number of facts of each prompt, or the numbers to choose from. Several facts of a prompt may be of
    one kind with different values, so that only the name decides.

    >>> next(planted_facts(1)).question == next(planted_facts(1)).question
    True
    """
    sizes = (facts,) if isinstance(facts, int) else tuple(facts)
    if min(sizes, default=0) < 1 or max(sizes) > len(NAMES):
        raise ConfigError(f"planted facts: a prompt has 1 to {len(NAMES)} facts; found {facts}")
    source = random.Random(f"planted facts {seed}")
    for _ in range(count):
        yield _prompt(source, source.choice(sizes))


def _prompt(source: random.Random, size: int) -> PlantedFact:
    chosen: list[tuple[str, _Relation, str]] = []
    for name in source.sample(NAMES, size):
        relation = source.choice(RELATIONS)
        taken = {value for _, other, value in chosen if other is relation}
        chosen.append((name, relation, source.choice([value for value in relation.values if value not in taken])))
    evidence = source.randrange(size)
    sentences = tuple(relation.sentence.format(name=name, value=value) for name, relation, value in chosen)
    name, relation, value = chosen[evidence]
    return PlantedFact(sentences, relation.question.format(name=name), value, sentences[evidence], evidence)
