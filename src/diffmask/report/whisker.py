"""A mean and its interval drawn in a cell, on the scale of its column."""

from diffmask.board import Board, Estimate, Measure
from diffmask.report.chart import Axis, fitted
from diffmask.report.standing import is_baseline

WIDTH = 152.0


def whiskers(board: Board, measure: Measure) -> dict[str, str]:
    """By method's name: a line for the interval, a dot for the mean; dashed, where the first baseline's mean is."""
    found = {
        method.name: method.estimates[measure.name] for method in board.methods if measure.name in method.estimates
    }
    if not found:
        return {}
    axis = fitted([value for one in found.values() for value in (one.low, one.high)], 4.0, WIDTH - 4)
    chance = [found[method.name].mean for method in board.methods if is_baseline(method) and method.name in found]
    line = f'<line class="chance" x1="{axis(chance[0])}" x2="{axis(chance[0])}" y1="0" y2="16"/>' if chance else ""
    return {name: _drawn(one, axis, line) for name, one in found.items()}


def _drawn(found: Estimate, axis: Axis, line: str) -> str:
    return (
        f'<svg class="whisker" viewBox="0 0 {WIDTH} 16" aria-hidden="true">{line}'
        f'<line x1="{axis(found.low)}" x2="{axis(found.high)}" y1="8" y2="8"/>'
        f'<circle cx="{axis(found.mean)}" cy="8" r="3.4"/></svg>'
    )
