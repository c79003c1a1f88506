"""A task that is already there, as a recipe: what is made for it is found again by digests of model and rows."""

import hashlib
from dataclasses import dataclass, field
from typing import Any, ClassVar

from diffmask.batch import Batch
from diffmask.recipe import digest_of
from diffmask.task import Task, TaskRecipe


@dataclass(frozen=True, kw_only=True)
class GivenTask(TaskRecipe):
    """A live task; its digest is that of its model and rows, of an erased token and of how it is trained again."""

    name: ClassVar[str] = "given"

    fingerprint: str
    """Of the model and its sites."""
    rows: str
    """Of every split's rows."""
    training_rows: str
    """Of every split's rows but those of `test`, from which nothing learns."""
    mask_token: int | None
    training: str
    """Of the choices with which it would be trained again."""
    task: Task = field(repr=False, compare=False)
    """The task itself; no part of the recipe's digest."""

    @staticmethod
    def of(task: Task) -> "GivenTask":
        """The recipe that stands for a task."""
        rows = {split: _digest(batch) for split, batch in task.data.items()}
        return GivenTask(
            fingerprint=task.fingerprint(),
            rows=digest_of(rows),
            training_rows=digest_of({split: digest for split, digest in rows.items() if split != "test"}),
            mask_token=task.mask_token,
            training=digest_of(dict(task.training_choices)),
            task=task,
        )

    @property
    def training_digest(self) -> str:
        """The same for any held-out rows."""
        return digest_of([self.name, self.fingerprint, self.training_rows, self.mask_token])

    def to_dict(self) -> dict[str, Any]:
        """Plain values only."""
        shown = ("fingerprint", "rows", "mask_token", "training")
        return {"name": self.name, **{name: getattr(self, name) for name in shown}}

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
