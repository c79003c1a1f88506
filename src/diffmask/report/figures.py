"""Charts of a benchmark as matplotlib figures, for papers and slides."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from diffmask.errors import ExtraError
from diffmask.report.charts import curve_groups
from diffmask.results.benchmark_result import BenchmarkResult, Curve, MetricInfo

COLOURS = ("#5b6472", "#a33b7f", "#00795b", "#bf4c08", "#8f6300", "#0f7b9b", "#0b5c9e", "#4b3ca7")
MARKS = "os^dXv|P"


def write_figures(board: BenchmarkResult, folder: Path) -> list[Path]:
    """Write every chart as PNG and PDF; return the files."""
    drawings = {
        f"curve_{_file(group[0].metric)}": _curves(board, title, group) for title, group in curve_groups(board).items()
    }
    drawings |= {
        f"cost_{_file(metric.name)}": _cost(board, metric)
        for metric in board.metrics
        if any(metric.name in method.estimates and method.cost.get("seconds") for method in board.methods)
    }
    drawings |= {f"agreement_{_file(kind)}": _agreement(board, kind, rows) for kind, rows in board.agreement.items()}
    folder.mkdir(parents=True, exist_ok=True)
    return [file for name, draw in drawings.items() for file in write_figure(draw, folder / name)]


DrawFunction = Callable[[Any, Any], None]
"""Draws on a figure and its axes."""


def write_figure(draw: DrawFunction, stem: Path) -> list[Path]:
    """Write one chart as PNG and PDF."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ExtraError("figures need matplotlib; pip install 'diffmask[plot]'") from None
    figure = Figure(figsize=(5.6, 3.8), layout="constrained")
    axes = figure.add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    draw(figure, axes)
    png, pdf = stem.with_name(f"{stem.name}.png"), stem.with_name(f"{stem.name}.pdf")
    figure.savefig(png, dpi=200)
    # Without a date the same result gives the same file.
    figure.savefig(pdf, metadata={"CreationDate": None})
    return [png, pdf]


def _curves(board: BenchmarkResult, title: str, curves: Sequence[Curve]) -> DrawFunction:
    order = [method.name for method in board.methods]

    def draw(_: Any, axes: Any) -> None:
        for curve in curves:
            kind = order.index(curve.method)
            axes.plot(curve.x, curve.y, label=escape_dollars(curve.method), **_look(kind))
            if curve.low and curve.high:
                axes.fill_between(curve.x, curve.low, curve.high, color=COLOURS[kind % 8], alpha=0.08, linewidth=0)
        axes.set(xlabel=escape_dollars(curves[0].x_label), ylabel=escape_dollars(title))
        axes.legend(frameon=False, fontsize=8, bbox_to_anchor=(1, 1), loc="upper left")

    return draw


def _cost(board: BenchmarkResult, metric: MetricInfo) -> DrawFunction:
    def draw(_: Any, axes: Any) -> None:
        for kind, method in enumerate(board.methods):
            estimate, seconds = method.estimates.get(metric.name), method.cost.get("seconds")
            if estimate and seconds:
                error = [[estimate.mean - estimate.low], [estimate.high - estimate.mean]]
                axes.errorbar([seconds], [estimate.mean], yerr=error, label=escape_dollars(method.name), **_look(kind))
        axes.set(xscale="log", xlabel="seconds per text", ylabel=escape_dollars(metric.title))
        if not metric.higher_is_better:
            axes.invert_yaxis()
        axes.legend(frameon=False, fontsize=8, bbox_to_anchor=(1, 1), loc="upper left")

    return draw


def _agreement(board: BenchmarkResult, kind: str, rows: Sequence[Sequence[float]]) -> DrawFunction:
    names = [escape_dollars(method.name) for method in board.methods]

    def draw(figure: Any, axes: Any) -> None:
        image = axes.imshow(rows, cmap="PuOr_r", vmin=-1, vmax=1)
        axes.set_xticks(range(len(names)), names, rotation=45, ha="right", fontsize=8)
        axes.set_yticks(range(len(names)), names, fontsize=8)
        for down, row in enumerate(rows):
            for across, value in enumerate(row):
                axes.text(across, down, f"{value:.2f}", ha="center", va="center", fontsize=7,
                          color="white" if abs(value) > 0.7 else "black")  # fmt: skip
        figure.colorbar(image, ax=axes, label=escape_dollars(kind))

    return draw


def _look(kind: int) -> dict[str, Any]:
    return {"color": COLOURS[kind % 8], "marker": MARKS[kind % 8], "markersize": 5, "linewidth": 1.5}


def escape_dollars(text: str) -> str:
    """Escape dollars, which matplotlib takes for mathematics."""
    return text.replace("$", r"\$")


def _file(name: str) -> str:
    return "".join(letter if letter.isascii() and letter.isalnum() else "_" for letter in name)
