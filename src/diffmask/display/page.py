"""The heat map as a piece of HTML."""

from collections.abc import Sequence
from html import escape

from diffmask.display.grid import Grid

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
