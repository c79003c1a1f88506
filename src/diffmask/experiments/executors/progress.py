"""What a run will do: so many pieces of work of each kind, so many done, about so long.

What a person sees of a run. Here: plain lines in the log, for where no terminal is.

What a person sees of a run in a terminal: what runs, what waits, what failed and why, as it happens.
"""

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
    """What there is to do and what of it is done."""

    total: Counter[str]
    """Nodes by kind."""
    done: Counter[str]
    seconds: float | None
    """How long the rest will take, as far as finished nodes tell; none where they tell nothing."""
    unknown: int
    """Missing nodes of whose like none is finished."""

    def lines(self) -> Iterator[str]:
        """The same for people."""
        parts = [f"{self.done[kind]} of {count} {PLURALS.get(kind, kind)}" for kind, count in self.total.items()]
        yield f"done: {', '.join(parts)}"
        if self.done != self.total:
            yield self.forecast()

    def forecast(self) -> str:
        """How long the rest will take."""
        if self.seconds is None:
            return "how long it takes will be known when the first are done"
        without = f", not counting {self.unknown} pieces of a kind not seen yet" if self.unknown else ""
        return f"about {format_duration(self.seconds)} to go{without}"


def estimate_progress(schedule: NodeSchedule, workers: int) -> ProgressEstimate:
    """What the schedule has left for so many workers; nodes that run now count as still to be run."""
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
    """Mean seconds of finished nodes: by what they do, whatever the seed, and by kind."""
    found: dict[str, list[float]] = defaultdict(list)
    for address, outcome in schedule.outcomes.items():
        if outcome.seconds is not None:
            for key in (_without_seed(schedule[address]), address[0]):
                found[key].append(outcome.seconds)
    return {key: mean(seconds) for key, seconds in found.items()}


def _without_seed(node: Node) -> str:
    return re.sub(r"seed \d+", "", node.label)


def _longest_chain(left: list[Node], known: dict[Address, float]) -> float:
    ends: dict[Address, float] = {}
    for node in left:
        ends[node.address] = known.get(node.address, 0) + max((ends.get(need, 0) for need in node.needs), default=0)
    return max(ends.values())


logger = logging.getLogger(__name__)


class ProgressView(ABC):
    """Told of everything that happens in a run."""

    @abstractmethod
    @contextmanager
    def showing(self, schedule: NodeSchedule, folder: Path, workers: int) -> Iterator[Self]:
        """Show the run within this block."""
        yield self

    @abstractmethod
    def started(self, node: Node) -> None:
        """A worker has it."""

    @abstractmethod
    def ended(self, node: Node, result: NodeOutcome | NodeFailure) -> None:
        """It is done, or was tried in vain; the schedule knows about it."""


class LogView(ProgressView):
    """A line for everything that ends."""

    @contextmanager
    def showing(self, schedule: NodeSchedule, folder: Path, workers: int) -> Iterator[Self]:
        """Say what there is to do, then what is done."""
        self._schedule, self._folder = schedule, folder
        for line in estimate_progress(schedule, workers).lines():
            logger.info("%s", line)
        yield self

    def started(self, node: Node) -> None:
        """Nothing: lines are for what ends."""

    def ended(self, node: Node, result: NodeOutcome | NodeFailure) -> None:
        """How long it took, or why it failed and where its log is."""
        for line in ending(self._schedule, node, result, self._folder):
            logger.log(logging.INFO if isinstance(result, NodeOutcome) else logging.WARNING, "%s", line)


def ending(schedule: NodeSchedule, node: Node, result: NodeOutcome | NodeFailure, folder: Path) -> Iterator[str]:
    """The lines that say how a node ended."""
    if isinstance(result, NodeOutcome):
        took = "was there" if result.seconds is None else f"{result.seconds:.1f} s"
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
"""Most lines of what runs, and of what failed."""
NEXT = 4
"""Lines of what waits."""


class LiveView(ProgressView):
    """A table that is drawn again and again; failures and warnings stay above it."""

    def __init__(self, console: Console) -> None:
        self.console = console

    @contextmanager
    def showing(self, schedule: NodeSchedule, folder: Path, workers: int) -> Iterator[Self]:
        """Draw until the block ends."""
        self._schedule, self._folder, self._workers = schedule, folder, workers
        for line in estimate_progress(schedule, workers).lines():
            self.console.print(line, highlight=False)
        with Live(
            get_renderable=lambda: drawing(schedule, workers),
            console=self.console,
            refresh_per_second=2,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        ):
            yield self

    def started(self, node: Node) -> None:
        """Nothing: the table shows it."""

    def ended(self, node: Node, result: NodeOutcome | NodeFailure) -> None:
        """What failed or was warned of is said at once, and stays."""
        if isinstance(result, NodeFailure) or result.warned:
            for line in ending(self._schedule, node, result, self._folder):
                self.console.print(Text(line, style="red" if isinstance(result, NodeFailure) else ""))


def drawing(schedule: NodeSchedule, workers: int) -> Group:
    """The run as it stands."""
    table = Table.grid(padding=(0, 2))
    for _ in range(3):
        table.add_column(no_wrap=True, overflow="ellipsis")
    now = time.monotonic()
    # Copied first: the engine goes on while this is drawn.
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
