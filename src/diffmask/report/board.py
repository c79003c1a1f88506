"""The page of a benchmark: verdict first, then what it rests on. One file, no network."""

from collections.abc import Mapping, Sequence
from typing import Any

from diffmask.board import Board, Comparison, Curve, Measure
from diffmask.report.cost_chart import cost_chart
from diffmask.report.curves import curve_chart, curve_groups
from diffmask.report.number import amount, between, duration, shown
from diffmask.report.page import asset, digest, environment
from diffmask.report.payload import payload
from diffmask.report.standing import is_baseline, standings
from diffmask.report.whisker import whiskers

COSTS = {
    "seconds": "seconds a text",
    "forwards": "forward passes a text",
    "backwards": "backward passes a text",
    "fit_seconds": "seconds to fit",
    "peak_megabytes": "peak memory, MB",
    "break_even": "texts until the fit pays",
}
"""What the columns of cost are called; other costs keep their own names."""


def render_board(board: Board) -> str:
    """The page. Its script and style are allowed by their digests; nothing else can run or load."""
    from markupsafe import Markup

    script, style = asset("board.js"), asset("board.css")
    page = environment()
    page.filters |= {"shown": shown, "duration": duration, "amount": amount, "level": level}
    page.filters |= {"tabular": tabular, "problems": problems}
    text = page.get_template("board.html").render(
        board=board,
        payload=payload(board),
        standings=standings(board),
        whiskers={measure.name: _marked(whiskers(board, measure)) for measure in board.measures},
        curves=[
            (title, Markup(curve_chart(board, group, title)), group) for title, group in curve_groups(board).items()
        ],
        costs=cost_columns(board),
        cost_charts=[
            (measure.title, Markup(cost_chart(board, measure))) for measure in board.measures if _priced(board, measure)
        ],
        comparisons={measure.name: _of(board.comparisons, measure) for measure in board.measures},
        between=between,
        is_baseline=is_baseline,
        script=Markup(script),
        style=Markup(style),
        script_digest=digest(script),
        style_digest=digest(style),
    )
    # A lone half of a surrogate pair is no character: UTF-8 cannot hold it.
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def cost_columns(board: Board) -> Mapping[str, str]:
    """Every cost that some method has, by name: its heading."""
    named = dict.fromkeys(name for method in board.methods for name in method.cost)
    order = [*(name for name in COSTS if name in named), *(name for name in named if name not in COSTS)]
    return {name: COSTS.get(name, name.replace("_", " ")) for name in order}


def level(value: float) -> int:
    """A step of colour from -10 to 10 for a value from -1 to 1.

    >>> level(0.53), level(-2.0), level(float("nan"))
    (5, -10, 0)
    """
    return round(10 * min(max(value, -1.0), 1.0)) if value == value else 0


def tabular(value: Any) -> bool:
    """Whether a value is a table: a mapping of mappings with the same plain entries."""
    rows = list(value.values()) if isinstance(value, Mapping) else []
    return (
        bool(rows) and all(isinstance(row, Mapping) and row for row in rows) and len({tuple(row) for row in rows}) == 1
    )


def problems(diagnostics: Any) -> int:
    """How many problems a fit found, however deep they stand.

    >>> problems({"seed 0": {"embedding": {"margin": 0.1, "problems": {"blind": "it does not look"}}}})
    1
    """
    if not isinstance(diagnostics, Mapping):
        return 0
    own = diagnostics.get("problems")
    here = len(own) if isinstance(own, Mapping) else 0
    return here + sum(problems(value) for name, value in diagnostics.items() if name != "problems")


def _marked(drawings: Mapping[str, str]) -> Mapping[str, str]:
    from markupsafe import Markup

    return {name: Markup(drawing) for name, drawing in drawings.items()}


def _priced(board: Board, measure: Measure) -> bool:
    return any(measure.name in method.estimates and "seconds" in method.cost for method in board.methods)


def _of(comparisons: Sequence[Comparison], measure: Measure) -> Sequence[Comparison]:
    return [comparison for comparison in comparisons if comparison.measure == measure.name]
