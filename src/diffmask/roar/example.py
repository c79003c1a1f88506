"""The worked example: one text, its importances as shades, and what is masked at some shares. In LaTeX.

Madsen et al. 2022, figure 1.
"""

from collections.abc import Sequence

from diffmask.roar.masking import most_important, number_to_mask
from diffmask.roar.steps import Step


def masking_example(step: Step, row: int, shares: Sequence[int] = (0, 20, 40), split: str = "test") -> str:
    """A line for each share of tokens masked; importances are those of the step's own model."""
    task = step.task()
    batch = task.data[split][row : row + 1]
    scores = step.importances()[split][row : row + 1]
    maskable, words = task.primary(batch), task.describe(batch)[0]
    most = float(scores.abs().max().clamp(min=1e-30))
    lines = []
    for share in shares:
        number = number_to_mask(maskable, share, "quantile")
        masked = most_important(scores, maskable, maskable & False, number)[0].tolist()
        shown = [
            "[MASK]" if masked[place] else _shaded(word, abs(float(scores[0, place])) / most)
            for place, word in enumerate(words)
            if maskable[0, place]
        ]
        lines.append(f"{share} \\% & {' '.join(shown)} \\\\")
    return "\n".join(["\\begin{tabular}{rl}", *lines, "\\end{tabular}", ""])


def _shaded(word: str, depth: float) -> str:
    return f"\\colorbox{{red!{round(100 * depth)}}}{{{word}}}"
