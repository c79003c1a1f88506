"""Tables of results as CSV and LaTeX."""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diffmask.report.figures import write_figure
from diffmask.report.leaderboard import Standing, standings
from diffmask.results.benchmark_result import BenchmarkResult, MethodResult
from diffmask.results.formatting import harmless_cells
from diffmask.results.records import write_text

Cell = str | int | float


@dataclass(frozen=True, kw_only=True)
class ResultTable:
    """A table with a file name, a title and optional curves."""

    name: str
    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    curves: tuple[str, ...] = ()
    """Columns plotted against the first one."""

    def column(self, heading: str) -> list[Any]:
        """Return the values of a column."""
        return [row[self.headings.index(heading)] for row in self.rows]

    def cells(self) -> list[list[str]]:
        """Format the values.

        >>> ResultTable(name="n", title="t", headings=("a", "b", "c"), rows=(("x", 3, 0.25),)).cells()
        [['x', '3', '0.250']]
        """
        return [[f"{value:.3f}" if isinstance(value, float) else str(value) for value in row] for row in self.rows]

    def write(self, folder: Path) -> list[Path]:
        """Write CSV in full precision, LaTeX and, if there are curves, a figure; return the files."""
        stem = folder / self.name
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(map(harmless_cells, [self.headings, *self.rows]))
        files = [stem.with_suffix(".csv"), stem.with_suffix(".tex")]
        write_text(files[0], text.getvalue())
        write_text(files[1], booktabs_table(self.headings, self.cells()))
        return [*files, *(write_figure(self._draw, stem) if self.curves else [])]

    def _draw(self, _: Any, axes: Any) -> None:
        for heading in self.curves:
            axes.plot(self.column(self.headings[0]), self.column(heading), marker="o", markersize=3, label=heading)
        axes.set(xlabel=self.headings[0], title=self.title)
        axes.title.set_fontsize(9)
        axes.legend(frameon=False, fontsize=8)


ESCAPES = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}",
}  # fmt: skip


def csv_tables(board: BenchmarkResult) -> Mapping[str, str]:
    """Return the text of every CSV file, by file name."""
    return {
        "metrics.csv": _csv(_metrics(board)),
        "comparisons.csv": _csv(_comparisons(board)),
        "curves.csv": _csv(_curves(board)),
        "costs.csv": _csv(_costs(board)),
        "agreement.csv": _csv(_agreement(board)),
        "scores.csv": _csv(_scores(board)),
    }


def booktabs_table(headings: Sequence[str], body: Sequence[Sequence[str]], alignment: str = "") -> str:
    """Return a LaTeX `booktabs` table; cells that hold mathematics are left as they are."""
    lines = [
        " & ".join(cell.replace("%", r"\%").replace("_", r"\_") if "$" not in cell else cell for cell in row)
        for row in (headings, *body)
    ]
    head, *rest = (rf"{line} \\" for line in lines)
    columns = alignment or "l" * 2 + "r" * (len(headings) - 2)
    top, bottom = [rf"\begin{{tabular}}{{{columns}}}", r"\toprule"], [r"\bottomrule", r"\end{tabular}", ""]
    return "\n".join([*top, head, r"\midrule", *rest, *bottom])


def latex_table(board: BenchmarkResult) -> str:
    """Return methods by metrics for `booktabs`: bold is better than every other method, a dagger is tied for best."""
    arrows = {"higher": "uparrow", "lower": "downarrow"}
    heads = [f"{escape_latex(metric.title)} ${chr(92)}{arrows[metric.direction]}$" for metric in board.metrics]
    ranked = standings(board)
    body = [
        [escape_latex(method.name), *(_latex_cell(method, m.name, ranked[m.name]) for m in board.metrics)]
        for method in board.methods
    ]
    note = "% Mean and half the 95 % interval. Bold: better than every other method. Dagger: tied for best."
    return f"{note}\n{booktabs_table(['Method', *heads], body, 'l' + 'r' * len(heads))}"


def escape_latex(text: str) -> str:
    r"""Escape text for LaTeX.

    >>> escape_latex("50 % of a_b\n")
    '50 \\% of a\\_b'
    """
    return "".join(ESCAPES.get(letter, letter) for letter in " ".join(text.split()))


def _latex_cell(method: MethodResult, metric: str, standing: Standing) -> str:
    estimate = method.estimates.get(metric)
    if estimate is None:
        return "--"
    mark = standing.mark(method.name)
    mean = rf"\mathbf{{{estimate.mean:.3f}}}" if mark == "best" else f"{estimate.mean:.3f}"
    dagger = r"^{\dagger}" if mark == "tie" else ""
    return rf"${mean}{dagger} \pm {(estimate.high - estimate.low) / 2:.3f}$"


def _metrics(board: BenchmarkResult) -> Iterable[Mapping[str, Any]]:
    ranked = standings(board)
    for method in board.methods:
        for metric in board.metrics:
            if metric.name in method.estimates:
                estimate = method.estimates[metric.name]
                yield {
                    "method": method.name, "metric": metric.name, "better": metric.direction, "mean": estimate.mean,
                    "low": estimate.low, "high": estimate.high, "rows": estimate.rows, "seeds": estimate.seeds,
                    "standing": ranked[metric.name].mark(method.name),
                }  # fmt: skip


def _comparisons(board: BenchmarkResult) -> Iterable[Mapping[str, Any]]:
    for comparison in board.comparisons:
        yield {
            "metric": comparison.metric, "first": comparison.first, "second": comparison.second,
            "difference": comparison.difference, "low": comparison.low, "high": comparison.high,
            "p_value": comparison.p_value, "winner": comparison.winner or "",
        }  # fmt: skip


def _curves(board: BenchmarkResult) -> Iterable[Mapping[str, Any]]:
    for curve in board.curves:
        for place, (x, y) in enumerate(zip(curve.x, curve.y, strict=True)):
            yield {
                "metric": curve.metric, "method": curve.method, "x_label": curve.x_label, "x": x, "y": y,
                "low": curve.low[place] if curve.low else "", "high": curve.high[place] if curve.high else "",
            }  # fmt: skip


def _costs(board: BenchmarkResult) -> Iterable[Mapping[str, Any]]:
    for method in board.methods:
        for name, value in method.cost.items():
            yield {"method": method.name, "cost": name, "value": value}


def _agreement(board: BenchmarkResult) -> Iterable[Mapping[str, Any]]:
    names = [method.name for method in board.methods]
    for kind, rows in board.agreement.items():
        for first, row in zip(names, rows, strict=True):
            for second, value in zip(names, row, strict=True):
                yield {"kind": kind, "first": first, "second": second, "value": value}


def _scores(board: BenchmarkResult) -> Iterable[Mapping[str, Any]]:
    for number, text in enumerate(board.texts, start=1):
        for method, scores in text.scores.items():
            for place, (word, score) in enumerate(zip(text.words, scores, strict=True)):
                yield {"text": number, "method": method, "place": place, "word": word, "score": score}


def _csv(rows: Iterable[Mapping[str, Any]]) -> str:
    lines: Sequence[Mapping[str, Any]] = list(rows)
    if not lines:
        return ""
    stream = io.StringIO()
    writer = csv.DictWriter(stream, fieldnames=list(lines[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(dict(zip(line, harmless_cells(line.values()), strict=True)) for line in lines)
    return stream.getvalue()
