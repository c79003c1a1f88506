"""The HTML report of a run or a benchmark, and its tables and figures.

The page is one file without network access: per task the verdict first, then the evidence. A content security policy
allows only its own script and style.
"""

import base64
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from diffmask.report.charts import cost_chart, curve_chart, curve_groups, interval_cells
from diffmask.report.figures import write_figures
from diffmask.report.leaderboard import Standing, standings
from diffmask.report.payload import build_payload
from diffmask.report.result_tables import csv_tables, latex_table
from diffmask.report.roar_curves import write_roar
from diffmask.report.run_files import (
    METRIC_DESCRIPTIONS,
    RunFiles,
    format_cell,
    normalise_scores,
    read_run,
    refusing_damage,
)
from diffmask.results.aggregation import Aggregate, ScoredText, aggregate, divide_by_largest
from diffmask.results.benchmark_result import BenchmarkResult, Comparison, Curve, MetricInfo, load_results
from diffmask.results.formatting import format_count, format_duration, format_interval, format_number
from diffmask.results.records import write_text


def environment() -> Any:
    """Return a Jinja environment that escapes everything and raises on undefined names."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    return Environment(
        loader=PackageLoader("diffmask.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def asset(name: str) -> str:
    """Read a packaged stylesheet or script."""
    return files("diffmask.report").joinpath("templates", name).read_text(encoding="utf-8")


def csp_hash(text: str) -> str:
    """Return the hash by which a content security policy allows one inline element.

    >>> csp_hash("")
    'sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU='
    """
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


COSTS = {
    "seconds": "seconds per text",
    "forwards": "forward passes per text",
    "backwards": "backward passes per text",
    "fit_seconds": "seconds to fit",
    "peak_megabytes": "peak memory, MB",
    "break_even": "texts until the fit pays off",
}
"""Headings of the cost columns; other costs keep their names."""


@dataclass(frozen=True)
class ResultView:
    """One result with its charts, as the template shows it."""

    result: BenchmarkResult
    prefix: str
    """Prefix of the ids of its sections; empty if the page has one result."""

    @cached_property
    def standings(self) -> Mapping[str, Standing]:
        """Leaders and ties per metric."""
        return standings(self.result)

    @cached_property
    def whiskers(self) -> Mapping[str, Mapping[str, str]]:
        """Drawn intervals per metric and method."""
        return {metric.name: _marked(interval_cells(self.result, metric)) for metric in self.result.metrics}

    @cached_property
    def curves(self) -> list[tuple[str, str, Sequence[Curve]]]:
        """Title, drawing and values of each group of curves."""
        groups = curve_groups(self.result)
        return [(title, _mark(curve_chart(self.result, group, title)), group) for title, group in groups.items()]

    @cached_property
    def costs(self) -> Mapping[str, str]:
        """Headings of the cost columns."""
        return cost_columns(self.result)

    @cached_property
    def cost_charts(self) -> list[tuple[str, str]]:
        """Title and drawing of each metric against the cost."""
        priced = [metric for metric in self.result.metrics if _priced(self.result, metric)]
        return [(metric.title, _mark(cost_chart(self.result, metric))) for metric in priced]

    @cached_property
    def words(self) -> list[tuple[str, Aggregate]]:
        """Words that matter per class by every method that is not a baseline; empty if no word recurs."""
        methods = [method.name for method in self.result.methods if not method.is_baseline]
        named = [(name, words_per_class(self.result, name)) for name in methods]
        return [(name, words) for name, words in named if words is not None]

    def comparisons(self, metric: str) -> list[Comparison]:
        """Return the comparisons of methods by one metric."""
        return [comparison for comparison in self.result.comparisons if comparison.metric == metric]


def render_page(results: Sequence[BenchmarkResult], run: RunFiles | None = None) -> str:
    """Render the page of one or several tasks; its policy allows its own script and style by hash and nothing else."""
    script, style = asset("report.js"), asset("report.css")
    page = environment()
    page.filters |= {"format_number": format_number, "format_duration": format_duration, "format_cell": format_cell}
    page.filters |= {"format_count": format_count, "colour_step": colour_step, "normalise_scores": normalise_scores}
    page.filters |= {"is_table": is_table, "flat_row": flat_row, "count_problems": count_problems}
    several = len(results) > 1
    text = page.get_template("report.html").render(
        title=run.title if run is not None and len(results) != 1 else results[0].title,
        views=[ResultView(result, f"task-{index}-" if several else "") for index, result in enumerate(results)],
        texts=sum(len(result.texts) for result in results),
        payload=build_payload(results),
        run=run,
        roar=run.roar.tables() if run is not None else [],
        picture=run.roar.picture() if run is not None else "",
        manifest=run.manifest if run is not None else results[0].manifest,
        metric_descriptions=METRIC_DESCRIPTIONS,
        format_interval=format_interval,
        script=_mark(script),
        style=_mark(style),
        script_digest=csp_hash(script),
        style_digest=csp_hash(style),
    )
    # UTF-8 cannot encode a lone surrogate.
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def words_per_class(board: BenchmarkResult, method: str) -> Aggregate | None:
    """Aggregate the words of the texts by predicted class; None if no word occurs in two texts of a class."""
    texts = [
        ScoredText(group=text.prediction, words=text.words, scores=divide_by_largest(text.scores[method]))
        for text in board.texts
        if text.scores.get(method)
    ]
    word_aggregate = aggregate(texts) if texts else None
    return word_aggregate if word_aggregate is not None and word_aggregate.rows else None


def cost_columns(board: BenchmarkResult) -> Mapping[str, str]:
    """Map every cost that some method has to its heading."""
    named = dict.fromkeys(name for method in board.methods for name in method.cost)
    order = [*(name for name in COSTS if name in named), *(name for name in named if name not in COSTS)]
    return {name: COSTS.get(name, name.replace("_", " ")) for name in order}


def colour_step(value: float) -> int:
    """Map a value in [-1, 1] to a colour step from -10 to 10.

    >>> colour_step(0.53), colour_step(-2.0), colour_step(float("nan"))
    (5, -10, 0)
    """
    return round(10 * min(max(value, -1.0), 1.0)) if value == value else 0


def is_table(value: Any) -> bool:
    """Return whether a value is a table: a mapping of mappings with the same keys."""
    rows = list(value.values()) if isinstance(value, Mapping) else []
    return (
        bool(rows) and all(isinstance(row, Mapping) and row for row in rows) and len({tuple(row) for row in rows}) == 1
    )


def flat_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row of a table with one column per value of a nested mapping, without its problems.

    >>> flat_row({"margin": 0.1, "multiplier": {"value": 3.0}, "problems": {}})
    {'margin': 0.1, 'multiplier value': 3.0}
    """
    flat: dict[str, Any] = {}
    for name, value in row.items():
        if name == "problems":
            continue
        flat |= {f"{name} {key}": item for key, item in value.items()} if isinstance(value, Mapping) else {name: value}
    return flat


def count_problems(diagnostics: Any) -> int:
    """Count the problems in nested fit diagnostics.

    >>> count_problems({"seed 0": {"embedding": {"margin": 0.1, "problems": {"blind": "it does not look"}}}})
    1
    """
    if not isinstance(diagnostics, Mapping):
        return 0
    own = diagnostics.get("problems")
    here = len(own) if isinstance(own, Mapping) else 0
    return here + sum(count_problems(value) for name, value in diagnostics.items() if name != "problems")


def _mark(drawing: str) -> str:
    """Mark our own drawing as HTML that is not escaped."""
    from markupsafe import Markup

    return Markup(drawing)


def _marked(drawings: Mapping[str, str]) -> Mapping[str, str]:
    return {name: _mark(drawing) for name, drawing in drawings.items()}


def _priced(board: BenchmarkResult, metric: MetricInfo) -> bool:
    return any(metric.name in method.estimates and "seconds" in method.cost for method in board.methods)


def write_page(folder: str | Path) -> Path:
    """Write `report.html` from the files of a run or a benchmark, and return its path."""
    home = Path(folder)
    run = read_run(home) if (home / "summary.json").is_file() else None
    page = home / "report.html"
    with refusing_damage(home):
        text = render_page(load_results(home), run)
    write_text(page, text)
    return page


def write_report(folder: str | Path) -> Path:
    """Write `report.html`, `tables/` and, if matplotlib is installed, `figures/`; return the path of the page.

    A run of several tasks has one folder of tables and figures per task, named by its number.
    """
    home, results = Path(folder), load_results(folder)
    with refusing_damage(home):
        for number, result in enumerate(results):
            part = str(number) if len(results) > 1 else ""
            for name, text in {**csv_tables(result), "metrics.tex": latex_table(result)}.items():
                write_text(home / "tables" / part / name, text)
            if find_spec("matplotlib"):
                write_figures(result, home / "figures" / part)
        if (home / "records.jsonl").is_file():
            write_roar(home)
    return write_page(home)
