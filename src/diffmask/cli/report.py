"""`diffmask report`: the page of a run or of a benchmark."""

from pathlib import Path
from typing import Annotated

import typer


def report(
    folder: Annotated[Path, typer.Argument(help="The --out folder of a run or of a benchmark.")],
    show: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
) -> None:
    """Write report.html anew from what was measured, and print its table.

    A benchmark also gets tables/ (CSV, LaTeX) and figures/ (PNG, PDF).

    Example: diffmask report runs/toy
    """
    import webbrowser

    from diffmask.report.folder import is_benchmark

    page = _benchmark(folder) if is_benchmark(folder) else _run(folder)
    print(f"\nreport: {page}")
    if show:
        webbrowser.open(page.resolve().as_uri())


def _benchmark(folder: Path) -> Path:
    from diffmask.board import Board
    from diffmask.report.folder import write_benchmark_report

    page = write_benchmark_report(folder)
    Board.load(folder).show()
    return page


def _run(folder: Path) -> Path:
    from diffmask.cli.screen import show_results
    from diffmask.report import write_report
    from diffmask.report.roar import write_roar

    page = write_report(folder)
    show_results(folder)
    for file in write_roar(folder):
        print(file)
    return page
