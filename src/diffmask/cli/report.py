"""`diffmask report`: the page of a run."""

from pathlib import Path
from typing import Annotated

import typer


def report(folder: Annotated[Path, typer.Argument(help="The --out folder of a run.")]) -> None:
    """Write a run's report.html anew from its records, and print its table.

    Example: diffmask report runs/toy
    """
    from diffmask.cli.screen import show_summary
    from diffmask.report import read_run, write_report
    from diffmask.report.roar import write_roar

    page = write_report(folder)
    show_summary(read_run(folder).summary)
    for file in write_roar(folder):
        print(file)
    print(f"\nreport: {page}")
