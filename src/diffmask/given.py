"""A task that is already there, as a recipe: what is made for it is found again by digests of model and rows."""

import hashlib
from dataclasses import dataclass, field
from typing import Any, ClassVar

from diffmask.batch import Batch
from diffmask.task import Task, TaskRecipe


@dataclass(frozen=True, kw_only=True)
class GivenTask(TaskRecipe):
    """A live task; its digest is that of its model, its rows and what an erased token becomes."""

    name: ClassVar[str] = "given"

    fingerprint: str
    """Of the model and its sites."""
    rows: str
    """Of every split's rows."""
    mask_token: int | None
    task: Task = field(repr=False, compare=False)
    """The task itself; no part of the recipe's digest."""

    @staticmethod
    def of(task: Task) -> "GivenTask":
        """The recipe that stands for a task."""
        digest = hashlib.sha256()
        for split, batch in sorted(task.data.items()):
            digest.update(f"{split} {_digest(batch)}".encode())
        return GivenTask(
            fingerprint=task.fingerprint(), rows=digest.hexdigest()[:16], mask_token=task.mask_token, task=task
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values only."""
        return {"name": self.name, "fingerprint": self.fingerprint, "rows": self.rows, "mask_token": self.mask_token}

    @property
    def label(self) -> str:
        """The model's class."""
        return type(self.task.model).__name__

    def build(self, seed: int) -> Task:
        """The task as it is, whatever the seed."""
        return self.task


def _digest(batch: Batch) -> str:
    found = hashlib.sha256()

    def note(value: Any) -> Any:
        found.update(str(tuple(value.shape)).encode() + value.detach().cpu().contiguous().numpy().tobytes())
        return value

    batch.map(note)
    return found.hexdigest()
