"""Heat map of an explanation, words by layers: in a terminal, as HTML and as a matplotlib figure."""

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
class Heatmap:
    """Plain values of a heat map."""

    title: str
    verdict: str
    """Sentence about the hard mask of the last column and its measured effect."""
    headings: tuple[str, ...]
    """Short names of the layers, or `score` alone."""
    words: tuple[str, ...]
    values: tuple[tuple[float, ...], ...]
    """One row per word, between 0 and 1."""
    kept: tuple[bool, ...]
    """Whether the hard mask of the last column keeps the word."""
    masked: tuple[float, ...]
    """Share of words erased by each column's hard mask."""
    divergences: tuple[float, ...]
    """KL(original || masked) of each column's hard mask, in nats."""


def short_layer_name(layer: str) -> str:
    """Return a layer's name as a column heading.

    >>> [short_layer_name(name) for name in ("embedding", "block3", "output")]
    ['E', '3', 'out']
    """
    return {"embedding": "E", "output": "out"}.get(layer, layer.removeprefix("block"))


def print_heatmap(heatmap: Heatmap, console: Console | None = None) -> None:
    """Print a heat map with numbers, and colours where the terminal has them."""
    out = console or Console()
    out.print(Text(heatmap.title))
    if heatmap.words:
        out.print(_terminal_table(heatmap))
    out.print(Text(heatmap.verdict))


def _terminal_table(heatmap: Heatmap) -> Table:
    table = Table(box=None, pad_edge=False, show_footer=True, collapse_padding=True)
    table.add_column("", footer="masked %\nKL")
    for heading, masked, divergence in zip(heatmap.headings, heatmap.masked, heatmap.divergences, strict=True):
        footer = f"{100 * masked:.0f}\n{divergence:.2f}"
        table.add_column(heading, justify="right", footer=footer, no_wrap=True)
    for word, values, kept in zip(heatmap.words, heatmap.values, heatmap.kept, strict=True):
        table.add_row(Text(word, style="bold" if kept else "dim"), *(_cell(value) for value in values))
    return table


def _cell(value: float) -> Text:
    """Return a number on a background between dark and orange."""
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
"""Inherits the colours of the page and adds a transparent orange, so it reads on light and dark pages."""


def render_heatmap(heatmap: Heatmap) -> str:
    """Return an HTML fragment; the text is escaped."""
    table = _html_table(heatmap) if heatmap.words else ""
    return (
        f'<div class="diffmask"><style>{STYLE}</style><p>{escape(heatmap.title)}</p>{table}'
        f"<p>{escape(heatmap.verdict)}</p></div>"
    )


def html_document(title: str, heatmaps: Sequence[Heatmap]) -> str:
    """Return a page with several heat maps that follows the reader's light or dark preference."""
    parts = "\n".join(f"<section>{render_heatmap(heatmap)}</section>" for heatmap in heatmaps)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{escape(title)}</title></head>"
        f'<body style="max-width:60rem;margin:2rem auto;padding:0 1rem;overflow-x:auto"><h1>{escape(title)}</h1>\n'
        f"{parts}\n</body></html>\n"
    )


def _html_table(heatmap: Heatmap) -> str:
    head = "".join(f'<th scope="col">{escape(heading)}</th>' for heading in heatmap.headings)
    body = "".join(
        _row(word, values, kept) for word, values, kept in zip(heatmap.words, heatmap.values, heatmap.kept, strict=True)
    )
    shares = "".join(f"<td>{100 * masked:.0f}</td>" for masked in heatmap.masked)
    caused = "".join(f"<td>{divergence:.3f}</td>" for divergence in heatmap.divergences)
    foot = f'<tr><th scope="row">masked, %</th>{shares}</tr><tr><th scope="row">KL, nats</th>{caused}</tr>'
    return f"<table><thead><tr><td></td>{head}</tr></thead><tbody>{body}</tbody><tfoot>{foot}</tfoot></table>"


def _row(word: str, values: tuple[float, ...], kept: bool) -> str:
    cells = "".join(
        f'<td style="background:rgba(240,140,20,{min(max(value, 0.0), 1.0):.2f})">{value:.2f}</td>' for value in values
    )
    return f'<tr><th scope="row" dir="auto" class="{"kept" if kept else "gone"}">{escape(word)}</th>{cells}</tr>'


def plot_heatmap(heatmap: Heatmap) -> Any:
    """Draw words by layers, as in De Cao et al. 2020; the figure is not attached to a window."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise TaskError("drawing needs matplotlib; pip install 'diffmask[plot]'") from None
    figure = Figure(
        figsize=(2 + 0.45 * len(heatmap.headings), 1 + 0.28 * max(len(heatmap.words), 1)), layout="constrained"
    )
    axes = figure.add_subplot()
    axes.set_title(heatmap.title, loc="left", fontsize=10)
    axes.set_xlabel("layer" if len(heatmap.headings) > 1 else "")
    axes.set_xticks(range(len(heatmap.headings)), heatmap.headings)
    axes.set_yticks(range(len(heatmap.words)), [_escape_dollars(word) for word in heatmap.words])
    if heatmap.words:
        image = axes.imshow(heatmap.values, aspect="auto", cmap="Oranges", vmin=0, vmax=1)
        figure.colorbar(image, ax=axes, label="needed")
    return figure


def _escape_dollars(word: str) -> str:
    """Escape dollars, which matplotlib takes for mathematics."""
    return word.replace("$", r"\$")
