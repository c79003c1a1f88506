"""Learning from a teacher: the scores of slower methods, computed once, kept, and imitated."""

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.distributions import Distribution
from torch.nn.functional import smooth_l1_loss

from diffmask.answer import decision
from diffmask.batch import Batch
from diffmask.explainer import Explainer, Method
from diffmask.methods.amortised_answer import direction, numbers
from diffmask.methods.amortised_fit import Course
from diffmask.methods.amortised_student import Reading, Student, keep
from diffmask.recipe import digest_of
from diffmask.store import Artefact, Store
from diffmask.task import Task


@dataclass(frozen=True)
class Taught:
    """A few texts of like length, and the teachers' scores of them."""

    reading: Reading
    towards: Float[Tensor, "row feature"]
    maskable: Bool[Tensor, "row token"]
    scores: Float[Tensor, "row token"]


class Faculty:
    """One teacher, or the mean of several, each in units of its root mean square over a row's maskable tokens.

    Scores are kept in a store, batch by batch, by what they are made from: a fit that was interrupted goes on, and a
    second fit asks no teacher again.
    """

    def __init__(self, teachers: Sequence[Method], task: Task, store: Store) -> None:
        self.teachers, self.task, self.store = teachers, task, store
        self.fingerprint = task.fingerprint()
        self._explainers: dict[str, Explainer] = {}

    def scores(self, batch: Batch) -> Float[Tensor, "row token"]:
        """The mean of the teachers' scores for the model's own answers."""
        return torch.stack([self._scores(teacher, batch) for teacher in self.teachers]).mean(dim=0)

    def _scores(self, teacher: Method, batch: Batch) -> Float[Tensor, "row token"]:
        texts = hashlib.sha256(repr([batch.tokens.tolist(), batch.present.tolist()]).encode())
        for name, value in sorted({**batch.inputs, **batch.token_inputs}.items()):
            texts.update(repr((name, value.tolist())).encode())
        digest = digest_of(["teacher", self.fingerprint, teacher.digest, texts.hexdigest()])

        def make() -> Artefact:
            return Artefact({"scores": self._explainer(teacher)(batch).scores})

        found = self.store.get_or_make("teacher", digest, make).tensors["scores"].to(batch.tokens.device)
        count = batch.maskable.sum(dim=1, keepdim=True).clamp(min=1)
        size = (found.square().sum(dim=1, keepdim=True) / count).sqrt()
        return found / size.clamp(min=1e-9)

    def _explainer(self, teacher: Method) -> Explainer:
        """Fitted when it is first asked: not at all where every answer is known."""
        if teacher.digest not in self._explainers:
            self._explainers[teacher.digest] = teacher.fit(self.task)
        return self._explainers[teacher.digest]


@dataclass(frozen=True)
class Imitation(Course[Student, Taught]):
    """The student's score for the model's own answer is the teachers'."""

    task: Task
    sites: tuple[str, ...]
    faculty: Faculty

    @torch.no_grad()
    def ask(self, batch: Batch) -> Taught:
        """One clean pass, and whatever the teachers need."""
        answer, states = self.task.trace(batch)
        scores = self.faculty.scores(batch)
        return Taught(keep(states, self.sites, batch.present), own_direction(answer), batch.maskable, scores)

    def loss(self, student: Student, lesson: Taught) -> Float[Tensor, "row copy"]:
        """Smooth L1 over a row's maskable tokens."""
        found = (student(*lesson.reading.full()) * lesson.towards[:, None]).sum(dim=-1)
        error = smooth_l1_loss(found, lesson.scores.to(found), reduction="none") * lesson.maskable
        return error.sum(dim=1, keepdim=True) / lesson.maskable.sum(dim=1, keepdim=True).clamp(min=1)


def own_direction(answer: Distribution) -> Float[Tensor, "row feature"]:
    """Towards the model's own decision."""
    return direction(answer, torch.zeros_like(numbers(answer)), decision(answer))


def kept_scores() -> Store:
    """Where teachers' scores are kept: `$DIFFMASK_CACHE`, or a folder of the user's cache."""
    return Store(Path(os.environ.get("DIFFMASK_CACHE", Path.home() / ".cache" / "diffmask")))
