"""Benches beside a bench: over a changed copy of its task, or over the same task at another seed."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from diffmask.core.config import Config, digest_of
from diffmask.core.task import Task, copy_task
from diffmask.workspace.workspace import Workspace


@dataclass(frozen=True, kw_only=True)
class TaskModification(Config, ABC):
    """The choices that turn a copy of a task into another one."""

    kind: ClassVar[str] = "change"

    @abstractmethod
    def apply(self, task: Task, seed: int) -> None:
        """Change the copy's rows; made again whenever the copy is needed."""

    @abstractmethod
    def train(self, task: Task, seed: int) -> None:
        """Change the copy's weights; made once and kept."""


@dataclass(frozen=True, kw_only=True)
class ModifiedWorkspace(Workspace):
    """A bench over a changed copy of another bench's task; the copy is an artefact that all methods share."""

    original: Workspace
    change: TaskModification

    @staticmethod
    def of(original: Workspace, change: TaskModification) -> "ModifiedWorkspace":
        """The bench at the same seed over the same store; one a change, which holds the copy it has made."""
        made = ModifiedWorkspace(
            store=original.store, task_config=original.task_config, seed=original.seed, original=original, change=change
        )
        return original._live.setdefault(f"changed {change.digest}", made)

    def task_digest(self) -> str:
        """A name for the changed task."""
        return digest_of(["changed", self.original.task_digest(), self.change.digest])

    def training_digest(self) -> str:
        """What is learned from the copy is learned from no other; a change may look at all rows."""
        return self.task_digest()

    def build(self) -> Task:
        """The copy with its own rows."""
        task = copy_task(self.original.task())
        self.change.apply(task, self.seed)
        return task

    def train(self, task: Task) -> None:
        """Its own weights."""
        self.change.train(task, self.seed)


@dataclass(frozen=True, kw_only=True)
class ReseededWorkspace(Workspace):
    """A bench over the very task of another, at which methods are fitted with another seed."""

    original: Workspace

    @staticmethod
    def of(original: Workspace, seed: int) -> "ReseededWorkspace":
        """The bench at that seed over the same store."""
        return ReseededWorkspace(store=original.store, task_config=original.task_config, seed=seed, original=original)

    def task_digest(self) -> str:
        """A name for the task at this seed."""
        return digest_of(["reseeded", self.original.task_digest(), self.seed])

    def training_digest(self) -> str:
        """The original's model, whatever the recipe would train at this seed."""
        return digest_of(["reseeded", self.original.training_digest(), self.seed])

    def task(self) -> Task:
        """The original's own."""
        return self.original.task()
