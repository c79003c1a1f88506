"""Workspaces derived from another: over a modified copy of its task, or over the same task at another seed."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from diffmask.core.config import Config, digest_of
from diffmask.core.task import Task, copy_task
from diffmask.workspace.workspace import Workspace


@dataclass(frozen=True, kw_only=True)
class TaskModification(Config, ABC):
    """Config of a modification of a task's rows and weights."""

    kind: ClassVar[str] = "change"

    @abstractmethod
    def apply(self, task: Task, seed: int) -> None:
        """Modify the rows of a copy. Called whenever the copy is loaded."""

    @abstractmethod
    def train(self, task: Task, seed: int) -> None:
        """Modify the weights of a copy. Called once; the weights are cached."""


@dataclass(frozen=True, kw_only=True)
class ModifiedWorkspace(Workspace):
    """Workspace of a modified copy of another workspace's task. All methods share the copy."""

    original: Workspace
    change: TaskModification

    @staticmethod
    def of(original: Workspace, change: TaskModification) -> "ModifiedWorkspace":
        """Return the workspace at the same seed over the same store; the original keeps one per modification."""
        workspace = ModifiedWorkspace(
            store=original.store, task_config=original.task_config, seed=original.seed, original=original, change=change
        )
        return original._live.setdefault(f"changed {change.digest}", workspace)

    def task_digest(self) -> str:
        """Return the cache key of the modified task."""
        return digest_of(["changed", self.original.task_digest(), self.change.digest])

    def training_digest(self) -> str:
        """Return the key of the modified task: a modification may depend on all rows."""
        return self.task_digest()

    def build(self) -> Task:
        """Return the copy with modified rows."""
        task = copy_task(self.original.task())
        self.change.apply(task, self.seed)
        return task

    def train(self, task: Task) -> None:
        """Modify the weights."""
        self.change.train(task, self.seed)

    def _trains(self) -> bool:
        return True


@dataclass(frozen=True, kw_only=True)
class ReseededWorkspace(Workspace):
    """Workspace of the same task in which methods are fitted with another seed."""

    original: Workspace

    @staticmethod
    def of(original: Workspace, seed: int) -> "ReseededWorkspace":
        """Return the workspace at that seed over the same store."""
        return ReseededWorkspace(store=original.store, task_config=original.task_config, seed=seed, original=original)

    def task_digest(self) -> str:
        """Return the cache key of the task at this seed."""
        return digest_of(["reseeded", self.original.task_digest(), self.seed])

    def training_digest(self) -> str:
        """Return the key of the original's model; the model is not trained again at this seed."""
        return digest_of(["reseeded", self.original.training_digest(), self.seed])

    def task(self) -> Task:
        """Return the original's task."""
        return self.original.task()
