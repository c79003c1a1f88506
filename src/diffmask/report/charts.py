"""Charts of the benchmark page as SVG: curves, cost against quality, and intervals in table cells.

Colours are classes of the stylesheet.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Literal

from diffmask.results.benchmark_result import BenchmarkResult, Curve, Estimate, MetricInfo
from diffmask.results.formatting import format_duration

WIDTH, HEIGHT = 480.0, 300.0
LEFT, RIGHT, TOP, BOTTOM = 46.0, 470.0, 14.0, 256.0
MARKS = ("circle", "square", "triangle", "diamond", "cross", "wedge", "bar", "plus")


@dataclass(frozen=True)
class Axis:
    """Scale that maps values in [low, high] to pixels in [start, end]."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        """Map a value to a pixel; values outside are drawn at the edge."""
        low, high, at = (self._scaled(number) for number in (self.low, self.high, value))
        return round(self.start + (self.end - self.start) * min(max((at - low) / (high - low), 0.0), 1.0), 1)

    def _scaled(self, value: float) -> float:
        return math.log10(max(value, 1e-12)) if self.log else value

    @property
    def ticks(self) -> list[float]:
        """Powers of ten, or round numbers at 1, 2 or 5 times one.

        >>> Axis(0.0, 0.47, 0.0, 1.0).ticks, Axis(0.001, 2.0, 0.0, 1.0, log=True).ticks
        ([0.0, 0.1, 0.2, 0.3, 0.4], [0.001, 0.01, 0.1, 1.0])
        """
        if self.log:
            powers = range(math.ceil(math.log10(self.low) - 1e-9), math.floor(math.log10(self.high) + 1e-9) + 1)
            return [10.0**power for power in powers]
        rough = (self.high - self.low) / 4
        power = 10.0 ** math.floor(math.log10(rough))
        step = min((power * times for times in (1, 2, 5, 10)), key=lambda size: abs(size - rough))
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [round(index * step, 10) for index in range(first, last + 1)]


def fit_axis(values: Sequence[float], start: float, end: float, *, log: bool = False) -> Axis:
    """Fit an axis to values with a small margin; include zero if it is near."""
    finite = [value for value in values if math.isfinite(value) and (value > 0 or not log)] or [0.1, 1.0]
    low, high = min(finite), max(finite)
    if log:
        return Axis(low / 2, max(high, low * 10) * 2, start, end, log=True)
    low = min(low, 0.0) if low < 0.5 * high else low
    room = 0.06 * (high - low) or 0.5
    return Axis(low if low == 0 else low - room, high + room, start, end)


def draw_axes(x: Axis, y: Axis, x_title: str, tick: Callable[[float], str]) -> str:
    """Draw grid lines, tick labels and the title of the x axis."""
    parts = []
    for value in y.ticks:
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{x.end}" y1="{y(value)}" y2="{y(value)}"/>')
        parts.append(f'<text class="tick" x="{LEFT - 8}" y="{y(value) + 4}" text-anchor="end">{_tick(value)}</text>')
    for value in x.ticks:
        parts.append(f'<line class="grid" x1="{x(value)}" x2="{x(value)}" y1="{BOTTOM}" y2="{BOTTOM + 4}"/>')
        parts.append(f'<text class="tick" x="{x(value)}" y="{BOTTOM + 18}" text-anchor="middle">{tick(value)}</text>')
    title = (
        f'<text class="axis" x="{(LEFT + x.end) / 2}" y="{HEIGHT - 6}" text-anchor="middle">{escape(x_title)}</text>'
    )
    return "".join(parts) + title


def draw_marker(kind: int, x: float, y: float) -> str:
    """Draw a point; its shape distinguishes methods without colour."""
    shapes = {
        "circle": "M-4,0a4,4 0 1 0 8,0a4,4 0 1 0 -8,0z",
        "square": "M-3.5,-3.5h7v7h-7z",
        "triangle": "M0,-4.6L4.4,3.4H-4.4z",
        "diamond": "M0,-5L4.4,0L0,5L-4.4,0z",
        "cross": "M-4,-2.2L-2.2,-4L0,-1.8L2.2,-4L4,-2.2L1.8,0L4,2.2L2.2,4L0,1.8L-2.2,4L-4,2.2L-1.8,0z",
        "wedge": "M0,4.6L4.4,-3.4H-4.4z",
        "bar": "M-2,-5h4v10h-4z",
        "plus": "M-1.4,-4.6h2.8v3.2h3.2v2.8h-3.2v3.2h-2.8v-3.2h-3.2v-2.8h3.2z",
    }
    return f'<path class="mark" transform="translate({x} {y})" d="{shapes[MARKS[kind % len(MARKS)]]}"/>'


def spread_labels(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Places near the wanted ones, at least a gap apart and within bounds where that is possible.

    >>> spread_labels([10.0, 11.0, 50.0], 10.0, 0.0, 60.0)
    [10.0, 20.0, 50.0]
    """
    order = sorted(range(len(wanted)), key=wanted.__getitem__)
    placed = [0.0] * len(wanted)
    above = low - gap
    for index in order:
        above = placed[index] = max(wanted[index], above + gap)
    below = high + gap
    for index in reversed(order):
        below = placed[index] = min(placed[index], below - gap)
    return placed


def wrap_svg(body: str, title: str, height: float = HEIGHT) -> str:
    """Wrap the chart in an SVG element with an accessible name."""
    name = escape(title)
    return f'<svg class="chart" viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{name}">{body}</svg>'


def _tick(value: float) -> str:
    return f"{value:g}".replace("-", "−")


def curve_chart(board: BenchmarkResult, curves: Sequence[Curve], title: str) -> str:
    """Draw one line per method with its interval, labelled at its end."""
    order = [method.name for method in board.methods]
    longest = max(len(curve.method) for curve in curves)
    x = fit_axis([value for curve in curves for value in curve.x], LEFT, RIGHT - min(20.0 + 7 * longest, 190.0))
    y = fit_axis([value for curve in curves for value in (*curve.y, *curve.low, *curve.high)], BOTTOM, TOP)
    lines = "".join(_line(curve, order.index(curve.method), x, y) for curve in curves)
    ends = spread_labels([y(curve.y[-1]) for curve in curves], 15.0, TOP, BOTTOM)
    names = "".join(
        _line_label(curve, order.index(curve.method), x, y, end) for curve, end in zip(curves, ends, strict=True)
    )
    shares = max(x.ticks) <= 1
    return wrap_svg(
        draw_axes(x, y, curves[0].x_label, lambda value: f"{100 * value:g} %" if shares else f"{value:g}")
        + lines
        + names,
        f"{title} against {curves[0].x_label}: {', '.join(curve.method for curve in curves)}. "
        "Values in the table below.",
    )


def _line(curve: Curve, kind: int, x: Axis, y: Axis) -> str:
    points = " ".join(f"{x(a)},{y(b)}" for a, b in zip(curve.x, curve.y, strict=True))
    band = ""
    if curve.low and curve.high:
        upper = [f"{x(a)},{y(b)}" for a, b in zip(curve.x, curve.high, strict=True)]
        lower = [f"{x(a)},{y(b)}" for a, b in zip(curve.x, curve.low, strict=True)]
        band = f'<polygon class="band" points="{" ".join([*upper, *reversed(lower)])}"/>'
    marks = "".join(draw_marker(kind, x(a), y(b)) for a, b in zip(curve.x, curve.y, strict=True))
    return f'<g class="m{kind % 8}"><title>{escape(curve.method)}</title>{band}<polyline points="{points}"/>{marks}</g>'


def _line_label(curve: Curve, kind: int, x: Axis, y: Axis, at: float) -> str:
    edge = x(curve.x[-1])
    return (
        f'<g class="m{kind % 8}"><path class="lead" d="M{edge + 6},{y(curve.y[-1])}L{x.end + 12},{at}"/>'
        f'<text class="name" x="{x.end + 16}" y="{at + 4}">{escape(curve.method)}</text></g>'
    )


def curve_groups(board: BenchmarkResult) -> Mapping[str, Sequence[Curve]]:
    """Group the curves that share a chart, by its title."""
    titles = {metric.name: metric.title for metric in board.metrics}
    known = {method.name for method in board.methods}
    groups: dict[tuple[str, str], list[Curve]] = {}
    for curve in board.curves:
        if curve.method in known and len(curve.x):
            groups.setdefault((curve.metric, curve.x_label), []).append(curve)
    return {titles.get(metric, metric.replace("_", " ")): group for (metric, _), group in groups.items()}


Box = tuple[float, float, float, float]
Anchor = Literal["start", "middle", "end"]


def cost_chart(board: BenchmarkResult, metric: MetricInfo) -> str:
    """Draw a metric with its interval against seconds per text (log scale); better is always up."""
    known = [
        (kind, method.name, method.cost["seconds"], method.estimates[metric.name])
        for kind, method in enumerate(board.methods)
        if metric.name in method.estimates and "seconds" in method.cost
    ]
    # All metrics share one cost scale.
    x = fit_axis([method.cost.get("seconds", 0.0) for method in board.methods], LEFT, RIGHT - 50, log=True)
    up, down = (TOP, BOTTOM) if metric.higher_is_better else (BOTTOM, TOP)
    y = fit_axis([value for *_, estimate in known for value in (estimate.low, estimate.high)], down, up)
    taken: list[Box] = [(x(seconds) - 6, y(estimate.mean) - 6, 12.0, 12.0) for _, _, seconds, estimate in known]
    taken += [
        (x(seconds) - 2.0, min(y(estimate.low), y(estimate.high)), 4.0, abs(y(estimate.low) - y(estimate.high)))
        for _, _, seconds, estimate in known
    ]
    points = "".join(_point(kind, name, x(seconds), estimate, y, taken) for kind, name, seconds, estimate in known)
    return wrap_svg(
        draw_axes(x, y, "seconds per text, log scale", format_duration) + points,
        f"{metric.title} against seconds per text; better is up, cheaper is left. Values in the tables.",
    )


def _point(kind: int, name: str, at: float, estimate: Estimate, y: Axis, taken: list[Box]) -> str:
    upper, height, lower = sorted((y(estimate.low), y(estimate.mean), y(estimate.high)))
    x, baseline, anchor = _place_label(name, at, (upper, height, lower), taken)
    return (
        f'<g class="m{kind % 8}"><title>{escape(name)}</title>'
        f'<line class="whisker" x1="{at}" x2="{at}" y1="{upper}" y2="{lower}"/>{draw_marker(kind, at, height)}'
        f'<text class="name" x="{x}" y="{baseline}" text-anchor="{anchor}">{escape(name)}</text></g>'
    )


def _place_label(
    name: str, x: float, heights: tuple[float, float, float], taken: list[Box]
) -> tuple[float, float, Anchor]:
    """Find the first free position for a label around a point."""
    width, (upper, middle, lower) = 7.4 * len(name), heights
    anchors: dict[Anchor, tuple[float, float]] = {
        "start": (x + 8, x + 8), "end": (x - 8, x - 8 - width), "middle": (x, x - width / 2)
    }  # fmt: skip
    around: list[tuple[Anchor, float]] = [
        ("start", middle - 8), ("end", middle - 8), ("middle", upper - 17), ("middle", lower + 3)
    ]  # fmt: skip
    for step in range(11, 88, 11):
        around += [("start", middle - 8 - step), ("end", middle - 8 - step)]
        around += [("start", middle - 8 + step), ("end", middle - 8 + step)]
    for anchor, top in around:
        at, left = anchors[anchor]
        box = (left, top, width, 14.0)
        if left >= LEFT and left + width <= WIDTH + 6 and not any(_overlap(box, other) for other in taken):
            taken.append(box)
            return round(at, 1), round(top + 12, 1), anchor
    return round(x + 8, 1), round(middle + 4, 1), "start"


def _overlap(first: Box, second: Box) -> bool:
    apart = (
        first[0] + first[2] <= second[0]
        or second[0] + second[2] <= first[0]
        or first[1] + first[3] <= second[1]
        or second[1] + second[3] <= first[1]
    )
    return not apart


CELL_WIDTH = 152.0


def interval_cells(board: BenchmarkResult, metric: MetricInfo) -> dict[str, str]:
    """Draw each method's mean and interval for a table cell; a dashed line marks the first baseline's mean."""
    estimates = {
        method.name: method.estimates[metric.name] for method in board.methods if metric.name in method.estimates
    }
    if not estimates:
        return {}
    axis = fit_axis(
        [value for estimate in estimates.values() for value in (estimate.low, estimate.high)], 4.0, CELL_WIDTH - 4
    )
    chance = [
        estimates[method.name].mean for method in board.methods if method.is_baseline and method.name in estimates
    ]
    line = f'<line class="chance" x1="{axis(chance[0])}" x2="{axis(chance[0])}" y1="0" y2="16"/>' if chance else ""
    return {name: _interval_svg(estimate, axis, line) for name, estimate in estimates.items()}


def _interval_svg(estimate: Estimate, axis: Axis, line: str) -> str:
    return (
        f'<svg class="whisker" viewBox="0 0 {CELL_WIDTH} 16" aria-hidden="true">{line}'
        f'<line x1="{axis(estimate.low)}" x2="{axis(estimate.high)}" y1="8" y2="8"/>'
        f'<circle cx="{axis(estimate.mean)}" cy="8" r="3.4"/></svg>'
    )
