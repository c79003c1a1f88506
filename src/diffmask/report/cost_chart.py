"""Cost against faithfulness: the better methods stand up and to the left."""

from html import escape

from diffmask.board import Board, Estimate, Measure
from diffmask.report.chart import BOTTOM, LEFT, RIGHT, TOP, Axis, fitted, frame, mark, svg
from diffmask.report.number import duration

Box = tuple[float, float, float, float]


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
    taken: list[Box] = [(x(seconds) - 6, y(found.mean) - 6, 12, 12) for _, _, seconds, found in known]
    taken += [
        (x(seconds) - 2, min(y(found.low), y(found.high)), 4, abs(y(found.low) - y(found.high)))
        for _, _, seconds, found in known
    ]
    points = "".join(_point(kind, name, x(seconds), found, y, taken) for kind, name, seconds, found in known)
    return svg(
        frame(x, y, "seconds a text, logarithmic", duration) + points,
        f"{measure.title} against seconds a text; better is up, cheaper is left. Values in the tables.",
    )


def _point(kind: int, name: str, at: float, found: Estimate, y: Axis, taken: list[Box]) -> str:
    height = y(found.mean)
    left, baseline = _place(name, at, height, taken)
    anchor = (at - 8, "end") if left < at else (left, "start")
    return (
        f'<g class="m{kind % 8}"><title>{escape(name)}</title>'
        f'<line class="whisker" x1="{at}" x2="{at}" y1="{y(found.low)}" y2="{y(found.high)}"/>{mark(kind, at, height)}'
        f'<text class="name" x="{anchor[0]}" y="{baseline}" text-anchor="{anchor[1]}">{escape(name)}</text></g>'
    )


def _place(name: str, x: float, y: float, taken: list[Box]) -> tuple[float, float]:
    """Where the name stands: the first place around the point that nothing else has taken."""
    width = 7.4 * len(name)
    around = [(x + 8, y - 8), (x - 8 - width, y - 8)]
    for step in range(1, 8):
        around += [(x + 8, y - 8 - 11 * step), (x - 8 - width, y - 8 - 11 * step)]
        around += [(x + 8, y - 8 + 11 * step), (x - 8 - width, y - 8 + 11 * step)]
    boxes = [(left, top, width, 14.0) for left, top in around if left >= LEFT and left + width <= RIGHT + 6]
    free = next((box for box in boxes if not any(_overlap(box, other) for other in taken)), (x + 8, y - 8, width, 14.0))
    taken.append(free)
    return round(free[0], 1), round(free[1] + 12, 1)


def _overlap(first: Box, second: Box) -> bool:
    apart = (
        first[0] + first[2] <= second[0]
        or second[0] + second[2] <= first[0]
        or first[1] + first[3] <= second[1]
        or second[1] + second[3] <= first[1]
    )
    return not apart
