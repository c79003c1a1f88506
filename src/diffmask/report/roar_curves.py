"""ROAR curves and RACU of a run, with bootstrap intervals over seeds, as tables and one figure.

The figure has one row of panels per data set, one column per model and variant, one line per method.
"""

import io
from base64 import b64encode
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Any

from diffmask.report.result_tables import booktabs_table
from diffmask.results.intervals import MeanInterval, bca_interval
from diffmask.results.records import RUN_AGAIN, Record, read_json, read_jsonl, write_text

VARIANTS = {
    "roar": "Not recursive",
    "recursive_roar": "Recursive",
    "roar_count": "Not recursive, by count",
    "recursive_roar_count": "Recursive, by count",
}
AREAS = ("racu", "racu_clipped", "area", "area_possible")
METRICS = frozenset(f"{variant}_{part}" for variant in VARIANTS for part in AREAS)
"""Quantities of ROAR in a run's summary; the page shows them with the curves."""
Panels = Mapping[str, Sequence[str]]
"""Data set and model of each task label; a missing label is a data set of its own."""
TITLES = {
    "attention": "Attention",
    "gradient": "Gradient",
    "input-x-gradient": "Input times gradient",
    "integrated-gradients": "Integrated gradient",
    "mutual-information": "Mutual information",
    "random": "Random",
}


Column = tuple[str, str]
"""A model and a variant."""


@dataclass(frozen=True, kw_only=True)
class RoarSeries:
    """Results of one method on one data set and model, over seeds."""

    data: str
    model: str
    method: str
    title: str
    """Name of the method in figures; the full name if two methods share the short one."""
    variant: str
    """A key of `VARIANTS`."""

    @property
    def column(self) -> Column:
        """Column of its panel."""
        return self.model, self.variant


@dataclass(frozen=True, kw_only=True)
class RoarCurve(RoarSeries):
    """Score of the retrained model against the share of masked tokens."""

    at: tuple[float, ...]
    points: tuple[MeanInterval, ...]

    def point(self, at: float) -> MeanInterval | None:
        """Return the score at a masked share, or None."""
        return dict(zip(self.at, self.points, strict=True)).get(at)


@dataclass(frozen=True, kw_only=True)
class RoarArea(RoarSeries):
    """RACU and the areas it is computed from."""

    racu: MeanInterval
    seeds: tuple[float, ...]
    """RACU of each seed."""
    clipped: MeanInterval
    area: MeanInterval
    possible: MeanInterval
    """Denominator of RACU; RACU is unreliable if it is small."""


def short_titles(methods: Iterable[str]) -> dict[str, str]:
    """Return names of methods for a figure, short where that is unambiguous.

    >>> short_titles(["gradient (one_hot)", "leave-one-out"])
    {'gradient (one_hot)': 'Gradient', 'leave-one-out': 'leave-one-out'}
    >>> short_titles(["gradient (one_hot)", "gradient"])
    {'gradient (one_hot)': 'gradient (one_hot)', 'gradient': 'gradient'}
    """
    short = {method: TITLES.get(method.partition(" ")[0], method) for method in methods}
    often = Counter(short.values())
    return {method: name if often[name] == 1 else method for method, name in short.items()}


def split_task_label(task: str, panels: Panels) -> dict[str, str]:
    """Split a task label into data set and model.

    >>> split_task_label("babi-1 bilstm", {"babi-1 bilstm": ["babi-1", "bilstm"]}), split_task_label("own", {})
    ({'data': 'babi-1', 'model': 'bilstm'}, {'data': 'own', 'model': ''})
    """
    data, model = panels.get(task, (task, ""))
    return {"data": data, "model": model}


def roar_curves(records: Iterable[Record], panels: Panels = MappingProxyType({})) -> list[RoarCurve]:
    """Collect the ROAR curves of a run."""
    series: dict[tuple[str, str, str], dict[float, list[float]]] = defaultdict(lambda: defaultdict(list))
    for record in records:
        variant = record.metric.removesuffix("_score")
        if record.at is not None and variant in VARIANTS:
            series[record.task, record.method, variant][record.at].append(record.value)
    titles = short_titles(method for _, method, _ in series)
    return [
        RoarCurve(
            **split_task_label(task, panels),
            method=method,
            title=titles[method],
            variant=variant,
            at=tuple(sorted(values)),
            points=tuple(bca_interval(values[at]) for at in sorted(values)),
        )
        for (task, method, variant), values in series.items()
    ]


def roar_areas(records: Iterable[Record], panels: Panels = MappingProxyType({})) -> list[RoarArea]:
    """Collect RACU of a run: the mean over seeds."""
    series: dict[tuple[str, str, str], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for record in sorted(records, key=lambda record: record.seed):
        for variant in VARIANTS:
            part = record.metric.removeprefix(f"{variant}_")
            if record.metric != part and part in AREAS:
                series[record.task, record.method, variant][part].append(record.value)
    titles = short_titles(method for _, method, _ in series)
    return [
        RoarArea(
            **split_task_label(task, panels),
            method=method,
            title=titles[method],
            variant=variant,
            racu=bca_interval(values["racu"]),
            seeds=tuple(values["racu"]),
            clipped=bca_interval(values["racu_clipped"]),
            area=bca_interval(values["area"]),
            possible=bca_interval(values["area_possible"]),
        )
        for (task, method, variant), values in series.items()
    ]


def format_percent(spread: MeanInterval) -> str:
    """Format a mean and its interval in LaTeX.

    >>> format_percent(MeanInterval(0.665, 0.573, 0.757))
    '$66.5^{+9.2}_{-9.2}$'
    """
    up, down = 100 * (spread.high - spread.mean), 100 * (spread.mean - spread.low)
    return f"${100 * spread.mean:.1f}^{{+{up:.1f}}}_{{-{down:.1f}}}$"


def panel_columns(series: Sequence[RoarSeries]) -> dict[Column, str]:
    """Return model and variant of every column with its heading; the model is named if there are several."""
    models = list(dict.fromkeys(entry.model for entry in series))
    columns = {entry.column for entry in series}
    pairs = [(model, variant) for model in models for variant in VARIANTS if (model, variant) in columns]
    return {
        (model, variant): f"{model}: {VARIANTS[variant]}" if len(models) > 1 else VARIANTS[variant]
        for model, variant in pairs
    }


def racu_table(areas: Sequence[RoarArea]) -> str:
    """Return the published LaTeX table: RACU in percent per data set and method, by model and variant."""
    columns = panel_columns(areas)
    cells = {(area.data, area.method, area.column): format_percent(area.racu) for area in areas}
    lines = {(area.data, area.method): area.title for area in areas}
    body = [
        [data, title, *(cells.get((data, method, column), "--") for column in columns)]
        for (data, method), title in lines.items()
    ]
    return booktabs_table(["Data set", "Importance measure", *columns.values()], body)


def performance_table(records: Iterable[Record], panels: Panels = MappingProxyType({})) -> str:
    """Return the LaTeX table of model scores, scores with everything masked, and test rows."""
    scores: dict[str, list[float]] = defaultdict(list)
    masked: dict[str, dict[tuple[int, str], float]] = defaultdict(dict)
    rows: dict[str, int] = {}
    for record in records:
        if record.metric == "quality" and record.method == "model":
            scores[record.task].append(record.value)
            rows[record.task] = record.rows
        elif record.at == 100 and record.metric in ("roar_score", "recursive_roar_score"):
            # With everything masked every method trains the same model, so any of them gives the value of a seed.
            masked[record.task][record.seed, record.metric] = record.value
    body = [
        [
            *split_task_label(task, panels).values(),
            str(rows[task]),
            format_percent(bca_interval(values)),
            format_percent(bca_interval(list(masked[task].values()))) if task in masked else "--",
        ]
        for task, values in scores.items()
    ]
    return booktabs_table(["Data set", "Model", "Test rows", "Score", "All masked"], body)


COLOURS = {
    "Attention": "#F8766D",
    "Gradient": "#A3A500",
    "Input times gradient": "#00BF7D",
    "Integrated gradient": "#00B0F6",
    "Random": "#E76BF3",
}
"""Colours of the published figure."""


@dataclass(frozen=True)
class RoarTable:
    """Curves and areas of one panel."""

    title: str
    curves: Sequence[RoarCurve]
    areas: Sequence[RoarArea]

    @property
    def at(self) -> list[float]:
        """Masked shares of all curves; curves of failed nodes may lack some."""
        return sorted({at for curve in self.curves for at in curve.at})


@dataclass(frozen=True)
class RoarRun:
    """ROAR results of a run; intervals are bootstrapped once."""

    records: Sequence[Record]
    panels: Panels

    @cached_property
    def curves(self) -> list[RoarCurve]:
        """ROAR curves; empty without ROAR."""
        return roar_curves(self.records, self.panels)

    @cached_property
    def areas(self) -> list[RoarArea]:
        """Areas and RACU."""
        return roar_areas(self.records, self.panels)

    def tables(self) -> list[RoarTable]:
        """Return one table per panel."""
        tables = []
        for data in dict.fromkeys(curve.data for curve in self.curves):
            for column, heading in panel_columns(self.curves).items():
                curves = [curve for curve in self.curves if (curve.data, curve.column) == (data, column)]
                areas = [area for area in self.areas if (area.data, area.column) == (data, column)]
                if curves:
                    tables.append(RoarTable(f"{data}, {heading}", curves, areas))
        return tables

    def picture(self) -> str:
        """Return the figure as a data URI; empty without ROAR or matplotlib."""
        if not self.curves or find_spec("matplotlib") is None:
            return ""
        from matplotlib import rc_context

        drawn = io.BytesIO()
        # A fixed salt and no date: the same run gives the same page.
        with rc_context({"svg.hashsalt": "roar"}):
            plot_roar(self.curves).savefig(drawn, format="svg", metadata={"Date": None})
        return f"data:image/svg+xml;base64,{b64encode(drawn.getvalue()).decode()}"


def read_roar(folder: str | Path) -> RoarRun:
    """Read the ROAR results of a run."""
    records, manifest = Path(folder) / "records.jsonl", Path(folder) / "manifest.json"
    panels = read_json(manifest, RUN_AGAIN).get("panels", {}) if manifest.is_file() else {}
    return RoarRun(read_jsonl(records) if records.is_file() else [], panels)


def write_roar(folder: str | Path) -> list[Path]:
    """Write `plots/roar.png` and `.pdf`, `tables/racu.tex` and `performance.tex`; nothing without ROAR."""
    home, run = Path(folder), read_roar(folder)
    if not run.curves:
        return []
    tables = {"racu": racu_table(run.areas), "performance": performance_table(run.records, run.panels)}
    written = []
    for name, text in tables.items():
        written.append(home / "tables" / f"{name}.tex")
        write_text(written[-1], text)
    return [*written, *_save(plot_roar(run.curves), home / "plots" / "roar")]


def plot_roar(curves: Sequence[RoarCurve]) -> Any:
    """Draw the figure: rows are data sets, columns are models and ROAR with and without recursion."""
    from matplotlib.figure import Figure

    rows, columns = list(dict.fromkeys(curve.data for curve in curves)), panel_columns(curves)
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
