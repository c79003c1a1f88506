"""The figures and tables of a ROAR run: a row of panels a data set, a column a model and variant, a ribbon a method.

No torch here.
"""

import io
import json
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from diffmask.record import Record, read_jsonl, write_text
from diffmask.report.roar_curves import (
    Panels,
    RoarArea,
    RoarCurve,
    columns_of,
    performance_table,
    racu_table,
    roar_areas,
    roar_curves,
)

COLOURS = {
    "Attention": "#F8766D",
    "Gradient": "#A3A500",
    "Input times gradient": "#00BF7D",
    "Integrated gradient": "#00B0F6",
    "Random": "#E76BF3",
}
"""As published."""


@dataclass(frozen=True)
class RoarTable:
    """The curves of one panel of the figure, and their areas."""

    title: str
    curves: Sequence[RoarCurve]
    areas: Sequence[RoarArea]

    @property
    def at(self) -> list[float]:
        """Every amount that was masked; by some measures only where part of a run failed."""
        return sorted({at for curve in self.curves for at in curve.at})


@dataclass(frozen=True)
class RoarRun:
    """What a run found by ROAR; its curves are drawn from seeds once, whatever is made of them."""

    records: Sequence[Record]
    panels: Panels

    @cached_property
    def curves(self) -> list[RoarCurve]:
        """Every curve; none where there is no ROAR."""
        return roar_curves(self.records, self.panels)

    @cached_property
    def areas(self) -> list[RoarArea]:
        """Every RACU."""
        return roar_areas(self.records, self.panels)

    def tables(self) -> list[RoarTable]:
        """A table for each panel of the figure."""
        found = []
        for data in dict.fromkeys(curve.data for curve in self.curves):
            for column, heading in columns_of(self.curves).items():
                curves = [curve for curve in self.curves if (curve.data, curve.column) == (data, column)]
                areas = [area for area in self.areas if (area.data, area.column) == (data, column)]
                if curves:
                    found.append(RoarTable(f"{data}, {heading}", curves, areas))
        return found

    def picture(self) -> str:
        """The figure as the address of a picture that stands in the page itself; empty without ROAR, or matplotlib."""
        if not self.curves or find_spec("matplotlib") is None:
            return ""
        from matplotlib import rc_context

        drawn = io.BytesIO()
        # Without a date and random names the same run gives the same page.
        with rc_context({"svg.hashsalt": "roar"}):
            draw(self.curves).savefig(drawn, format="svg", metadata={"Date": None})
        return f"data:image/svg+xml;base64,{b64encode(drawn.getvalue()).decode()}"


def read_roar(folder: str | Path) -> RoarRun:
    """The ROAR of the run in a folder."""
    records, manifest = Path(folder) / "records.jsonl", Path(folder) / "manifest.json"
    panels = json.loads(manifest.read_text()).get("panels", {}) if manifest.is_file() else {}
    return RoarRun(read_jsonl(records) if records.is_file() else [], panels)


def write_roar(folder: str | Path) -> list[Path]:
    """Write `plots/roar.png` and `.pdf`, `tables/racu.tex` and `performance.tex`; nothing where there is no ROAR."""
    home, run = Path(folder), read_roar(folder)
    if not run.curves:
        return []
    tables = {"racu": racu_table(run.areas), "performance": performance_table(run.records, run.panels)}
    written = []
    for name, text in tables.items():
        written.append(home / "tables" / f"{name}.tex")
        write_text(written[-1], text)
    return [*written, *_save(draw(run.curves), home / "plots" / "roar")]


def draw(curves: Sequence[RoarCurve]) -> Any:
    """A matplotlib figure: rows are data sets, columns are models and ROAR with and without recursion."""
    from matplotlib.figure import Figure

    rows, columns = list(dict.fromkeys(curve.data for curve in curves)), columns_of(curves)
    others = dict.fromkeys(curve.title for curve in curves if curve.title not in COLOURS)
    colours = {**COLOURS, **{name: f"C{place}" for place, name in enumerate(others)}}
    figure = Figure(figsize=(3.25 * len(columns) + 1.5, 2.2 * len(rows) + 0.8), layout="constrained")
    panels = figure.subplots(len(rows), len(columns), squeeze=False, sharex="col")
    for row, data in zip(panels, rows, strict=True):
        for panel, (column, heading) in zip(row, columns.items(), strict=True):
            for curve in curves:
                if (curve.data, curve.column) == (data, column):
                    _line(panel, curve, colours[curve.title])
            panel.set_title(f"{data}, {heading}", fontsize=9)
            panel.set_ylabel("score, %")
            panel.set_xlabel("tokens masked" if column[1].endswith("_count") else "% of tokens masked")
    handles = {
        name: handle for panel in panels.flat for handle, name in zip(*panel.get_legend_handles_labels(), strict=True)
    }
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=3, fontsize=8)
    return figure


def _line(panel: Any, curve: RoarCurve, colour: str) -> None:
    mean, low, high = ([100 * getattr(point, part) for point in curve.points] for part in ("mean", "low", "high"))
    panel.plot(curve.at, mean, marker="o", markersize=3, color=colour, label=curve.title)
    panel.fill_between(curve.at, low, high, alpha=0.25, color=colour, linewidth=0)


def _save(figure: Any, stem: Path) -> list[Path]:
    stem.parent.mkdir(parents=True, exist_ok=True)
    files = [stem.with_suffix(end) for end in (".png", ".pdf")]
    for file in files:
        figure.savefig(file, dpi=150)
    return files
