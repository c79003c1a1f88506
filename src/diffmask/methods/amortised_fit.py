"""Learning without a teacher: scores must add up to the model's answer on masked copies. Jethani et al. 2022."""

import copy
import math
import time
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from diffmask.answer import divergence
from diffmask.batch import Batch
from diffmask.methods.amortised_answer import rebuilt
from diffmask.methods.amortised_budget import Budget
from diffmask.methods.amortised_lesson import Lesson, Questioner
from diffmask.methods.amortised_student import Student
from diffmask.training import endless


@dataclass(frozen=True)
class Schedule:
    """What a fit is allowed and how it goes about it."""

    budget: Budget
    batch_size: int
    updates: int
    """Steps of the optimiser for each batch of texts asked about."""
    replay: int
    """Lessons that are kept to be learned again."""
    learning_rate: float
    patience: int
    """Looks at the held-out texts without gain after which the fit stops."""
    look_every: float
    """Share of the budget between two looks."""


class Fit:
    """One run: ask about new texts, learn from them and from earlier ones, look at held-out texts now and then."""

    def __init__(self, student: Student, questioner: Questioner, schedule: Schedule, held_out: list[Lesson]) -> None:
        self.student, self.questioner, self.schedule, self.held_out = student, questioner, schedule, held_out
        self.steady = copy.deepcopy(student)
        """Moving average of the weights: what is looked at and kept."""
        self.optimizer = torch.optim.AdamW(student.parameters(), lr=schedule.learning_rate, weight_decay=0.01)
        self.lessons: list[Lesson] = []
        self.curve: list[dict[str, float]] = []
        self.texts = self.steps = 0
        self.start = time.perf_counter()

    def run(self, data: Batch) -> None:
        """Until the budget is spent, or held-out texts say that it is enough; the best weights are kept."""
        schedule, best = self.schedule, copy.deepcopy(self.steady.state_dict())
        batches = endless(data, schedule.batch_size, self.questioner.source, pool=16)
        self._look()
        while not self._enough():
            batch = next(batches)
            self.lessons = [*self.lessons[-schedule.replay + 1 :], self.questioner.ask(batch)]
            self.texts += len(batch)
            for _ in range(schedule.updates):
                self._update()
            if self._share() >= len(self.curve) * schedule.look_every:
                self._look()
                if self._best() == len(self.curve) - 1:
                    best = copy.deepcopy(self.steady.state_dict())
        self.student.load_state_dict(best)

    def _share(self) -> float:
        return min(1.0, self.schedule.budget.share(self.texts, time.perf_counter() - self.start))

    def _enough(self) -> bool:
        return self._share() >= 1 or len(self.curve) - 1 - self._best() >= self.schedule.patience

    def _best(self) -> int:
        """The look with the smallest error, the one before anything was learned set aside."""
        errors = [point["error"] for point in self.curve[1:]]
        return 1 + errors.index(min(errors)) if errors else 0

    def _update(self) -> None:
        """One step on a lesson drawn from the replay."""
        for group in self.optimizer.param_groups:
            group["lr"] = self.schedule.learning_rate * _rate(self._share(), self.steps)
        drawn = torch.randint(len(self.lessons), (1,), generator=self.questioner.source)
        self.optimizer.zero_grad()
        loss(self.student, self.lessons[int(drawn)]).mean().backward()
        self.optimizer.step()
        self.steps += 1
        memory = min(0.99, self.steps / (self.steps + 10))
        with torch.no_grad():
            for slow, fast in zip(self.steady.parameters(), self.student.parameters(), strict=True):
                slow.lerp_(fast, 1 - memory)

    @torch.no_grad()
    def _look(self) -> None:
        """A point of the learning curve."""
        error = torch.cat([loss(self.steady, lesson).flatten() for lesson in self.held_out]).mean().item()
        seconds = time.perf_counter() - self.start
        self.curve.append({"texts": self.texts, "seconds": seconds, "error": error})


def additive(student: Student, lesson: Lesson) -> Float[Tensor, "row copy feature"]:
    """f(nothing) + the sum of the kept tokens' scores."""
    scores = student(lesson.read(), lesson.present)
    return lesson.empty[:, None] + lesson.kept.to(scores) @ scores


def loss(student: Student, lesson: Lesson) -> Float[Tensor, "row copy"]:
    """KL(the model's answer to a masked copy || the answer that the scores add up to)."""
    found, told = additive(student, lesson).flatten(0, 1), lesson.told.flatten(0, 1)
    caused = divergence(rebuilt(lesson.kind, told), rebuilt(lesson.kind, found))
    return caused.unflatten(0, lesson.kept.shape[:2])


def _rate(share: float, steps: int) -> float:
    """Share of the highest learning rate: a short rise, then half a cosine."""
    return min(1.0, (steps + 1) / 20) * max(0.02, 0.5 * (1 + math.cos(math.pi * share)))
