"""bABI stories of our own: four people in six rooms, three things to carry, and who is where. Weston et al. 2015."""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

from diffmask.data.babi import LOCATIONS, Question, split_questions
from diffmask.data.worded import WordedData

PEOPLE = ("John", "Mary", "Sandra", "Daniel")
MOVES = ("went to", "went back to", "moved to", "travelled to", "journeyed to")
QUESTIONS = 5


@dataclass
class Story:
    """What was said so far, and what it means."""

    source: random.Random
    said: list[str] = field(default_factory=list)
    where: dict[str, str] = field(default_factory=dict)
    """Each person's place, once it was said."""
    fact: dict[str, int] = field(default_factory=dict)
    """The statement that said it."""

    def move(self) -> None:
        """Somebody goes to a place where they are not."""
        person = self.source.choice(PEOPLE)
        place = self.source.choice([name for name in LOCATIONS if name != self.where.get(person)])
        self.where[person], self.fact[person] = place, len(self.said)
        self.said.append(f"{person} {self.source.choice(MOVES)} the {place}")


def whereabouts(source: random.Random) -> Iterator[Question]:
    """Task 1: five times two moves and a question about somebody who has moved."""
    story = Story(source)
    for _ in range(QUESTIONS):
        story.move()
        story.move()
        person = source.choice([name for name in PEOPLE if name in story.where])
        yield Question(tuple(story.said), (story.fact[person],), f"Where is {person}", story.where[person])


def draw(task: int, questions: int, seed: int) -> list[Question]:
    """So many questions."""
    source = random.Random(seed)
    return [question for _ in range(-(-questions // QUESTIONS)) for question in whereabouts(source)][:questions]


def load(task: int) -> WordedData:
    """As many as were published: 10,000 and 1,000 questions."""
    return split_questions(draw(task, 10_000, seed=1), draw(task, 1_000, seed=2))
