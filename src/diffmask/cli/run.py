"""`diffmask run`: measure an experiment."""

from pathlib import Path
from typing import Annotated

import typer

CLUSTER = "Clusters"


def run(
    experiment: Annotated[Path, typer.Argument(help="A YAML file: name, seeds, tasks, methods, metrics.")],
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Changes to it, such as seeds=[0,1].")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for records, summary, manifest and report.")] = Path("runs/latest"),
    engine: Annotated[str, typer.Option(help="Who does the work: serial, processes, dask or slurm.")] = "serial",
    workers: Annotated[
        int | None, typer.Option(min=1, help="Worker processes on this machine; as many as it has cores.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what is done, what is missing and how long it may take.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print the table only.")] = False,
    address: Annotated[
        str | None, typer.Option(help="dask: a scheduler's address, tcp://...", rich_help_panel=CLUSTER)
    ] = None,
    queue: Annotated[str | None, typer.Option(help="slurm: the partition.", rich_help_panel=CLUSTER)] = None,
    memory: Annotated[str | None, typer.Option(help="slurm: memory of a job.", rich_help_panel=CLUSTER)] = None,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="slurm: jobs at once, a worker each.", rich_help_panel=CLUSTER)
    ] = None,
    walltime: Annotated[str | None, typer.Option(help="slurm: longest time of a job.", rich_help_panel=CLUSTER)] = None,
    interface: Annotated[
        str | None, typer.Option(help="slurm: network interface, such as ib0.", rich_help_panel=CLUSTER)
    ] = None,
) -> None:
    """Run an experiment, or what is missing of it.

    Kill it and run it again: it goes on where it was.

    Example: diffmask run experiments/toy.yaml --out runs/toy --engine processes seeds=[0,1] methods.0.margin=0.1
    """
    from diffmask.cli.screen import show_failures, show_results, show_run
    from diffmask.errors import RunError
    from diffmask.experiments.executors.local import make_executor
    from diffmask.experiments.experiment import Experiment
    from diffmask.experiments.run import describe_nodes, run_experiment

    choices = {"workers": workers, "address": address, "queue": queue, "memory": memory}
    chosen = make_executor(engine, {**choices, "jobs": jobs, "walltime": walltime, "interface": interface})
    wanted = Experiment.read(experiment, overrides or [])
    if dry_run:
        print("\n".join(describe_nodes(wanted, out, chosen)))
        return
    try:
        run_experiment(wanted, out, chosen, show_run(quiet))
    except RunError as error:
        show_failures(error, out)
        raise typer.Exit(1) from None
    show_results(out)
    print(f"\nreport: {out / 'report.html'}")
