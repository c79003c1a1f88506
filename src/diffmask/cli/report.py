"""`diffmask report`: the page of a run or benchmark. `diffmask list`: the registered methods, tasks and metrics."""

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from diffmask.registry import entries


class Kind(StrEnum):
    """Kind of registered config."""

    METHODS = "methods"
    TASKS = "tasks"
    METRICS = "metrics"


def list_command(
    kind: Annotated[Kind | None, typer.Argument(help="Kind to list; without it, all kinds.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List methods, tasks and metrics.

    Example: diffmask list methods --json
    """
    kinds = list(Kind) if kind is None else [kind]
    entries_of = {each: entries(each.value.removesuffix("s")) for each in kinds}
    if as_json:
        listed = {
            each.value: [{"name": entry.name, "summary": entry.summary} for entry in entries_of[each]] for each in kinds
        }
        print(json.dumps(listed if kind is None else listed[kind.value], indent=1))
        return
    width = max(len(entry.name) for each in kinds for entry in entries_of[each])
    for each in kinds:
        if kind is None:
            print(f"{each.value}:")
        for entry in entries_of[each]:
            print(f"{entry.name:<{width}}  {entry.summary}")


def report_command(
    folder: Annotated[Path, typer.Argument(help="Folder that `diffmask run` or `diffmask benchmark` wrote.")],
    show: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
) -> None:
    """Write report.html again from the saved results, and print the verdict and the tables.

    It also writes tables/ (CSV, LaTeX) and figures/ (PNG, PDF), and the curves of ROAR if there are any.

    Example: diffmask report runs/toy
    """
    import webbrowser

    from diffmask.report.page import write_report
    from diffmask.report.terminal import print_report

    page = write_report(folder)
    print_report(folder)
    print(f"\nreport: {page}")
    if show:
        webbrowser.open(page.resolve().as_uri())
