"""What a person sees in the terminal."""

import json
import logging
import math
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from diffmask.errors import RunError

if TYPE_CHECKING:
    from diffmask.engine.view import View
    from diffmask.report.finding import Finding


def show_log(quiet: bool) -> None:
    """Progress in plain lines; warnings without their source code."""
    handler = logging.StreamHandler()
    handler.setLevel(logging.WARNING if quiet else logging.INFO)
    logging.basicConfig(level=logging.INFO, format="%(message)s", handlers=[handler])
    warnings.formatwarning = lambda message, category, *_: f"{category.__name__}: {message}\n"


def show_summary(summary: Sequence[dict[str, Any]]) -> None:
    """One line per task, method and site; one column per metric."""
    metrics = list(dict.fromkeys(entry["metric"] for entry in summary))
    table = Table(title="mean over seeds; in brackets half the 95 % interval")
    for heading in ("task", "method", "site", *metrics):
        table.add_column(heading.replace("_", " "), justify="right" if heading in metrics else "left")
    rows: dict[tuple[str, str, str], dict[str, str]] = {}
    for entry in summary:
        rows.setdefault((entry["task"], entry["method"], entry["site"]), {})[entry["metric"]] = number(entry)
    for key, cells in rows.items():
        table.add_row(*key, *(cells.get(metric, "") for metric in metrics))
    _print(table)


def show_finding(finding: "Finding") -> None:
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
    show_summary(json.loads((folder / "summary.json").read_text()))
    print(f"\nreport: {folder / 'report.html'}")
    print(f"diffmask: {error}", file=sys.stderr)


def show_run(quiet: bool) -> "View":
    """A live view where somebody looks at a terminal; else lines in the log."""
    from diffmask.engine.live import LiveView
    from diffmask.engine.view import LogView

    console = Console(file=sys.stderr)  # this very stream: while a node runs here, standard error is its log
    live = console.is_terminal and not quiet
    show_log(quiet or live)
    return LiveView(console) if live else LogView()


def number(entry: dict[str, Any]) -> str:
    """A mean with half its interval.

    >>> number({"mean": 0.5, "interval": [0.4, 0.6]})
    '0.5000 (0.1000)'
    """
    mean, (low, high) = float(entry["mean"]), map(float, entry["interval"])
    return f"{mean:.4f} ({(high - low) / 2:.4f})" if math.isfinite(mean) else str(mean)
