"""Figures of tolerated noise and of information: numbers in, a matplotlib figure out; no torch, no global state."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage

from diffmask.errors import InputError

DARK_IS_SMALL = "GnBu_r"
LONGEST_LABEL = 14


def draw_words(
    sigma: Float[np.ndarray, " word"], words: Sequence[str] | None = None, words_per_strip: int = 10
) -> Figure:
    """Sigma of each word as coloured cells, dark = small = important; long sentences wrap into several strips."""
    labels, columns = _labels(words, len(sigma)), min(words_per_strip, len(sigma))
    strips = math.ceil(len(sigma) / columns)
    figure = Figure(figsize=(1.5 + 1.1 * columns, 0.4 + 1.0 * strips), layout="constrained")
    panels = figure.subplots(strips, 1, squeeze=False)[:, 0]
    for strip, axes in enumerate(panels):
        part = slice(strip * columns, (strip + 1) * columns)
        image = _draw_cells(axes, _padded(sigma[part], columns), (float(sigma.min()), float(sigma.max())))
        _name_columns(axes, labels[part])
    figure.colorbar(image, ax=list(panels), label="sigma (dark: important)")
    return figure


def draw_layers(
    values: Float[np.ndarray, "layer word"],
    words: Sequence[str] | None = None,
    layers: Sequence[str] | None = None,
    label: str = "H(X|s), nats",
) -> Figure:
    """A layer x word heat map, first layer at the bottom, dark = little lost."""
    rows, columns = values.shape
    figure = Figure(figsize=(2.0 + 0.7 * columns, 1.2 + 0.4 * rows), layout="constrained")
    axes = figure.subplots()
    image = axes.imshow(values, cmap=DARK_IS_SMALL, aspect="auto", origin="lower")
    axes.set_xticks(range(columns), _labels(words, columns), rotation=45, ha="right")
    axes.set_yticks(range(rows), layers if layers is not None else [str(row) for row in range(rows)])
    axes.set_ylabel("layer")
    figure.colorbar(image, ax=axes, label=label)
    return figure


def draw_curves(
    curves: Mapping[str, Float[np.ndarray, " _"]], label: str = "H(X|s) a word, nats", unit: str = "layer"
) -> Figure:
    """One curve a model over its layers, side by side; a model with fewer layers has a shorter curve."""
    figure = Figure(figsize=(6.0, 4.0), layout="constrained")
    axes = figure.subplots()
    for name, curve in curves.items():
        axes.plot(np.arange(len(curve)), curve, marker="o", label=name)
    axes.set_xticks(range(max(len(curve) for curve in curves.values())))
    axes.set_xlabel(unit)
    axes.set_ylabel(label)
    axes.legend()
    return figure


def save(figure: Figure, path: str | Path | None) -> Figure:
    """The same figure, also in a file of the kind that the path's suffix names."""
    if path is not None:
        figure.savefig(path, dpi=150)
    return figure


def _draw_cells(axes: Axes, row: Float[np.ndarray, " column"], limits: tuple[float, float]) -> AxesImage:
    low, high = limits
    image = axes.imshow(row[None], cmap=DARK_IS_SMALL, aspect="auto", vmin=low, vmax=high)
    axes.set_yticks([])
    for column, value in enumerate(row[np.isfinite(row)]):
        color = "white" if value < (low + high) / 2 else "black"
        axes.text(column, 0, f"{value:.2g}", ha="center", va="center", color=color, fontsize=8)
    return image


def _name_columns(axes: Axes, labels: Sequence[str]) -> None:
    axes.set_xticks(range(len(labels)), labels)
    axes.tick_params(length=0, labelsize=9)
    for side in axes.spines.values():
        side.set_visible(False)


def _padded(values: Float[np.ndarray, " word"], columns: int) -> Float[np.ndarray, " column"]:
    return np.pad(values.astype(float), (0, columns - len(values)), constant_values=np.nan)


def _labels(words: Sequence[str] | None, count: int) -> list[str]:
    """The words, shortened to fit a cell, or their numbers; a dollar sign would start a formula."""
    names = [str(number) for number in range(count)] if words is None else list(words)
    if len(names) != count:
        raise InputError(f"{len(names)} words for {count} numbers; pass one word a number, or words=None")
    short = [name if len(name) <= LONGEST_LABEL else name[: LONGEST_LABEL - 1] + "\u2026" for name in names]
    return [name.replace("$", r"\$") for name in short]
