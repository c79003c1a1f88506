"""Base class of executors: the loop that gives nodes to workers, the same for all of them."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from diffmask.experiments.executors.job import Job, NodeFailure, NodeOutcome
from diffmask.experiments.executors.progress_view import LogView, ProgressView
from diffmask.experiments.executors.schedule import FailedNode, NodeSchedule
from diffmask.results.records import Record
from diffmask.workspace.node import Address, Node


class Workers(ABC):
    """Workers that run jobs for an executor."""

    @abstractmethod
    def count(self) -> int:
        """Return the current number of workers; each runs one job at a time."""

    @abstractmethod
    def start(self, job: Job) -> None:
        """Give a job to a free worker."""

    @abstractmethod
    def ended(self) -> list[tuple[Address, NodeOutcome | NodeFailure]]:
        """Return the jobs that ended since the last call; wait a moment if there are none."""


@dataclass(frozen=True)
class RunResult:
    """Records, outcomes and failures of a run."""

    records: list[Record]
    """Records of every finished node, in the order of the graph."""
    failures: list[FailedNode]
    outcomes: Mapping[Address, NodeOutcome] = field(default_factory=dict)
    """Outcome of every finished node."""

    def reason(self, address: Address) -> str | None:
        """Return why a node failed, or None if it did not; a node that was left out has the reason of its root."""
        failed = {failure.node.address: failure for failure in self.failures}
        failure = failed.get(address)
        return None if failure is None else failed[failure.after].why if failure.after else failure.why


@dataclass(frozen=True, kw_only=True)
class Executor(ABC):
    """Runs nodes on some workers."""

    in_process: ClassVar[bool] = False
    """Whether nodes run in this process, so that they can use objects in its memory."""

    @property
    @abstractmethod
    def size(self) -> int:
        """Largest number of nodes that run at once."""

    @abstractmethod
    def working(self, folder: Path, jobs: int) -> AbstractContextManager[Workers]:
        """Start workers for at most `jobs` jobs, and end them with the block."""

    def run(self, nodes: Sequence[Node], folder: Path, view: ProgressView | None = None) -> RunResult:
        """Run the missing nodes. A failed node is tried again, then left out with all nodes that need it.

        The folder receives one log per node and the outcomes, from which a second run resumes.
        """
        schedule = make_schedule(nodes, folder)
        with (view or LogView()).showing(schedule, folder, self.size) as shown:
            if not schedule.is_over:
                with self.working(folder, len(schedule.waiting)) as workers:
                    _drive(schedule, workers, folder, shown)
        records = [record for node in schedule.nodes for record in _records(schedule, node)]
        return RunResult(records, list(schedule.given_up.values()), dict(schedule.outcomes))


def make_schedule(nodes: Sequence[Node], folder: Path) -> NodeSchedule:
    """Return the schedule of some nodes, in which finished nodes are done."""
    schedule = NodeSchedule(nodes)
    for node in schedule.nodes:
        if (outcome := Job(node, folder).outcome()) is not None:
            schedule.outcomes[node.address] = outcome
    return schedule


def _drive(schedule: NodeSchedule, workers: Workers, folder: Path, view: ProgressView) -> None:
    while not schedule.is_over:
        free = workers.count() - len(schedule.running)
        for node in schedule.ready()[: max(free, 0)]:
            schedule.start(node)
            view.started(node)
            workers.start(Job(node, folder))
        for address, result in workers.ended():
            schedule.settle(address, result)
            view.ended(schedule[address], result)


def _records(schedule: NodeSchedule, node: Node) -> Sequence[Record]:
    outcome = schedule.outcomes.get(node.address)
    return outcome.records if outcome else ()
