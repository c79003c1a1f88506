"""A workspace of a task that a test made, and a method whose scores a test wrote down."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import torch
from jaxtyping import Shaped
from torch import Tensor

from diffmask.core.batch import Attribution, Batch
from diffmask.core.explainer import Explainer, Method
from diffmask.core.store import Store
from diffmask.core.task import Task, TaskConfig
from diffmask.workspace.workspace import Workspace


@dataclass(frozen=True, kw_only=True)
class Made(TaskConfig):
    """A task that is there already."""

    name: ClassVar[str] = "made"

    task: Task = field(compare=False)

    def to_dict(self) -> dict[str, str]:
        return {"name": self.name, "model": self.task.fingerprint()}

    @property
    def label(self) -> str:
        return self.name

    def build(self, seed: int) -> Task:
        return self.task


@dataclass(frozen=True, kw_only=True)
class Written(Method):
    """Scores by position, the same for every row."""

    name: ClassVar[str] = "written"

    scores: tuple[float, ...]

    def build(self, task: Task, seed: int) -> "WrittenExplainer":
        return WrittenExplainer(task, self.scores)


class WrittenExplainer(Explainer):
    def __init__(self, task: Task, scores: tuple[float, ...]) -> None:
        super().__init__(task)
        self.scores = scores

    def explain(self, batch: Batch, target: Shaped[Tensor, "row *event"]) -> Attribution:
        written = torch.tensor(self.scores)[: batch.tokens.shape[1]]
        return Attribution(written.expand(batch.tokens.shape).clone())


def workspace_of(task: Task, folder: Path, seed: int = 0) -> Workspace:
    """Return a workspace of that task."""
    return Workspace(Store(folder), Made(task=task), seed)
