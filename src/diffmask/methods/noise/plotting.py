"""Matplotlib figures of tolerated noise and information, from NumPy arrays; no torch, no pyplot state."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage

from diffmask.errors import InputError

COLORMAP = "GnBu_r"
MAX_LABEL_LENGTH = 14


def plot_words(
    sigma: Float[np.ndarray, " word"], words: Sequence[str] | None = None, words_per_strip: int = 10
) -> Figure:
    """Plot sigma of each word as a coloured cell, dark for small sigma; long sentences wrap into several strips."""
    labels, columns = _labels(words, len(sigma)), min(words_per_strip, len(sigma))
    strips = math.ceil(len(sigma) / columns)
    figure = Figure(figsize=(1.5 + 1.1 * columns, 0.4 + 1.0 * strips), layout="constrained")
    panels = figure.subplots(strips, 1, squeeze=False)[:, 0]
    for strip, axes in enumerate(panels):
        columns_shown = slice(strip * columns, (strip + 1) * columns)
        image = _draw_cells(axes, _padded(sigma[columns_shown], columns), (float(sigma.min()), float(sigma.max())))
        _name_columns(axes, labels[columns_shown])
    figure.colorbar(image, ax=list(panels), label="sigma (dark: important)")
    return figure


def plot_layers(
    values: Float[np.ndarray, "layer word"],
    words: Sequence[str] | None = None,
    layers: Sequence[str] | None = None,
    label: str = "H(X|s), nats",
) -> Figure:
    """Plot a layer x word heat map, first layer at the bottom, dark for small values."""
    rows, columns = values.shape
    figure = Figure(figsize=(2.0 + 0.7 * columns, 1.2 + 0.4 * rows), layout="constrained")
    axes = figure.subplots()
    image = axes.imshow(values, cmap=COLORMAP, aspect="auto", origin="lower")
    axes.set_xticks(range(columns), _labels(words, columns), rotation=45, ha="right")
    axes.set_yticks(range(rows), layers if layers is not None else [str(row) for row in range(rows)])
    axes.set_ylabel("layer")
    figure.colorbar(image, ax=axes, label=label)
    return figure


def plot_curves(
    curves: Mapping[str, Float[np.ndarray, " _"]], label: str = "H(X|s) per word, nats", unit: str = "layer"
) -> Figure:
    """Plot one curve per model over its layers; a model with fewer layers has a shorter curve."""
    figure = Figure(figsize=(6.0, 4.0), layout="constrained")
    axes = figure.subplots()
    for name, curve in curves.items():
        axes.plot(np.arange(len(curve)), curve, marker="o", label=name)
    axes.set_xticks(range(max(len(curve) for curve in curves.values())))
    axes.set_xlabel(unit)
    axes.set_ylabel(label)
    axes.legend()
    return figure


def save_figure(figure: Figure, path: str | Path | None) -> Figure:
    """Save a figure, if a path is given, in the format of its suffix; return the figure."""
    if path is not None:
        figure.savefig(path, dpi=150)
    return figure


def _draw_cells(axes: Axes, row: Float[np.ndarray, " column"], limits: tuple[float, float]) -> AxesImage:
    low, high = limits
    image = axes.imshow(row[None], cmap=COLORMAP, aspect="auto", vmin=low, vmax=high)
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
    """Return the words, shortened to fit a cell, or their indices; dollar signs, which start a formula, are escaped."""
    names = [str(number) for number in range(count)] if words is None else list(words)
    if len(names) != count:
        raise InputError(f"{len(names)} words for {count} numbers; pass one word per number, or words=None")
    short = [name if len(name) <= MAX_LABEL_LENGTH else name[: MAX_LABEL_LENGTH - 1] + "\u2026" for name in names]
    return [name.replace("$", r"\$") for name in short]
