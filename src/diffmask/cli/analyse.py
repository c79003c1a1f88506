"""`diffmask analyse`: what lies behind a ROAR curve."""

from pathlib import Path
from typing import Annotated

import typer

from diffmask.cli.words import Choices, DataSet, Files, RiemannSamples, bench_of


def analyse(
    task: DataSet = "babi-1",
    data: Files = None,
    importance_measures: Annotated[
        str, typer.Option(help="Names as `diffmask roar` takes them, with commas; the first is shown on an example.")
    ] = "attention,gradient,times-input-gradient,integrated-gradient",
    findings: Annotated[
        str, typer.Option(help="What to find out, with commas; leaks train two models a measure.")
    ] = "data,synthetic,sparsity,answers,riemann,lengths,leaks",
    riemann_samples: RiemannSamples = 50,
    rows: Annotated[int, typer.Option(help="Validation rows whose importances are looked at.")] = 200,
    k: Annotated[int, typer.Option(help="Percent of tokens masked where leaks are sought.")] = 20,
    example: Annotated[int, typer.Option(help="The test row of the worked example.")] = 0,
    seed: int = 0,
    out: Annotated[Path, typer.Option(help="A folder of `diffmask roar` or `run`; its models are found again.")] = Path(
        "runs/roar"
    ),
    choices: Choices = None,
) -> None:
    """What lies behind a ROAR curve: the data, sparsity, where masks fall, points of a path, leaks, a worked example.

    Each finding is printed, and written into OUT/analyses as CSV, LaTeX and, where it is a curve, PNG and PDF.

    Example: diffmask analyse --task babi-1 --importance-measures attention,gradient --out runs/roar
    """
    from diffmask.cli.screen import show_finding, show_log
    from diffmask.record import write_text
    from diffmask.roar.behind import Behind
    from diffmask.roar.measures import measure

    show_log(quiet=False)
    methods = [measure(name.strip(), riemann_samples) for name in importance_measures.split(",")]
    behind = Behind(bench_of(task, data, choices, seed, out), methods, rows, k)
    for finding in behind.findings([name.strip() for name in findings.split(",")]):
        show_finding(finding)
        finding.write(out / "analyses")
    write_text(out / "analyses" / "example.tex", behind.example(example))
    print(f"\ntables and figures: {out / 'analyses'}")
