"""`diffmask report` on a benchmark's folder: the page, tables and figures."""

import csv
import io
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from scipy.stats import spearmanr
from typer.testing import CliRunner

from diffmask.cli import app
from diffmask.report.figures import write_figures
from diffmask.report.page import write_report
from diffmask.report.payload import disagreement
from diffmask.report.result_tables import csv_tables, escape_latex, latex_table
from diffmask.results.benchmark_result import BenchmarkResult
from support.board import synthetic_board
from support.hostile import WORDS, hostile_board


@pytest.fixture(scope="module")
def board() -> BenchmarkResult:
    return synthetic_board(texts=3, methods=4)


def rows_of(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text, newline="")))


def test_the_verb_writes_the_page_the_tables_and_prints(
    board: BenchmarkResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    monkeypatch.setattr("diffmask.report.page.write_figures", lambda *_: [])
    board.save(tmp_path)
    ran = CliRunner().invoke(app, ["report", str(tmp_path)])
    assert ran.exit_code == 0, ran.output
    assert "integrated-gradients" in ran.output and str(tmp_path / "report.html") in ran.output
    assert {file.name for file in (tmp_path / "tables").iterdir()} == {*csv_tables(board), "metrics.tex"}
    assert not opened
    CliRunner().invoke(app, ["report", str(tmp_path), "--open"])
    assert opened == [(tmp_path / "report.html").resolve().as_uri()]


def test_figures_are_drawn_in_both_forms(board: BenchmarkResult, tmp_path: Path) -> None:
    files = write_figures(board, tmp_path)
    # Two curves, four measures against cost, two kinds of agreement.
    assert len(files) == 2 * (2 + 4 + 2)
    for file in files:
        start = {".png": b"\x89PNG", ".pdf": b"%PDF"}[file.suffix]
        assert file.read_bytes().startswith(start)


def test_without_matplotlib_there_are_no_figures_and_no_error(
    board: BenchmarkResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("diffmask.report.page.find_spec", lambda _: None)
    monkeypatch.delitem(sys.modules, "matplotlib", raising=False)
    board.save(tmp_path)
    assert write_report(tmp_path).is_file()
    assert not (tmp_path / "figures").exists()


def test_the_tables_hold_the_boards_numbers(board: BenchmarkResult) -> None:
    tables = csv_tables(board)
    measured = {(row["method"], row["metric"]): row for row in rows_of(tables["metrics.csv"])}
    for method in board.methods:
        for metric, found in method.estimates.items():
            row = measured.pop((method.name, metric))
            assert [float(row[name]) for name in ("mean", "low", "high")] == [found.mean, found.low, found.high]
    assert not measured
    assert [float(row["difference"]) for row in rows_of(tables["comparisons.csv"])] == [
        one.difference for one in board.comparisons
    ]
    assert len(rows_of(tables["curves.csv"])) == sum(len(curve.x) for curve in board.curves)
    assert len(rows_of(tables["agreement.csv"])) == 2 * 4 * 4
    scores = [float(row["score"]) for row in rows_of(tables["scores.csv"])]
    assert scores == [score for text in board.texts for one in text.scores.values() for score in one]


def test_words_of_any_kind_survive_the_csv() -> None:
    rows = rows_of(csv_tables(hostile_board())["scores.csv"])
    assert [row["word"] for row in rows[: len(WORDS)]] == list(WORDS)


def test_a_hostile_board_has_every_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("diffmask.report.page.find_spec", lambda _: None)
    hostile_board().save(tmp_path)
    write_report(tmp_path)
    assert rows_of((tmp_path / "tables" / "scores.csv").read_text(encoding="utf-8"))


def test_the_latex_table_has_a_row_a_method_and_is_escaped(board: BenchmarkResult) -> None:
    table = latex_table(board)
    body = table.split(r"\midrule")[1].split(r"\bottomrule")[0].strip().splitlines()
    assert len(body) == len(board.methods)
    assert all(line.count("&") == len(board.metrics) and line.endswith(r"\\") for line in body)
    assert escape_latex(r"a_b & c\d {50 %} $x^2$ #1 ~<y>") == (
        r"a\_b \& c\textbackslash{}d \{50 \%\} \$x\textasciicircum{}2\$ \#1 \textasciitilde{}\textless{}y\textgreater{}"
    )


@pytest.mark.parametrize("scores", [([1.0, 2.0, 3.0, 4.0], [2.0, 1.0, 4.0, 4.0]), ([0.1, 0.1, -3.0], [9.0, 0.0, 1.0])])
def test_disagreement_of_two_is_one_less_spearmans_correlation(scores: Sequence[Sequence[float]]) -> None:
    assert disagreement(scores) == pytest.approx(1 - spearmanr(*scores).statistic, abs=6e-4)


def test_a_method_without_an_order_is_left_out_of_disagreement() -> None:
    assert disagreement([[1.0, 1.0], [1.0, 2.0]]) is None
