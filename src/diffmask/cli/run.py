"""`diffmask run`: run an experiment."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from diffmask.cli import options


@options.expand_groups
def run_command(
    experiment: Annotated[
        Path, typer.Argument(help="YAML file with the keys name, seeds, tasks, methods and metrics.")
    ],
    overrides: Annotated[
        list[str] | None, options.overrides("Values to change in the experiment, such as seeds=[0,1].")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for records, summary, manifest and report.")] = Path("runs/latest"),
    *,
    execution: options.ExecutorOptions,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print which nodes are done or missing, and a forecast; run nothing.")
    ] = False,
    quiet: options.Quiet = False,
) -> None:
    """Run an experiment, or the part of it that is missing: a killed run resumes when it is started again.

    Example: diffmask run experiments/toy.yaml --out runs/toy --engine processes seeds=[0,1] methods.0.margin=0.1
    """
    from diffmask.errors import RunError
    from diffmask.experiments.experiment import Experiment
    from diffmask.experiments.runner import describe_nodes, run_experiment
    from diffmask.report.terminal import print_report

    executor = execution.executor()
    wanted = Experiment.read(experiment, overrides or [])
    if dry_run:
        print("\n".join(describe_nodes(wanted, out, executor)))
        return
    options.require_folder(out, [], force=True)
    failure = None
    try:
        run_experiment(wanted, out, executor, options.progress_view(quiet))
    except RunError as error:
        failure = error
    print_report(out)
    print(f"\nreport: {out / 'report.html'}")
    if failure is not None:
        print(f"diffmask: {failure}", file=sys.stderr)
        raise typer.Exit(1)
