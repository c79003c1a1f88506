"""`diffmask run`: measure an experiment."""

from pathlib import Path
from typing import Annotated

import typer


def run(
    experiment: Annotated[Path, typer.Argument(help="A YAML file: name, seeds, tasks, methods, evaluations.")],
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Changes to it, such as seeds=[0,1].")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for records, summary, manifest and report.")] = Path("runs/latest"),
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print the table only.")] = False,
) -> None:
    """Run an experiment, or what is missing of it.

    Kill it and run it again: it goes on where it was.

    Example: diffmask run experiments/toy.yaml --out runs/toy seeds=[0,1] methods.0.margin=0.1
    """
    from diffmask.cli.screen import show_log, show_summary
    from diffmask.experiment import Experiment
    from diffmask.run import run_experiment

    show_log(quiet)
    summary = run_experiment(Experiment.read(experiment, overrides or []), out)
    show_summary(summary)
    print(f"\nreport: {out / 'report.html'}")
