"""Two illustrations of ROAR: a synthetic problem on which ROAR is wrong, and a masked example text in LaTeX.

Hooker et al. 2019, section 4; Madsen et al. 2022, appendix D: x = a z / 10 + d eta + epsilon / 10 has 16 features, only
four of which depend on the label 1[z > 0]. The others help a model to subtract the noise. Each of the four suffices, so
an order is right if the score falls after exactly four features. The example text is figure 1 of Madsen et al. 2022.
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
class LabelledFeatures:
    """Features and labels."""

    x: Array
    y: Array


def draw_problem(rows: int) -> tuple[LabelledFeatures, LabelledFeatures]:
    """Draw training and test rows from the published seed."""
    source = np.random.default_rng(0)
    a = np.concatenate([source.normal(size=INFORMATIVE), np.zeros(FEATURES - INFORMATIVE)])
    d = source.normal(size=FEATURES)
    return _rows(source, a, d, rows), _rows(source, a, d, rows)


def _rows(source: np.random.Generator, a: Array, d: Array, rows: int) -> LabelledFeatures:
    z, eta, epsilon = source.normal(size=(3, rows, 1))
    return LabelledFeatures(a * z / 10 + d * eta + epsilon / 10, (z[:, 0] > 0).astype(float))


def logistic_regression(rows: LabelledFeatures, kept: NDArray[np.bool_], steps: int = 60) -> Array:
    """Fit the coefficients of the kept features and the intercept, which is last, by Newton's method.

    The other coefficients are zero. A small ridge penalty keeps the solution finite, because the classes are separable.
    """
    x = np.concatenate([rows.x[:, kept], np.ones((len(rows.x), 1))], axis=1)
    coefficients = np.zeros(x.shape[1])
    ridge = 1e-6 * np.eye(x.shape[1])

    def loss(at: Array) -> float:
        return float(np.logaddexp(0, (1 - 2 * rows.y) * (x @ at)).sum() + at @ ridge @ at / 2)

    for _ in range(steps):
        p = 0.5 * (1 + np.tanh(x @ coefficients / 2))
        slope = x.T @ (rows.y - p) - ridge @ coefficients
        step = np.linalg.solve((x * (p * (1 - p))[:, None]).T @ x + ridge, slope)
        sizes = [
            2.0**-halvings for halvings in range(30) if loss(coefficients + 2.0**-halvings * step) < loss(coefficients)
        ][:1]
        if not sizes or np.abs(step).max() < 1e-8 * (1 + np.abs(coefficients).max()):
            break
        coefficients = coefficients + sizes[0] * step
    full = np.zeros(FEATURES + 1)
    full[np.append(kept, True)] = coefficients
    return full


def linear_accuracy(rows: LabelledFeatures, coefficients: Array) -> float:
    """Compute the share of rows on the right side of the decision boundary."""
    return float(((rows.x @ coefficients[:-1] + coefficients[-1] > 0) == (rows.y == 1)).mean())


Order = Callable[[NDArray[np.bool_], Array], int]
"""Maps the kept features and the coefficients of a model of them to the next feature to remove."""


def removal_curve(train: LabelledFeatures, test: LabelledFeatures, order: Order) -> list[float]:
    """Compute the accuracy with 0, 1, ..., 16 features removed; a model is trained each time."""
    kept = np.ones(FEATURES, dtype=bool)
    scores = []
    for _ in range(FEATURES + 1):
        coefficients = logistic_regression(train, kept)
        scores.append(linear_accuracy(test, coefficients))
        if kept.any():
            kept[order(kept, coefficients)] = False
    return scores


def synthetic_curves(rows: int = 20_000) -> dict[str, list[float]]:
    """Compute the four published curves."""
    train, test = draw_problem(rows)
    first = np.abs(logistic_regression(train, np.ones(FEATURES, dtype=bool))[:-1])
    truth = np.arange(FEATURES)

    def by(scores: Array) -> Order:
        return lambda kept, coefficients: int(np.where(kept, scores, -np.inf).argmax())

    return {
        "roar": removal_curve(train, test, by(first)),
        "recursive roar": removal_curve(
            train, test, lambda kept, coefficients: int(np.where(kept, np.abs(coefficients[:-1]), -1).argmax())
        ),
        "truth": removal_curve(train, test, by(-truth.astype(float))),
        # As published: uninformative features first, then the four informative ones in their order.
        "worst": removal_curve(train, test, by(np.where(truth < INFORMATIVE, -truth, truth).astype(float))),
    }


def falls_after(scores: list[float], level: float = 0.95) -> int:
    """Count the features removed before the score falls below a level.

    >>> falls_after([1.0, 1.0, 0.5, 0.5])
    2
    """
    return next(count for count, score in enumerate(scores) if score < level)


def masking_example(step: RoarStep, row: int, shares: Sequence[int] = (0, 20, 40), split: str = "test") -> str:
    """Return a LaTeX table with one line per share of masked tokens, by the scores for the step's model."""
    task = step.task()
    batch = task.data[split][row : row + 1]
    scores = step.importances()[split][row : row + 1]
    maskable, words = require(task, Retrainable, "ROAR").roar_maskable(batch), row_text(task).describe(batch)[0]
    largest = float(scores.abs().max().clamp(min=1e-30))
    lines = []
    for share in shares:
        number = number_to_mask(maskable, share, "quantile")
        masked = select_most_important(scores, maskable, maskable & False, number)[0].tolist()
        cells = [
            "[MASK]" if masked[position] else _shaded(word, abs(float(scores[0, position])) / largest)
            for position, word in enumerate(words)
            if maskable[0, position]
        ]
        lines.append(f"{share} \\% & {' '.join(cells)} \\\\")
    return "\n".join(["\\begin{tabular}{rl}", *lines, "\\end{tabular}", ""])


def _shaded(word: str, depth: float) -> str:
    return f"\\colorbox{{red!{round(100 * depth)}}}{{{word}}}"
