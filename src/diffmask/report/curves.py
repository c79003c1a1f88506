"""A measure against its knob, a line a method."""

from collections.abc import Mapping, Sequence
from html import escape

from diffmask.board import Board, Curve
from diffmask.report.chart import BOTTOM, LEFT, RIGHT, TOP, Axis, fitted, frame, mark, spread, svg


def curve_chart(board: Board, curves: Sequence[Curve], title: str) -> str:
    """Lines with their intervals; each is named where it ends."""
    order = [method.name for method in board.methods]
    longest = max(len(curve.method) for curve in curves)
    x = fitted([value for curve in curves for value in curve.x], LEFT, RIGHT - min(20.0 + 7 * longest, 190.0))
    y = fitted([value for curve in curves for value in (*curve.y, *curve.low, *curve.high)], BOTTOM, TOP)
    lines = "".join(_line(curve, order.index(curve.method), x, y) for curve in curves)
    ends = spread([y(curve.y[-1]) for curve in curves], 15.0, TOP, BOTTOM)
    names = "".join(_name(curve, order.index(curve.method), x, y, end) for curve, end in zip(curves, ends, strict=True))
    shares = max(x.ticks) <= 1
    return svg(
        frame(x, y, curves[0].knob, lambda value: f"{100 * value:g} %" if shares else f"{value:g}") + lines + names,
        f"{title} against {curves[0].knob}: {', '.join(curve.method for curve in curves)}. Values in the table below.",
    )


def _line(curve: Curve, kind: int, x: Axis, y: Axis) -> str:
    points = " ".join(f"{x(a)},{y(b)}" for a, b in zip(curve.x, curve.y, strict=True))
    band = ""
    if curve.low and curve.high:
        upper = [f"{x(a)},{y(b)}" for a, b in zip(curve.x, curve.high, strict=True)]
        lower = [f"{x(a)},{y(b)}" for a, b in zip(curve.x, curve.low, strict=True)]
        band = f'<polygon class="band" points="{" ".join([*upper, *reversed(lower)])}"/>'
    marks = "".join(mark(kind, x(a), y(b)) for a, b in zip(curve.x, curve.y, strict=True))
    return f'<g class="m{kind % 8}"><title>{escape(curve.method)}</title>{band}<polyline points="{points}"/>{marks}</g>'


def _name(curve: Curve, kind: int, x: Axis, y: Axis, at: float) -> str:
    edge = x(curve.x[-1])
    return (
        f'<g class="m{kind % 8}"><path class="lead" d="M{edge + 6},{y(curve.y[-1])}L{x.end + 12},{at}"/>'
        f'<text class="name" x="{x.end + 16}" y="{at + 4}">{escape(curve.method)}</text></g>'
    )


def curve_groups(board: Board) -> Mapping[str, Sequence[Curve]]:
    """Curves that share a chart, by the chart's title."""
    titles = {measure.name: measure.title for measure in board.measures}
    known = {method.name for method in board.methods}
    groups: dict[tuple[str, str], list[Curve]] = {}
    for curve in board.curves:
        if curve.method in known and len(curve.x):
            groups.setdefault((curve.measure, curve.knob), []).append(curve)
    return {titles.get(measure, measure.replace("_", " ")): group for (measure, _), group in groups.items()}
