"""A board is saved, found again and shown."""

import json
import math
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from diffmask.errors import InputError
from diffmask.results.benchmark_result import BenchmarkResult, load_results, save_results
from diffmask.results.records import to_plain
from support.board import synthetic_board
from support.hostile import SCRIPT, hostile_board


@pytest.fixture(scope="module")
def board() -> BenchmarkResult:
    return synthetic_board(texts=3)


def test_a_board_that_is_loaded_is_the_one_that_was_saved(board: BenchmarkResult, tmp_path: Path) -> None:
    board.save(tmp_path)
    loaded = BenchmarkResult.load(tmp_path)
    assert to_plain(asdict(loaded)) == to_plain(asdict(board))
    assert loaded.methods[0].estimates["flip"] == board.methods[0].estimates["flip"]


def test_numbers_without_a_word_in_json_come_back(board: BenchmarkResult, tmp_path: Path) -> None:
    odd = replace(board.methods[0], cost={"break_even": math.inf})
    replace(board, methods=[odd]).save(tmp_path)
    assert BenchmarkResult.load(tmp_path).methods[0].cost == {"break_even": math.inf}


def test_what_a_later_version_adds_is_passed_over(board: BenchmarkResult, tmp_path: Path) -> None:
    file = board.save(tmp_path)
    file.write_text(json.dumps([{**json.loads(file.read_text())[0], "weather": "fine"}]))
    assert BenchmarkResult.load(tmp_path).title == board.title


def test_a_missing_truncated_or_other_file_is_named(board: BenchmarkResult, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"results\.json is missing"):
        BenchmarkResult.load(tmp_path)
    file = board.save(tmp_path)
    whole = file.read_text()
    file.write_text(whole[:-9])
    with pytest.raises(InputError, match=r"results\.json holds no results: .*JSON"):
        BenchmarkResult.load(tmp_path)
    file.write_text(json.dumps([{**json.loads(whole)[0], "metrics": [{"name": "flip"}]}]))
    with pytest.raises(InputError, match=r"metrics\.0\.title: Field required"):
        BenchmarkResult.load(tmp_path)
    save_results(tmp_path, [board, board])
    with pytest.raises(InputError, match="has 2 results; read them with load_results"):
        BenchmarkResult.load(tmp_path)
    assert [result.title for result in load_results(tmp_path)] == [board.title, board.title]


def test_print_shows_verdict_limits_means_intervals_and_ties(board: BenchmarkResult) -> None:
    shown = str(board)
    assert board.verdict[0].split()[0] in shown
    assert f"! {board.warnings[0]}" in shown
    (row,) = (line for line in shown.splitlines() if line.startswith("diffmask "))
    assert "0.446 [0.423, 0.469] =" in row
    assert "0.585 [0.562, 0.608] *" in row
    assert "14 ms" in row
    assert "\x1b" not in shown


def test_show_prints_to_the_screen(board: BenchmarkResult, capsys: pytest.CaptureFixture[str]) -> None:
    board.show()
    assert "leave-one-out" in capsys.readouterr().out


def test_brackets_in_names_are_no_markup() -> None:
    board = synthetic_board(texts=1)
    named = replace(board, title="[bold]x[/bold]", methods=[replace(board.methods[0], name="[red]y")])
    assert "[bold]x[/bold]" in str(named) and "[red]y" in str(named)


def test_the_notebook_shows_the_table_and_runs_nothing(board: BenchmarkResult) -> None:
    html = board._repr_html_()
    assert "0.446 =" in html and "<b>0.585</b>" in html and "not measured" in html
    assert html.count("<tr>") == 1 + len(board.methods)
    hostile = hostile_board()._repr_html_()
    assert "<script" not in hostile and "<img" not in hostile
    assert SCRIPT.replace("<", "&lt;").replace(">", "&gt;").replace("'", "&#x27;") in hostile


def test_to_html_writes_the_page(board: BenchmarkResult, tmp_path: Path) -> None:
    page = board.to_html(tmp_path / "deep" / "report.html")
    assert board.verdict[0] in page.read_text()
