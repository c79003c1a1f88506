"""What a person sees of a run. Here: plain lines in the log, for where no terminal is."""

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from diffmask.engine.job import Failure, Job, Outcome
from diffmask.engine.plan import plan_of
from diffmask.engine.schedule import Schedule
from diffmask.graph import Node

logger = logging.getLogger(__name__)


class View(ABC):
    """Told of everything that happens in a run."""

    @abstractmethod
    @contextmanager
    def showing(self, schedule: Schedule, folder: Path, workers: int) -> Iterator[Self]:
        """Show the run within this block."""
        yield self

    @abstractmethod
    def started(self, node: Node) -> None:
        """A worker has it."""

    @abstractmethod
    def ended(self, node: Node, result: Outcome | Failure) -> None:
        """It is done, or was tried in vain; the schedule knows about it."""


class LogView(View):
    """A line for everything that ends."""

    @contextmanager
    def showing(self, schedule: Schedule, folder: Path, workers: int) -> Iterator[Self]:
        """Say what there is to do, then what is done."""
        self._schedule, self._folder = schedule, folder
        for line in plan_of(schedule, workers).lines():
            logger.info("%s", line)
        yield self

    def started(self, node: Node) -> None:
        """Nothing: lines are for what ends."""

    def ended(self, node: Node, result: Outcome | Failure) -> None:
        """How long it took, or why it failed and where its log is."""
        for line in ending(self._schedule, node, result, self._folder):
            logger.log(logging.INFO if isinstance(result, Outcome) else logging.WARNING, "%s", line)


def ending(schedule: Schedule, node: Node, result: Outcome | Failure, folder: Path) -> Iterator[str]:
    """The lines that say how a node ended."""
    if isinstance(result, Outcome):
        took = "was there" if result.seconds is None else f"{result.seconds:.1f} s"
        yield f"{node.label}: {took} ({len(schedule.outcomes)} of {len(schedule.nodes)})"
        yield from (f"{node.label}: {warning}" for warning in result.warned)
    else:
        next_step = "given up" if node.address in schedule.given_up else "tried again"
        yield f"{node.label}: {result.why}; {next_step}; log: {Job(node, folder).log}"
