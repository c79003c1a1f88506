"""`diffmask list`: what there is to choose from.

`diffmask report`: the page of a run or of a benchmark.
"""

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from diffmask.registry import entries


class Kind(StrEnum):
    """What can be listed."""

    METHODS = "methods"
    TASKS = "tasks"
    METRICS = "metrics"


def listing(
    kind: Annotated[Kind, typer.Argument(help="What to list.")],
    as_json: Annotated[bool, typer.Option("--json", help="As JSON, for programs.")] = False,
) -> None:
    """List methods, tasks or metrics.

    Example: diffmask list methods --json
    """
    found = entries(kind.value.removesuffix("s"))
    if as_json:
        print(json.dumps([{"name": entry.name, "summary": entry.summary} for entry in found], indent=1))
        return
    width = max(len(entry.name) for entry in found)
    for entry in found:
        print(f"{entry.name:<{width}}  {entry.summary}")


def report(
    folder: Annotated[Path, typer.Argument(help="The --out folder of a run or of a benchmark.")],
    show: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
) -> None:
    """Write report.html anew from what was measured, and print its table.

    A benchmark also gets tables/ (CSV, LaTeX) and figures/ (PNG, PDF).

    Example: diffmask report runs/toy
    """
    import webbrowser

    from diffmask.report.benchmark_page import is_benchmark

    page = _benchmark(folder) if is_benchmark(folder) else _run(folder)
    print(f"\nreport: {page}")
    if show:
        webbrowser.open(page.resolve().as_uri())


def _benchmark(folder: Path) -> Path:
    from diffmask.report.benchmark_page import write_benchmark_report
    from diffmask.results.benchmark_result import BenchmarkResult

    page = write_benchmark_report(folder)
    BenchmarkResult.load(folder).show()
    return page


def _run(folder: Path) -> Path:
    from diffmask.report.roar import write_roar
    from diffmask.report.run_page import write_run_report
    from diffmask.report.terminal import print_run

    page = write_run_report(folder)
    print_run(folder)
    for file in write_roar(folder):
        print(file)
    return page
