"""The figures and tables of a ROAR run: a row of panels a task, a column a variant, a ribbon a method. No torch."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from diffmask.record import read_jsonl, write_text
from diffmask.report.roar_curves import (
    VARIANTS,
    RoarCurve,
    performance_table,
    racu_table,
    roar_areas,
    roar_curves,
    title,
)

COLOURS = {
    "Attention": "#F8766D",
    "Gradient": "#A3A500",
    "Input times gradient": "#00BF7D",
    "Integrated gradient": "#00B0F6",
    "Random": "#E76BF3",
}
"""As published."""


def write_roar(folder: str | Path) -> list[Path]:
    """Write `plots/roar.png` and `.pdf`, `tables/racu.tex` and `performance.tex`; nothing where there is no ROAR."""
    home = Path(folder)
    records = read_jsonl(home / "records.jsonl")
    curves = roar_curves(records)
    if not curves:
        return []
    tables = {"racu": racu_table(roar_areas(records)), "performance": performance_table(records, curves)}
    written = []
    for name, text in tables.items():
        written.append(home / "tables" / f"{name}.tex")
        write_text(written[-1], text)
    return [*written, *_save(draw(curves), home / "plots" / "roar")]


def draw(curves: Sequence[RoarCurve]) -> Any:
    """A matplotlib figure: rows are tasks, columns are ROAR with and without recursion."""
    from matplotlib.figure import Figure

    tasks = list(dict.fromkeys(curve.task for curve in curves))
    variants = [variant for variant in VARIANTS if any(curve.variant == variant for curve in curves)]
    figure = Figure(figsize=(3.25 * len(variants) + 1.5, 2.2 * len(tasks) + 0.8), layout="constrained")
    panels = figure.subplots(len(tasks), len(variants), squeeze=False, sharex=True)
    for row, task in enumerate(tasks):
        for column, variant in enumerate(variants):
            panel = panels[row][column]
            for curve in curves:
                if (curve.task, curve.variant) == (task, variant):
                    _line(panel, curve)
            panel.set_title(f"{task}: {VARIANTS[variant]}", fontsize=9)
            panel.set_ylabel("score, %")
            panel.set_xlabel("% tokens masked")
    figure.legend(*panels[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=8)
    return figure


def _line(panel: Any, curve: RoarCurve) -> None:
    name = title(curve.method)
    colour = COLOURS.get(name)
    drawn = panel.plot(
        curve.at, [100 * point.mean for point in curve.points], marker="o", markersize=3, color=colour, label=name
    )
    low, high = ([100 * getattr(point, end) for point in curve.points] for end in ("low", "high"))
    panel.fill_between(curve.at, low, high, alpha=0.25, color=drawn[0].get_color(), linewidth=0)


def _save(figure: Any, stem: Path) -> list[Path]:
    stem.parent.mkdir(parents=True, exist_ok=True)
    files = [stem.with_suffix(end) for end in (".png", ".pdf")]
    for file in files:
        figure.savefig(file, dpi=150)
    return files
