"""The heat map as a matplotlib figure."""

from typing import Any

from diffmask.display.grid import Grid
from diffmask.errors import TaskError


def draw(grid: Grid) -> Any:
    """Words down, layers across, as in De Cao et al. 2020; the figure belongs to no window."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise TaskError("drawing needs matplotlib; pip install 'diffmask[plot]'") from None
    figure = Figure(figsize=(2 + 0.45 * len(grid.headings), 1 + 0.28 * max(len(grid.words), 1)), layout="constrained")
    axes = figure.add_subplot()
    axes.set_title(grid.title, loc="left", fontsize=10)
    axes.set_xlabel("layer" if len(grid.headings) > 1 else "")
    axes.set_xticks(range(len(grid.headings)), grid.headings)
    axes.set_yticks(range(len(grid.words)), [_plain(word) for word in grid.words])
    if grid.words:
        image = axes.imshow(grid.values, aspect="auto", cmap="Oranges", vmin=0, vmax=1)
        figure.colorbar(image, ax=axes, label="needed")
    return figure


def _plain(word: str) -> str:
    """matplotlib takes a pair of dollars for mathematics."""
    return word.replace("$", r"\$")
