"""Every file of a benchmark's report, beside its `board.json`."""

from importlib.util import find_spec
from pathlib import Path

from diffmask.board import Board
from diffmask.record import write_text
from diffmask.report.figures import write_figures
from diffmask.report.tables import csv_tables, latex_table


def is_benchmark(folder: str | Path) -> bool:
    """Whether a benchmark was run there."""
    return (Path(folder) / "board.json").is_file()


def write_benchmark_report(folder: str | Path) -> Path:
    """Write `report.html`, `tables/` and, where matplotlib is installed, `figures/`; returns the page's path."""
    home, board = Path(folder), Board.load(folder)
    for name, text in {**csv_tables(board), "measures.tex": latex_table(board)}.items():
        write_text(home / "tables" / name, text)
    if find_spec("matplotlib"):
        write_figures(board, home / "figures")
    return board.to_html(home / "report.html")
