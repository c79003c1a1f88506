"""Cost against faithfulness: the better methods stand up and to the left."""

from html import escape
from typing import Literal

from diffmask.board import Board, Estimate, Measure
from diffmask.report.chart import BOTTOM, LEFT, RIGHT, TOP, WIDTH, Axis, fitted, frame, mark, svg
from diffmask.report.number import duration

Box = tuple[float, float, float, float]
Anchor = Literal["start", "middle", "end"]


def cost_chart(board: Board, measure: Measure) -> str:
    """Seconds a text, on a logarithmic axis, against a measure with its interval; better is always up."""
    known = [
        (kind, method.name, method.cost["seconds"], method.estimates[measure.name])
        for kind, method in enumerate(board.methods)
        if measure.name in method.estimates and "seconds" in method.cost
    ]
    # One scale of cost for all measures.
    x = fitted([method.cost.get("seconds", 0.0) for method in board.methods], LEFT, RIGHT - 50, log=True)
    up, down = (TOP, BOTTOM) if measure.better == "higher" else (BOTTOM, TOP)
    y = fitted([value for *_, found in known for value in (found.low, found.high)], down, up)
    taken: list[Box] = [(x(seconds) - 6, y(found.mean) - 6, 12.0, 12.0) for _, _, seconds, found in known]
    taken += [
        (x(seconds) - 2.0, min(y(found.low), y(found.high)), 4.0, abs(y(found.low) - y(found.high)))
        for _, _, seconds, found in known
    ]
    points = "".join(_point(kind, name, x(seconds), found, y, taken) for kind, name, seconds, found in known)
    return svg(
        frame(x, y, "seconds a text, logarithmic", duration) + points,
        f"{measure.title} against seconds a text; better is up, cheaper is left. Values in the tables.",
    )


def _point(kind: int, name: str, at: float, found: Estimate, y: Axis, taken: list[Box]) -> str:
    upper, height, lower = sorted((y(found.low), y(found.mean), y(found.high)))
    x, baseline, anchor = _place(name, at, (upper, height, lower), taken)
    return (
        f'<g class="m{kind % 8}"><title>{escape(name)}</title>'
        f'<line class="whisker" x1="{at}" x2="{at}" y1="{upper}" y2="{lower}"/>{mark(kind, at, height)}'
        f'<text class="name" x="{x}" y="{baseline}" text-anchor="{anchor}">{escape(name)}</text></g>'
    )


def _place(name: str, x: float, heights: tuple[float, float, float], taken: list[Box]) -> tuple[float, float, Anchor]:
    """Where the name stands: the first place around the point that nothing else has taken."""
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
