"""The table behind every picture of an explanation: words down, layers across.

The heat map in a terminal.

The heat map as a piece of HTML.

The heat map as a matplotlib figure.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from rich.console import Console
from rich.style import Style
from rich.table import Table
from rich.text import Text

from diffmask.errors import TaskError


@dataclass(frozen=True, kw_only=True)
class Grid:
    """Everything a picture shows, as plain values."""

    title: str
    verdict: str
    """What the last hard mask claims, and what it does."""
    headings: tuple[str, ...]
    """Short names of the layers, or `score` alone."""
    words: tuple[str, ...]
    values: tuple[tuple[float, ...], ...]
    """One row a word, between 0 and 1."""
    kept: tuple[bool, ...]
    """Whether the word survives the last hard mask."""
    masked: tuple[float, ...]
    """Share of words that each column's hard mask erases."""
    divergences: tuple[float, ...]
    """What each column's hard mask does to the answer, in nats."""


def short(layer: str) -> str:
    """A layer's name as a heading.

    >>> [short(name) for name in ("embedding", "block3", "output")]
    ['E', '3', 'out']
    """
    return {"embedding": "E", "output": "out"}.get(layer, layer.removeprefix("block"))


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


STYLE = (
    ".diffmask{font:14px/1.4 system-ui,sans-serif;color:inherit}"
    ".diffmask table{border-collapse:collapse}"
    ".diffmask td,.diffmask th{padding:1px 6px;text-align:right;font-weight:normal;border:0;background:none}"
    ".diffmask th[scope=row]{text-align:left}"
    ".diffmask .gone{opacity:.55}"
    ".diffmask .kept{font-weight:bold}"
)
"""Colours are those of the page around it, with a transparent orange on top: it reads on light and on dark."""


def render(grid: Grid) -> str:
    """Words down, layers across; nothing of the text is taken for markup."""
    table = _html_table(grid) if grid.words else ""
    return (
        f'<div class="diffmask"><style>{STYLE}</style><p>{escape(grid.title)}</p>{table}'
        f"<p>{escape(grid.verdict)}</p></div>"
    )


def document(title: str, grids: Sequence[Grid]) -> str:
    """A page of its own with several heat maps, light or dark as its reader prefers."""
    parts = "\n".join(f"<section>{render(grid)}</section>" for grid in grids)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{escape(title)}</title></head>"
        f'<body style="max-width:60rem;margin:2rem auto;padding:0 1rem;overflow-x:auto"><h1>{escape(title)}</h1>\n'
        f"{parts}\n</body></html>\n"
    )


def _html_table(grid: Grid) -> str:
    head = "".join(f'<th scope="col">{escape(heading)}</th>' for heading in grid.headings)
    body = "".join(
        _row(word, values, kept) for word, values, kept in zip(grid.words, grid.values, grid.kept, strict=True)
    )
    shares = "".join(f"<td>{100 * masked:.0f}</td>" for masked in grid.masked)
    caused = "".join(f"<td>{divergence:.3f}</td>" for divergence in grid.divergences)
    foot = f'<tr><th scope="row">masked, %</th>{shares}</tr><tr><th scope="row">KL, nats</th>{caused}</tr>'
    return f"<table><thead><tr><td></td>{head}</tr></thead><tbody>{body}</tbody><tfoot>{foot}</tfoot></table>"


def _row(word: str, values: tuple[float, ...], kept: bool) -> str:
    cells = "".join(
        f'<td style="background:rgba(240,140,20,{min(max(value, 0.0), 1.0):.2f})">{value:.2f}</td>' for value in values
    )
    return f'<tr><th scope="row" dir="auto" class="{"kept" if kept else "gone"}">{escape(word)}</th>{cells}</tr>'


def draw(grid: Grid) -> Any:
    """Words down, layers across, as in De Cao et al. 2020; the figure belongs to no window."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise TaskError("drawing needs matplotlib; pip install 'diffmask[plot]'") from None
    figure = Figure(figsize=(2 + 0.45 * len(grid.headings), 1 + 0.28 * max(len(grid.words), 1)), layout="constrained")
    axes = figure.add_subplot()
    axes.set_title(grid.title, loc="left", fontsize=10)
    axes.set_xlabel("layer" if len(grid.headings) > 1 else "")
    axes.set_xticks(range(len(grid.headings)), grid.headings)
    axes.set_yticks(range(len(grid.words)), [_plain(word) for word in grid.words])
    if grid.words:
        image = axes.imshow(grid.values, aspect="auto", cmap="Oranges", vmin=0, vmax=1)
        figure.colorbar(image, ax=axes, label="needed")
    return figure


def _plain(word: str) -> str:
    """matplotlib takes a pair of dollars for mathematics."""
    return word.replace("$", r"\$")
