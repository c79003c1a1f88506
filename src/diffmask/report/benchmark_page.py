"""The HTML page of a benchmark and the other files of its report.

The page is one file without network access: verdict first, then the evidence. A content security policy allows only
its own script and style.
"""

import base64
import hashlib
from collections.abc import Mapping, Sequence
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from diffmask.report.charts import cost_chart, curve_chart, curve_groups, interval_cells
from diffmask.report.figures import write_figures
from diffmask.report.leaderboard import standings
from diffmask.report.payload import build_payload
from diffmask.report.tables import csv_tables, latex_table
from diffmask.results.benchmark_result import BenchmarkResult, Comparison, MetricInfo
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


def render_benchmark(board: BenchmarkResult) -> str:
    """Render the page; its policy allows its own script and style by hash and nothing else."""
    from markupsafe import Markup

    script, style = asset("board.js"), asset("board.css")
    page = environment()
    page.filters |= {"format_number": format_number, "format_duration": format_duration}
    page.filters |= {"format_count": format_count, "colour_step": colour_step}
    page.filters |= {"is_table": is_table, "count_problems": count_problems}
    text = page.get_template("board.html").render(
        board=board,
        payload=build_payload(board),
        standings=standings(board),
        whiskers={metric.name: _marked(interval_cells(board, metric)) for metric in board.metrics},
        curves=[
            (title, Markup(curve_chart(board, group, title)), group) for title, group in curve_groups(board).items()
        ],
        costs=cost_columns(board),
        cost_charts=[
            (metric.title, Markup(cost_chart(board, metric))) for metric in board.metrics if _priced(board, metric)
        ],
        comparisons={metric.name: _of(board.comparisons, metric) for metric in board.metrics},
        format_interval=format_interval,
        script=Markup(script),
        style=Markup(style),
        script_digest=csp_hash(script),
        style_digest=csp_hash(style),
    )
    # UTF-8 cannot encode a lone surrogate.
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


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


def _marked(drawings: Mapping[str, str]) -> Mapping[str, str]:
    from markupsafe import Markup

    return {name: Markup(drawing) for name, drawing in drawings.items()}


def _priced(board: BenchmarkResult, metric: MetricInfo) -> bool:
    return any(metric.name in method.estimates and "seconds" in method.cost for method in board.methods)


def _of(comparisons: Sequence[Comparison], metric: MetricInfo) -> Sequence[Comparison]:
    return [comparison for comparison in comparisons if comparison.metric == metric.name]


def is_benchmark(folder: str | Path) -> bool:
    """Return whether the folder holds a benchmark."""
    return (Path(folder) / "board.json").is_file()


def write_benchmark_report(folder: str | Path) -> Path:
    """Write `report.html`, `tables/` and, if matplotlib is installed, `figures/`; return the path of the page."""
    home, board = Path(folder), BenchmarkResult.load(folder)
    for name, text in {**csv_tables(board), "metrics.tex": latex_table(board)}.items():
        write_text(home / "tables" / name, text)
    if find_spec("matplotlib"):
        write_figures(board, home / "figures")
    return board.to_html(home / "report.html")
