"""What the commands about models of words ask for: the data set, its files, choices of the model.

`diffmask roar`: one point of a ROAR curve, with whatever it needs.

`diffmask analyse`: what lies behind a ROAR curve.
"""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from diffmask.workspace.workspace import Workspace

DataSet = Annotated[
    str, typer.Option("--task", help="babi-1, babi-2, babi-3, sst, snli, imdb, mimic-diabetes or mimic-anemia.")
]
Files = Annotated[
    str | None, typer.Option("--data", help="Folder of its files, or hub:OWNER/NAME; bABI is generated without.")
]
RiemannSamples = Annotated[int, typer.Option(help="Points on the path of integrated gradients.")]
Choices = Annotated[
    list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Of the BiLSTM, such as rows=1000, epochs=3.")
]


def roar_workspace(data_set: str, files: str | None, choices: list[str] | None, seed: int, out: Path) -> "Workspace":
    """The BiLSTM of a data set, with a store in `out`."""
    from diffmask.core.config import parse_overrides
    from diffmask.core.store import Store
    from diffmask.tasks.bilstm.config import BiLSTMConfig
    from diffmask.workspace.workspace import Workspace

    recipe: BiLSTMConfig = BiLSTMConfig.from_dict(
        {"data": data_set, "folder": files, **parse_overrides(choices or [])}, "BiLSTM"
    )
    return Workspace(Store(out / "store"), recipe, seed)


class Strategy(StrEnum):
    """How much is masked."""

    COUNT = "count"
    QUANTILE = "quantile"


class Target(StrEnum):
    """What is explained."""

    GOLD = "gold"
    PREDICTED = "predicted"


def roar(
    task: DataSet = "babi-1",
    data: Files = None,
    importance_measure: Annotated[
        str,
        typer.Option(
            help="random, mutual-information, attention, gradient, times-input-gradient, or any other method."
        ),
    ] = "attention",
    roar_strategy: Annotated[Strategy, typer.Option(help="k tokens, or k percent of them.")] = Strategy.COUNT,
    k: Annotated[int, typer.Option(help="How much is masked.")] = 0,
    recursive: Annotated[bool, typer.Option("--recursive", help="Find importances anew at each step.")] = False,
    recursive_step_size: Annotated[int, typer.Option(help="From one step to the next.")] = 1,
    riemann_samples: RiemannSamples = 50,
    target: Annotated[Target, typer.Option(help="Whose importances are taken.")] = Target.GOLD,
    signed: Annotated[bool, typer.Option("--signed", help="Spare what speaks against the outcome.")] = False,
    seed: int = 0,
    out: Annotated[Path, typer.Option(help="Folder for models, masks and importances; found again.")] = Path(
        "runs/roar"
    ),
    choices: Choices = None,
) -> None:
    """Mask what a measure calls important, train again, and print the score; missing steps are made on the way.

    Example: diffmask roar --task babi-1 --importance-measure gradient --roar-strategy quantile --k 20 --recursive
    --recursive-step-size 10 --seed 0
    """
    from diffmask.cli.options import configure_logging
    from diffmask.metrics.roar.masking import measure
    from diffmask.metrics.roar.step import Protocol, Step

    configure_logging(quiet=False)
    method = measure(importance_measure, riemann_samples, signed)
    protocol = Protocol(
        strategy=roar_strategy.value,
        recursive=recursive,
        step_size=recursive_step_size,
        target=target.value,
        absolute=not signed,
    )
    step = Step(roar_workspace(task, data, choices, seed, out), method, protocol, k)
    found = step.score()
    print(f"{step.label}: {found.score:.4f} on {found.rows} test rows")


def analyse(
    task: DataSet = "babi-1",
    data: Files = None,
    importance_measures: Annotated[
        str, typer.Option(help="Names as `diffmask roar` takes them, with commas; the first is shown on an example.")
    ] = "attention,gradient,times-input-gradient,integrated-gradients",
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
    from diffmask.cli.options import configure_logging
    from diffmask.metrics.roar.analysis import RoarAnalysis
    from diffmask.metrics.roar.masking import measure
    from diffmask.report.terminal import print_table
    from diffmask.results.records import write_text

    configure_logging(quiet=False)
    methods = [measure(name.strip(), riemann_samples) for name in importance_measures.split(",")]
    behind = RoarAnalysis(roar_workspace(task, data, choices, seed, out), methods, rows, k)
    for finding in behind.findings([name.strip() for name in findings.split(",")]):
        print_table(finding)
        finding.write(out / "analyses")
    write_text(out / "analyses" / "example.tex", behind.example(example))
    print(f"\ntables and figures: {out / 'analyses'}")
