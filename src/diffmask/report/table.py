"""A board in a terminal."""

from io import StringIO

from diffmask.board import Board, Estimate


def board_text(board: Board, width: int = 120) -> str:
    """Warnings, the table of methods and measures, the verdict."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(
        title=Text(board.title), caption="mean, in brackets half the 95 % interval; time and rows are per text"
    )
    table.add_column("method")
    for measure in board.measures:
        table.add_column(f"{measure.title}\n({measure.better} is better)", justify="right")
    for heading in ("time", "rows forward", "backward", "fit"):
        table.add_column(heading, justify="right")
    for method in board.methods:
        cells = [cell(method.estimates.get(measure.name)) for measure in board.measures]
        cost = method.cost
        passes = [f"{cost.get(name, 0.0):.3g}" for name in ("forwards", "backwards")]
        times = [f"{cost.get(name, 0.0):.2g} s" for name in ("seconds", "fit_seconds")]
        table.add_row(Text(method.name), *cells, times[0], *passes, times[1])
    screen = StringIO()
    console = Console(file=screen, width=width)
    console.print(table)
    for warning in board.warnings:
        console.print(Text(f"! {warning}"))
    for paragraph in board.verdict:
        console.print(Text(f"\n{paragraph}"))
    return screen.getvalue().rstrip("\n")


def cell(found: Estimate | None) -> str:
    """A mean with half its interval.

    >>> cell(Estimate(mean=0.5, low=0.4, high=0.6, rows=10)), cell(None)
    ('0.500 (0.100)', '')
    """
    return "" if found is None else f"{found.mean:.3f} ({(found.high - found.low) / 2:.3f})"
