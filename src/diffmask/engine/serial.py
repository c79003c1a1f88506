"""One node after the other, in this process."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from diffmask.engine.base import Engine, Workers
from diffmask.engine.job import Failure, Job, Outcome, perform
from diffmask.graph import Address


class _Here(Workers):
    """This process as a worker: a job that was started has ended when next asked."""

    def __init__(self) -> None:
        self._started: list[Job] = []

    def count(self) -> int:
        return 1

    def start(self, job: Job) -> None:
        self._started.append(job)

    def ended(self) -> list[tuple[Address, Outcome | Failure]]:
        job = self._started.pop()
        return [(job.node.address, perform(job))]


@dataclass(frozen=True, kw_only=True)
class Serial(Engine):
    """One node after the other, in this process."""

    @property
    def size(self) -> int:
        """One."""
        return 1

    @contextmanager
    def working(self, folder: Path, jobs: int) -> Iterator[Workers]:
        """This process."""
        yield _Here()
