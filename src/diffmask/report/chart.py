"""Axes and marks of the page's charts, as SVG text. Colours are classes of the stylesheet."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 480.0, 300.0
LEFT, RIGHT, TOP, BOTTOM = 46.0, 470.0, 14.0, 256.0
MARKS = ("circle", "square", "triangle", "diamond", "cross", "wedge", "bar", "plus")


@dataclass(frozen=True)
class Axis:
    """Values from low to high on pixels from start to end."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        """The pixel of a value; what lies outside is drawn on the edge."""
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


def fitted(values: Sequence[float], start: float, end: float, *, log: bool = False) -> Axis:
    """An axis around values, with a little room; from zero where zero is near."""
    finite = [value for value in values if math.isfinite(value) and (value > 0 or not log)] or [0.1, 1.0]
    low, high = min(finite), max(finite)
    if log:
        return Axis(low / 2, max(high, low * 10) * 2, start, end, log=True)
    low = min(low, 0.0) if low < 0.5 * high else low
    room = 0.06 * (high - low) or 0.5
    return Axis(low if low == 0 else low - room, high + room, start, end)


def frame(x: Axis, y: Axis, x_title: str, tick: Callable[[float], str]) -> str:
    """Grid lines with their numbers, and the title of the axis below."""
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


def mark(kind: int, x: float, y: float) -> str:
    """A point; its shape tells methods apart where colour cannot."""
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


def spread(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Places near the wanted ones, at least a gap apart and within bounds where that is possible.

    >>> spread([10.0, 11.0, 50.0], 10.0, 0.0, 60.0)
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


def svg(body: str, title: str, height: float = HEIGHT) -> str:
    """The chart with a name that is read aloud."""
    name = escape(title)
    return f'<svg class="chart" viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{name}">{body}</svg>'


def _tick(value: float) -> str:
    return f"{value:g}".replace("-", "−")
