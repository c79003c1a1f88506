"""Progress of a run: an estimate of the remaining time, and views that show it in a log or in a terminal."""

import logging
import re
import sys
import time
from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from statistics import mean
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from diffmask.core.progress import Stage, silent_stage
from diffmask.experiments.executors.job import Job, NodeFailure, NodeOutcome
from diffmask.experiments.executors.schedule import NodeSchedule
from diffmask.results.formatting import format_duration
from diffmask.workspace.node import Address, Node

PLURALS = {
    "task": "trainings",
    "fit": "fits",
    "importance": "importances",
    "score": "trainings on masked data",
    "measure": "measurements",
}


@dataclass(frozen=True)
class ProgressEstimate:
    """Number of nodes by kind, and the remaining time."""

    total: Counter[str]
    """All nodes by kind."""
    done: Counter[str]
    """Finished nodes by kind."""
    seconds: float | None
    """Estimated remaining time; None if no finished node gives an estimate."""
    unknown: int
    """Unfinished nodes without a finished node of the same kind to estimate their duration from."""

    def lines(self) -> Iterator[str]:
        """Yield readable lines."""
        parts = [f"{self.done[kind]} of {count} {PLURALS.get(kind, kind)}" for kind, count in self.total.items()]
        yield f"done: {', '.join(parts)}"
        if self.done != self.total:
            yield self.forecast()

    def forecast(self) -> str:
        """Return the remaining time as text."""
        if self.seconds is None:
            return "the remaining time is known once the first nodes are done"
        without = f", not counting {self.unknown} nodes of a new kind" if self.unknown else ""
        return f"about {format_duration(self.seconds)} to go{without}"


def estimate_progress(schedule: NodeSchedule, workers: int) -> ProgressEstimate:
    """Estimate the remaining time for a number of workers; running nodes count as not done."""
    left = [
        node
        for node in schedule.nodes
        if node.address not in schedule.outcomes and node.address not in schedule.given_up
    ]
    speeds = _speeds(schedule)
    expected = {node.address: speeds.get(_without_seed(node), speeds.get(node.address[0])) for node in left}
    known = {address: seconds for address, seconds in expected.items() if seconds is not None}
    rest = max(sum(known.values()) / workers, _longest_chain(left, known)) if known else None
    return ProgressEstimate(
        Counter(node.address[0] for node in schedule.nodes),
        Counter(kind for kind, _ in schedule.outcomes),
        rest,
        len(expected) - len(known),
    )


def _speeds(schedule: NodeSchedule) -> dict[str, float]:
    """Return the mean seconds of finished nodes, by label without the seed and by kind."""
    durations: dict[str, list[float]] = defaultdict(list)
    for address, outcome in schedule.outcomes.items():
        if outcome.seconds is not None:
            for key in (_without_seed(schedule[address]), address[0]):
                durations[key].append(outcome.seconds)
    return {key: mean(seconds) for key, seconds in durations.items()}


def _without_seed(node: Node) -> str:
    return re.sub(r"seed \d+", "", node.label)


def _longest_chain(left: list[Node], known: dict[Address, float]) -> float:
    ends: dict[Address, float] = {}
    for node in left:
        ends[node.address] = known.get(node.address, 0) + max((ends.get(need, 0) for need in node.needs), default=0)
    return max(ends.values())


logger = logging.getLogger(__name__)


class ProgressView(ABC):
    """Shows the progress of a run."""

    @abstractmethod
    @contextmanager
    def showing(self, schedule: NodeSchedule, folder: Path, workers: int) -> Iterator[Self]:
        """Show the run within this block."""
        yield self

    @abstractmethod
    def started(self, node: Node) -> None:
        """Show that a node runs."""

    @abstractmethod
    def ended(self, node: Node, result: NodeOutcome | NodeFailure) -> None:
        """Show that an attempt at a node ended; the schedule is up to date."""


class LogView(ProgressView):
    """Logs one line per finished or failed node."""

    @contextmanager
    def showing(self, schedule: NodeSchedule, folder: Path, workers: int) -> Iterator[Self]:
        """Log the estimate, then the nodes."""
        self._schedule, self._folder = schedule, folder
        for line in estimate_progress(schedule, workers).lines():
            logger.info("%s", line)
        with Stage(lambda: _running(schedule)):  # nodes that run in other processes
            yield self

    def started(self, node: Node) -> None:
        """Log nothing."""

    def ended(self, node: Node, result: NodeOutcome | NodeFailure) -> None:
        """Log the duration, or the reason of a failure with the path of the log."""
        for line in ending(self._schedule, node, result, self._folder):
            logger.log(logging.INFO if isinstance(result, NodeOutcome) else logging.WARNING, "%s", line)


def _running(schedule: NodeSchedule) -> str:
    """Return how many nodes are done, and the first that runs."""
    labels = [schedule[address].label for address in list(schedule.running)]
    more = f" and {len(labels) - 1} more" if len(labels) > 1 else ""
    now = f", now {labels[0]}{more}" if labels else ""
    return f"{len(schedule.outcomes)} of {len(schedule.nodes)} done{now}"


def ending(schedule: NodeSchedule, node: Node, result: NodeOutcome | NodeFailure, folder: Path) -> Iterator[str]:
    """Yield the lines that describe the end of a node."""
    if isinstance(result, NodeOutcome):
        took = "was done before" if result.seconds is None else f"{result.seconds:.1f} s"
        yield f"{node.label}: {took} ({len(schedule.outcomes)} of {len(schedule.nodes)})"
        yield from (f"{node.label}: {warning}" for warning in result.warned)
    else:
        next_step = "given up" if node.address in schedule.given_up else "tried again"
        yield f"{node.label}: {result.why}; {next_step}; log: {Job(node, folder).log}"


def default_view() -> ProgressView:
    """Return a live table if standard error is a terminal, else log lines."""
    console = Console(file=sys.stderr)  # this very stream: while a node runs in this process, sys.stderr is its log
    return LiveView(console) if console.is_terminal else LogView()


SHOWN = 12
"""Largest number of lines for running and for failed nodes."""
NEXT = 4
"""Lines for waiting nodes."""


class LiveView(ProgressView):
    """Live table in a terminal; failures and warnings stay above it."""

    def __init__(self, console: Console) -> None:
        self.console = console

    @contextmanager
    def showing(self, schedule: NodeSchedule, folder: Path, workers: int) -> Iterator[Self]:
        """Draw until the block ends."""
        self._schedule, self._folder, self._workers = schedule, folder, workers
        for line in estimate_progress(schedule, workers).lines():
            self.console.print(line, highlight=False)
        with (
            silent_stage(),
            Live(
                get_renderable=lambda: render_progress(schedule, workers),
                console=self.console,
                refresh_per_second=2,
                transient=True,
                redirect_stdout=False,
                redirect_stderr=False,
            ),
        ):
            yield self

    def started(self, node: Node) -> None:
        """Print nothing: the table shows it."""

    def ended(self, node: Node, result: NodeOutcome | NodeFailure) -> None:
        """Print failures and warnings above the table."""
        if isinstance(result, NodeFailure) or result.warned:
            for line in ending(self._schedule, node, result, self._folder):
                self.console.print(Text(line, style="red" if isinstance(result, NodeFailure) else ""))


def render_progress(schedule: NodeSchedule, workers: int) -> Group:
    """Return the table of running, waiting and failed nodes."""
    table = Table.grid(padding=(0, 2))
    for _ in range(3):
        table.add_column(no_wrap=True, overflow="ellipsis")
    now = time.monotonic()
    # Copied first: the executor changes the schedule while this is drawn.
    for address, since in islice(list(schedule.running.items()), SHOWN):
        table.add_row("runs", Text(schedule[address].label), format_duration(now - since))
    waiting = schedule.waiting
    for node in waiting[:NEXT]:
        table.add_row("waits", Text(node.label, style="dim"), "")
    for verdict in islice(list(schedule.given_up.values()), SHOWN):
        table.add_row("failed", Text(f"{verdict.node.label}: {verdict.why}", style="red"), "")
    counts = (
        f"{len(schedule.outcomes)} of {len(schedule.nodes)} done, {len(schedule.running)} run, {len(waiting)} wait, "
        f"{len(schedule.given_up)} failed; {estimate_progress(schedule, workers).forecast()}"
    )
    return Group(Text(counts, style="bold"), table)
