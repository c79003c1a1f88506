"""The heat map in a terminal."""

from rich.console import Console
from rich.style import Style
from rich.table import Table
from rich.text import Text

from diffmask.display.grid import Grid


def show(grid: Grid, console: Console | None = None) -> None:
    """Print a grid: colour where there is colour, numbers everywhere."""
    out = console or Console()
    out.print(Text(grid.title))
    if grid.words:
        out.print(_terminal_table(grid))
    out.print(Text(grid.verdict))


def _terminal_table(grid: Grid) -> Table:
    table = Table(box=None, pad_edge=False, show_footer=True, collapse_padding=True)
    table.add_column("", footer="masked %\nKL")
    for heading, masked, divergence in zip(grid.headings, grid.masked, grid.divergences, strict=True):
        footer = f"{100 * masked:.0f}\n{divergence:.2f}"
        table.add_column(heading, justify="right", footer=footer, no_wrap=True)
    for word, values, kept in zip(grid.words, grid.values, grid.kept, strict=True):
        table.add_row(Text(word, style="bold" if kept else "dim"), *(_cell(value) for value in values))
    return table


def _cell(value: float) -> Text:
    """A number on a ground between dark and orange."""
    level = min(max(value, 0.0), 1.0)
    ground = f"rgb({int(30 + 210 * level)},{int(30 + 110 * level)},30)"
    ink = "black" if level > 0.5 else "white"
    return Text(f" {value:.2f} ".replace("0.", "."), style=Style.parse(f"{ink} on {ground}"))
