"""What a person sees of a run in a terminal: what runs, what waits, what failed and why, as it happens."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from diffmask.engine.job import Failure, Outcome
from diffmask.engine.plan import duration, plan_of
from diffmask.engine.schedule import Schedule
from diffmask.engine.view import View, ending
from diffmask.graph import Node

SHOWN = 12
"""Most lines of what runs, and of what failed."""
NEXT = 4
"""Lines of what waits."""


class LiveView(View):
    """A table that is drawn again and again; failures and warnings stay above it."""

    def __init__(self, console: Console) -> None:
        self.console = console

    @contextmanager
    def showing(self, schedule: Schedule, folder: Path, workers: int) -> Iterator[Self]:
        """Draw until the block ends."""
        self._schedule, self._folder, self._workers = schedule, folder, workers
        for line in plan_of(schedule, workers).lines():
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

    def ended(self, node: Node, result: Outcome | Failure) -> None:
        """What failed or was warned of is said at once, and stays."""
        if isinstance(result, Failure) or result.warned:
            for line in ending(self._schedule, node, result, self._folder):
                self.console.print(Text(line, style="red" if isinstance(result, Failure) else ""))


def drawing(schedule: Schedule, workers: int) -> Group:
    """The run as it stands."""
    table = Table.grid(padding=(0, 2))
    for _ in range(3):
        table.add_column(no_wrap=True, overflow="ellipsis")
    now = time.monotonic()
    # Copied first: the engine goes on while this is drawn.
    for address, since in islice(list(schedule.running.items()), SHOWN):
        table.add_row("runs", Text(schedule[address].label), duration(now - since))
    waiting = schedule.waiting
    for node in waiting[:NEXT]:
        table.add_row("waits", Text(node.label, style="dim"), "")
    for verdict in islice(list(schedule.given_up.values()), SHOWN):
        table.add_row("failed", Text(f"{verdict.node.label}: {verdict.why}", style="red"), "")
    counts = (
        f"{len(schedule.outcomes)} of {len(schedule.nodes)} done, {len(schedule.running)} run, {len(waiting)} wait, "
        f"{len(schedule.given_up)} failed; {plan_of(schedule, workers).forecast()}"
    )
    return Group(Text(counts, style="bold"), table)
