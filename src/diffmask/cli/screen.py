"""What a person sees in the terminal."""

import logging
import math
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.table import Table

from diffmask.errors import RunError
from diffmask.results.formatting import format_number

if TYPE_CHECKING:
    from diffmask.experiments.executors.progress import ProgressView
    from diffmask.report.roar import RoarTable
    from diffmask.report.tables import ResultTable
    from diffmask.results.intervals import MeanInterval


def show_log(quiet: bool) -> None:
    """Progress in plain lines; warnings without their source code."""
    handler = logging.StreamHandler()
    handler.setLevel(logging.WARNING if quiet else logging.INFO)
    logging.basicConfig(level=logging.INFO, format="%(message)s", handlers=[handler])
    warnings.formatwarning = lambda message, category, *_: f"{category.__name__}: {message}\n"


def show_results(folder: Path) -> None:
    """What a run measured: one line per task, method and site, one column per metric; then ROAR's curves."""
    from diffmask.report.run_page import read_run

    run = read_run(folder)
    table = Table(title="mean over seeds; in brackets half the 95 % interval")
    for heading in ("task", "method", "site", *run.metrics):
        table.add_column(heading.replace("_", " "), justify="right" if heading in run.metrics else "left")
    for row in run.rows:
        cells = (format_mean(row["cells"][metric]) if metric in row["cells"] else "" for metric in run.metrics)
        table.add_row(row["task"], row["method"], row["site"], *cells)
    _print(table)
    for found in run.roar.tables():
        _print(_roar_table(found))


def _roar_table(found: "RoarTable") -> Table:
    """The curves of one panel, downwards: a terminal is narrow. Below them RACU with its interval."""
    table = Table(title=f"{found.title}: score in percent", box=box.SIMPLE_HEAD)
    for heading in ("masked", *(curve.title for curve in found.curves)):
        table.add_column(heading, justify="right")
    for at in found.at:
        table.add_row(f"{at:g}", *(_percent(curve.point(at)) for curve in found.curves))
    racu = {area.method: area.racu for area in found.areas}
    if racu:
        spreads = [racu.get(curve.method) for curve in found.curves]
        table.add_section()
        table.add_row("RACU", *map(_percent, spreads))
        table.add_row("95 %", *(f"{100 * one.low:.1f} … {100 * one.high:.1f}" if one else "" for one in spreads))
    return table


def _percent(spread: "MeanInterval | None") -> str:
    return f"{100 * spread.mean:.1f}" if spread else ""


def show_finding(finding: "ResultTable") -> None:
    """Its table below its title."""
    table = Table(title=finding.title)
    for place, heading in enumerate(finding.headings):
        table.add_column(heading, justify="right" if place else "left")
    for cells in finding.cells():
        table.add_row(*cells)
    _print(table)


def _print(table: Table) -> None:
    console = Console()
    # A table cut to a pipe's 80 columns cannot be read.
    console.width = console.width if console.is_terminal else 180
    console.print(table)


def show_failures(error: RunError, folder: Path) -> None:
    """What was finished all the same, then what failed."""
    show_results(folder)
    print(f"\nreport: {folder / 'report.html'}")
    print(f"diffmask: {error}", file=sys.stderr)


def show_run(quiet: bool) -> "ProgressView":
    """A live view where somebody looks at a terminal; else lines in the log."""
    from diffmask.experiments.executors.progress import LiveView, LogView

    console = Console(file=sys.stderr)  # this very stream: while a node runs here, standard error is its log
    live = console.is_terminal and not quiet
    show_log(quiet or live)
    return LiveView(console) if live else LogView()


def format_mean(entry: dict[str, Any]) -> str:
    """Format a mean with half of its interval.

    >>> format_mean({"mean": 0.5, "interval": [0.4, 0.6]})
    '0.5000 (0.1000)'
    """
    mean, (low, high) = float(entry["mean"]), map(float, entry["interval"])
    half = f" ({format_number((high - low) / 2, digits=4)})" if math.isfinite(mean) else ""
    return format_number(mean, digits=4) + half
