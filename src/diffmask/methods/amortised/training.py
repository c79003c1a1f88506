"""How much a fit may cost: texts, seconds, or minutes.

One run of learning: ask about new texts, learn from them and earlier ones, look at held-out texts.
"""

import copy
import math
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Generic, Literal, Protocol, TypeVar, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from diffmask.core.batch import Batch
from diffmask.errors import ConfigError
from diffmask.methods.amortised.network import Reading

UNITS = {"s": 1, "sec": 1, "min": 60, "h": 3600}


@dataclass(frozen=True)
class Budget:
    """A number of texts or of seconds, whichever is spent first."""

    texts: float = math.inf
    seconds: float = math.inf

    def share(self, texts: int, seconds: float) -> float:
        """How much of it is spent, 1 being all."""
        return max(texts / self.texts, seconds / self.seconds)


def parse_budget(text: str) -> Budget:
    """A budget as people write it. Only one in texts gives the same explainer twice.

    >>> parse_budget("5min"), parse_budget("3000 texts")
    (Budget(texts=inf, seconds=300.0), Budget(texts=3000.0, seconds=inf))
    """
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", text)
    amount, unit = (float(found[1]), found[2]) if found else (0.0, "")
    if amount > 0 and unit in ("", "text", "texts"):
        return Budget(texts=amount)
    if amount > 0 and unit in UNITS:
        return Budget(seconds=amount * UNITS[unit])
    raise ConfigError(f"'{text}' is no budget; write '5min', '90s' or '3000 texts'")


@runtime_checkable
class HasReading(Protocol):
    """Something to learn from a few texts."""

    @property
    def reading(self) -> Reading:
        """What a student reads of them."""


Lesson = TypeVar("Lesson", bound=HasReading)
Learner = TypeVar("Learner", bound=nn.Module)


class Objective(ABC, Generic[Learner, Lesson]):
    """What a student is to learn: lessons, each from a few texts, and how far it is from knowing one."""

    @abstractmethod
    def ask(self, batch: Batch) -> Lesson:
        """What there is to learn from a few texts; this is what costs."""

    @abstractmethod
    def loss(self, student: Learner, lesson: Lesson) -> Float[Tensor, "row copy"]:
        """0 where nothing is left to learn."""


@dataclass(frozen=True)
class Schedule:
    """What a fit is allowed and how it goes about it."""

    budget: Budget
    updates: int
    """Steps of the optimiser for each lesson asked for."""
    replay: int
    """Tokens whose states are kept to be learned from again; the oldest lessons go first."""
    learning_rate: float
    patience: int
    """Looks at the held-out lessons without gain after which the fit stops."""
    looks: int = 16
    """Looks that the budget is divided into."""
    weight_decay: float = 0.01


class Fit(Generic[Learner, Lesson]):
    """Steps on lessons drawn from a replay; what is looked at and kept is a moving average of the weights."""

    def __init__(
        self,
        student: Learner,
        course: Objective[Learner, Lesson],
        schedule: Schedule,
        held_out: list[Lesson],
        source: torch.Generator,
        start: float,
    ) -> None:
        self.student, self.course, self.schedule, self.held_out = student, course, schedule, held_out
        self.source = source
        self.steady = copy.deepcopy(student)
        self.optimizer = torch.optim.AdamW(
            student.parameters(), lr=schedule.learning_rate, weight_decay=schedule.weight_decay
        )
        self.lessons: list[Lesson] = []
        self.curve: list[dict[str, float]] = []
        self.texts = self.steps = 0
        self.start = start

    def run(self, batches: Iterator[Batch], keep: Literal["best", "last"] = "best") -> None:
        """Until the budget is spent or held-out texts say that it is enough; then their best weights, or the last."""
        best = self.steady.state_dict()
        self._look()
        while not self.texts or not self._enough():  # a budget spent before the first text still buys one batch
            batch = next(batches)
            self.lessons.append(self.course.ask(batch))
            self._forget()
            self.texts += len(batch)
            for _ in range(self.schedule.updates):
                self._update()
            if self._share() >= len(self.curve) / self.schedule.looks:
                self._look()
                if self.best == len(self.curve) - 1:
                    best = copy.deepcopy(self.steady.state_dict())
        self.student.load_state_dict(best if keep == "best" else self.steady.state_dict())

    @property
    def best(self) -> int:
        """The look with the smallest error, the one before anything was learned set aside."""
        errors = [point["error"] for point in self.curve[1:]]
        return 1 + errors.index(min(errors)) if errors else 0

    def findings(self) -> dict[str, object]:
        """The learning curve, and whether more would help: the last quarter of it still gained a hundredth."""
        quarter = self.curve[max(1, self.best - len(self.curve) // 4)]["error"]
        still = self.best == len(self.curve) - 1 and quarter > 1.01 * self.curve[self.best]["error"]
        return {"curve": self.curve, "more_would_help": still}

    def _share(self) -> float:
        return min(1.0, self.schedule.budget.share(self.texts, time.perf_counter() - self.start))

    def _enough(self) -> bool:
        return self._share() >= 1 or len(self.curve) - 1 - self.best >= self.schedule.patience

    def _forget(self) -> None:
        sizes = [lesson.reading.present.numel() for lesson in self.lessons]
        while len(sizes) > 1 and sum(sizes) > self.schedule.replay:
            del self.lessons[0], sizes[0]

    def _update(self) -> None:
        """One step on a lesson drawn from the replay."""
        for group in self.optimizer.param_groups:
            group["lr"] = self.schedule.learning_rate * _rate(self._share(), self.steps)
        drawn = int(torch.randint(len(self.lessons), (1,), generator=self.source))
        self.optimizer.zero_grad()
        self.course.loss(self.student, self.lessons[drawn]).mean().backward()
        nn.utils.clip_grad_norm_(self.student.parameters(), 1.0)
        self.optimizer.step()
        self.steps += 1
        memory = min(0.99, self.steps / (self.steps + 10))
        with torch.no_grad():
            for slow, fast in zip(self.steady.parameters(), self.student.parameters(), strict=True):
                slow.lerp_(fast, 1 - memory)

    @torch.no_grad()
    def _look(self) -> None:
        """A point of the learning curve."""
        losses = torch.cat([self.course.loss(self.steady, lesson).flatten() for lesson in self.held_out])
        seconds = time.perf_counter() - self.start
        self.curve.append({"texts": self.texts, "seconds": round(seconds, 3), "error": losses.mean().item()})


RISE = 100
"""Steps until the learning rate is at its highest."""
RISE_SHARE = 0.2
"""Share of the budget after which it is, where that comes first."""


def _rate(share: float, steps: int) -> float:
    """Share of the highest learning rate: a rise, then half a cosine.

    >>> [round(_rate(share, steps), 2) for share, steps in ((0.0, 49), (0.1, 9), (0.5, 999), (1.0, 1999))]
    [0.5, 0.49, 0.5, 0.02]
    """
    risen = max((steps + 1) / RISE, share / RISE_SHARE)
    return min(1.0, risen) * max(0.02, 0.5 * (1 + math.cos(math.pi * share)))
