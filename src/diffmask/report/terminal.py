"""Benchmark results, runs and result tables in a terminal."""

import io
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from diffmask.report.leaderboard import Standing, standings
from diffmask.report.result_tables import ResultTable
from diffmask.report.roar_curves import RoarTable
from diffmask.report.run_files import RunFiles, read_run, refusing_damage
from diffmask.results.benchmark_result import BenchmarkResult, MethodResult, load_results
from diffmask.results.formatting import format_duration, format_number
from diffmask.results.intervals import MeanInterval

MARKS = {"best": " *", "tie": " =", "": ""}


def print_benchmark(board: BenchmarkResult, console: Console | None = None) -> None:
    """Print the verdict, its warnings and the table."""
    out = console or Console()
    # A pipe has 80 columns, which would cut the table.
    out.width = out.width if out.is_terminal else max(out.width, 30 + 24 * len(board.metrics))
    out.print(Text(board.title, style="bold"))
    for paragraph in board.verdict:
        out.print(Text(f"\n{paragraph}"))
    for warning in board.warnings:
        out.print(Text(f"\n! {warning}", style="yellow"))
    out.print()
    out.print(_table(board))
    out.print(Text("mean [95 % interval]; * better than every other method, = tied for best", style="dim"))


def benchmark_as_text(board: BenchmarkResult) -> str:
    """Return the printed result as plain text."""
    stream = io.StringIO()
    print_benchmark(board, Console(file=stream, color_system=None))
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines())


def _table(board: BenchmarkResult) -> Table:
    ranked = standings(board)
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("method")
    for metric in board.metrics:
        table.add_column(Text(f"{metric.title} {'↑' if metric.higher_is_better else '↓'}"), justify="right")
    table.add_column("per text", justify="right")
    for method in board.methods:
        cells = [_cell(method, metric.name, ranked[metric.name]) for metric in board.metrics]
        cost = format_duration(method.cost["seconds"]) if "seconds" in method.cost else ""
        table.add_row(Text(method.name), *cells, cost)
    return table


def _cell(method: MethodResult, metric: str, standing: Standing) -> Text:
    estimate = method.estimates.get(metric)
    if estimate is None:
        return Text("–", style="dim")
    mark = standing.mark(method.name)
    style = "bold" if mark == "best" else ""
    return Text.assemble(
        (format_number(estimate.mean), style),
        (f" [{format_number(estimate.low)}, {format_number(estimate.high)}]", "dim"),
        MARKS[mark] or "  ",
    )


def print_report(folder: Path) -> None:
    """Print the verdict and the table of every task; for a run also the numbers by site and the ROAR curves."""
    for result in load_results(folder):
        print_benchmark(result)
    # One example per task is what a run writes and a benchmark does not.
    if (folder / "examples.json").is_file():
        print_run(folder)


def print_run(folder: Path) -> None:
    """Print the summary of a run: one line per task, method and site, one column per metric; then the ROAR curves."""
    run = read_run(folder)
    with refusing_damage(run.folder):
        for table in _run_tables(run):
            _print(table)


def _run_tables(run: RunFiles) -> Iterator[Table]:
    table = Table(title="mean over seeds; in brackets half the 95 % interval")
    for heading in ("task", "method", "site", *run.metrics):
        table.add_column(heading.replace("_", " "), justify="right" if heading in run.metrics else "left")
    for row in run.rows:
        cells = (format_mean(row["cells"][metric]) if metric in row["cells"] else "" for metric in run.metrics)
        table.add_row(row["task"], row["method"], row["site"], *cells)
    yield table
    yield from map(_roar_table, run.roar.tables())


def _roar_table(panel: RoarTable) -> Table:
    """Return the curves of one panel as columns, since a terminal is narrow, and RACU with its interval below."""
    table = Table(title=f"{panel.title}: score in percent", box=box.SIMPLE_HEAD)
    for heading in ("masked", *(curve.title for curve in panel.curves)):
        table.add_column(heading, justify="right")
    for at in panel.at:
        table.add_row(f"{at:g}", *(_percent(curve.point(at)) for curve in panel.curves))
    racu = {area.method: area.racu for area in panel.areas}
    if racu:
        spreads = [racu.get(curve.method) for curve in panel.curves]
        table.add_section()
        table.add_row("RACU", *map(_percent, spreads))
        table.add_row("95 %", *(f"{100 * each.low:.1f} … {100 * each.high:.1f}" if each else "" for each in spreads))
    return table


def _percent(spread: MeanInterval | None) -> str:
    return f"{100 * spread.mean:.1f}" if spread else ""


def print_table(result: ResultTable) -> None:
    """Print a result table with its title."""
    table = Table(title=result.title)
    for column, heading in enumerate(result.headings):
        table.add_column(heading, justify="right" if column else "left")
    for cells in result.cells():
        table.add_row(*cells)
    _print(table)


def _print(table: Table) -> None:
    console = Console()
    # A table cut to a pipe's 80 columns cannot be read.
    console.width = console.width if console.is_terminal else 180
    console.print(table)


def format_mean(entry: dict[str, Any]) -> str:
    """Format a mean with half of its interval.

    >>> format_mean({"mean": 0.5, "interval": [0.4, 0.6]})
    '0.5000 (0.1000)'
    """
    mean, (low, high) = float(entry["mean"]), map(float, entry["interval"])
    half = f" ({format_number((high - low) / 2, digits=4)})" if math.isfinite(mean) else ""
    return format_number(mean, digits=4) + half
