"""The table behind every picture of an explanation: words down, layers across."""

from dataclasses import dataclass

from diffmask.explanation import Explanation, HardMask


@dataclass(frozen=True)
class Grid:
    """Everything a picture shows, as plain values."""

    title: str
    headings: tuple[str, ...]
    """Short names of the layers, or `score` alone."""
    words: tuple[str, ...]
    values: tuple[tuple[float, ...], ...]
    """One row a word, between 0 and 1."""
    kept: tuple[bool, ...]
    """Whether the word survives the last hard mask."""
    checks: tuple[HardMask, ...]
    """One a column."""

    @property
    def verdict(self) -> str:
        """What the last hard mask claims, and what it does."""
        last = self.checks[-1]
        if not last.kept:
            return "There are no words that could be masked."
        gone, change = sum(not kept for kept in last.kept), f"a change of {last.divergence:.3f} nats"
        return f"Without {gone} of {len(last.kept)} words the model says {last.prediction}: {change}."


def grid_of(explanation: Explanation, threshold: float) -> Grid:
    """The grid of an explanation, its masks put to the test."""
    checks = explanation.checks(threshold)
    if explanation.by_layer is None:
        top = max(explanation.scores.abs().max().item(), 1e-12) if explanation.words else 1.0
        values = [(max(score / top, 0.0),) for score in explanation.scores.tolist()]
    else:
        values = [tuple(row) for row in explanation.by_layer.T.tolist()]
    return Grid(
        title=f"The model says {explanation.prediction}.",
        headings=tuple(short(layer) for layer in explanation.layers) or ("score",),
        words=explanation.words,
        values=tuple(values),
        kept=checks[-1].kept,
        checks=tuple(checks),
    )


def short(layer: str) -> str:
    """A layer's name as a heading.

    >>> [short(name) for name in ("embedding", "block3", "output")]
    ['E', '3', 'out']
    """
    return {"embedding": "E", "output": "out"}.get(layer, layer.removeprefix("block"))
