"""A problem on which ROAR is wrong and Recursive ROAR is right. Hooker et al. 2019, section 4; Madsen et al. 2022, D.

x = a z / 10 + d eta + epsilon / 10 has 16 features, only four of which depend on the label 1[z > 0]; the rest help a
model subtract the noise. Each of the four suffices, so an order is right when the score falls after exactly four.

The worked example: one text, its importances as shades, and what is masked at some shares. In LaTeX.

Madsen et al. 2022, figure 1.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from diffmask.core.capabilities import Retrainable, require, row_text
from diffmask.metrics.roar.masking import number_to_mask, select_most_important
from diffmask.metrics.roar.step import RoarStep

FEATURES, INFORMATIVE = 16, 4
Array = NDArray[np.float64]


@dataclass(frozen=True)
class Rows:
    """Features and labels."""

    x: Array
    y: Array


def draw(rows: int) -> tuple[Rows, Rows]:
    """As many training as test rows, from the published seed."""
    source = np.random.default_rng(0)
    a = np.concatenate([source.normal(size=INFORMATIVE), np.zeros(FEATURES - INFORMATIVE)])
    d = source.normal(size=FEATURES)
    return _rows(source, a, d, rows), _rows(source, a, d, rows)


def _rows(source: np.random.Generator, a: Array, d: Array, rows: int) -> Rows:
    z, eta, epsilon = source.normal(size=(3, rows, 1))
    return Rows(a * z / 10 + d * eta + epsilon / 10, (z[:, 0] > 0).astype(float))


def logistic_regression(rows: Rows, kept: NDArray[np.bool_], steps: int = 60) -> Array:
    """Coefficients of the kept features and an intercept, last, by Newton's method; the others are zero.

    A trace of ridge keeps the solution finite: the classes can be told apart without error.
    """
    x = np.concatenate([rows.x[:, kept], np.ones((len(rows.x), 1))], axis=1)
    found = np.zeros(x.shape[1])
    ridge = 1e-6 * np.eye(x.shape[1])

    def loss(at: Array) -> float:
        return float(np.logaddexp(0, (1 - 2 * rows.y) * (x @ at)).sum() + at @ ridge @ at / 2)

    for _ in range(steps):
        p = 0.5 * (1 + np.tanh(x @ found / 2))
        slope = x.T @ (rows.y - p) - ridge @ found
        step = np.linalg.solve((x * (p * (1 - p))[:, None]).T @ x + ridge, slope)
        sizes = [2.0**-halvings for halvings in range(30) if loss(found + 2.0**-halvings * step) < loss(found)][:1]
        if not sizes or np.abs(step).max() < 1e-8 * (1 + np.abs(found).max()):
            break
        found = found + sizes[0] * step
    full = np.zeros(FEATURES + 1)
    full[np.append(kept, True)] = found
    return full


def accuracy(rows: Rows, coefficients: Array) -> float:
    """Share of rows on the right side."""
    return float(((rows.x @ coefficients[:-1] + coefficients[-1] > 0) == (rows.y == 1)).mean())


Order = Callable[[NDArray[np.bool_], Array], int]
"""From the features still there and the coefficients of a model of them to the feature that goes next."""


def curve(train: Rows, test: Rows, order: Order) -> list[float]:
    """Accuracy with 0, 1, ... 16 features removed, a model trained anew each time."""
    kept = np.ones(FEATURES, dtype=bool)
    scores = []
    for _ in range(FEATURES + 1):
        coefficients = logistic_regression(train, kept)
        scores.append(accuracy(test, coefficients))
        if kept.any():
            kept[order(kept, coefficients)] = False
    return scores


def synthetic(rows: int = 20_000) -> dict[str, list[float]]:
    """The four published curves."""
    train, test = draw(rows)
    first = np.abs(logistic_regression(train, np.ones(FEATURES, dtype=bool))[:-1])
    truth = np.arange(FEATURES)

    def by(scores: Array) -> Order:
        return lambda kept, coefficients: int(np.where(kept, scores, -np.inf).argmax())

    return {
        "roar": curve(train, test, by(first)),
        "recursive roar": curve(train, test, lambda kept, found: int(np.where(kept, np.abs(found[:-1]), -1).argmax())),
        "truth": curve(train, test, by(-truth.astype(float))),
        # The published one: what tells nothing first, and then the four in their order.
        "worst": curve(train, test, by(np.where(truth < INFORMATIVE, -truth, truth).astype(float))),
    }


def falls_after(scores: list[float], level: float = 0.95) -> int:
    """How many features had to go before the score fell.

    >>> falls_after([1.0, 1.0, 0.5, 0.5])
    2
    """
    return next(place for place, score in enumerate(scores) if score < level)


def masking_example(step: RoarStep, row: int, shares: Sequence[int] = (0, 20, 40), split: str = "test") -> str:
    """A line for each share of tokens masked; importances are those of the step's own model."""
    task = step.task()
    batch = task.data[split][row : row + 1]
    scores = step.importances()[split][row : row + 1]
    maskable, words = require(task, Retrainable, "ROAR").roar_maskable(batch), row_text(task).describe(batch)[0]
    most = float(scores.abs().max().clamp(min=1e-30))
    lines = []
    for share in shares:
        number = number_to_mask(maskable, share, "quantile")
        masked = select_most_important(scores, maskable, maskable & False, number)[0].tolist()
        shown = [
            "[MASK]" if masked[place] else _shaded(word, abs(float(scores[0, place])) / most)
            for place, word in enumerate(words)
            if maskable[0, place]
        ]
        lines.append(f"{share} \\% & {' '.join(shown)} \\\\")
    return "\n".join(["\\begin{tabular}{rl}", *lines, "\\end{tabular}", ""])


def _shaded(word: str, depth: float) -> str:
    return f"\\colorbox{{red!{round(100 * depth)}}}{{{word}}}"
