"""A benchmark result in a terminal."""

import io

from rich.console import Console
from rich.table import Table
from rich.text import Text

from diffmask.report.leaderboard import Standing, standings
from diffmask.results.benchmark_result import BenchmarkResult, MethodResult
from diffmask.results.formatting import format_duration, format_number

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
    found = method.estimates.get(metric)
    if found is None:
        return Text("–", style="dim")
    mark = standing.mark(method.name)
    style = "bold" if mark == "best" else ""
    return Text.assemble(
        (format_number(found.mean), style),
        (f" [{format_number(found.low)}, {format_number(found.high)}]", "dim"),
        MARKS[mark] or "  ",
    )
