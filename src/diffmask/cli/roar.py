"""`diffmask roar`: one point of a ROAR curve. `diffmask analyse`: tables and figures about a ROAR curve."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from diffmask.cli.options import Seed, configure_logging, overrides

if TYPE_CHECKING:
    from diffmask.workspace.workspace import Workspace

DataSet = Annotated[
    str,
    typer.Option("--task", help="Data set: babi-1, babi-2, babi-3, sst, snli, imdb, mimic-diabetes or mimic-anemia."),
]
Files = Annotated[
    str | None,
    typer.Option("--data", help="Folder of the data set's files, or hub:OWNER/NAME; bABI is generated without it."),
]
RiemannSamples = Annotated[int, typer.Option(min=1, help="Number of points on the path of integrated gradients.")]
Choices = Annotated[list[str] | None, overrides("Options of the BiLSTM, such as rows=1000, epochs=3.")]


def roar_workspace(data_set: str, files: str | None, choices: list[str] | None, seed: int, out: Path) -> "Workspace":
    """Return a workspace of the BiLSTM on a data set, with its store in `out`."""
    from diffmask.core.config import parse_overrides
    from diffmask.core.store import Store
    from diffmask.tasks.bilstm.bilstm_config import BiLSTMConfig
    from diffmask.workspace.workspace import Workspace

    config: BiLSTMConfig = BiLSTMConfig.from_dict(
        {"data": data_set, "folder": files, **parse_overrides(choices or [])}, "BiLSTM"
    )
    return Workspace(Store(out / "store"), config, seed)


class Strategy(StrEnum):
    """Unit of the masked amount."""

    COUNT = "count"
    QUANTILE = "quantile"


class Target(StrEnum):
    """Class that is explained."""

    GOLD = "gold"
    PREDICTED = "predicted"


def roar_command(
    task: DataSet = "babi-1",
    data: Files = None,
    importance_measure: Annotated[
        str,
        typer.Option(
            help="Method: random, mutual-information, attention, gradient, times-input-gradient, or any other."
        ),
    ] = "attention",
    roar_strategy: Annotated[
        Strategy, typer.Option(help="Mask k tokens (count) or k percent of them (quantile).")
    ] = Strategy.COUNT,
    k: Annotated[int, typer.Option(min=0, help="Amount to mask, in tokens or percent.")] = 0,
    recursive: Annotated[
        bool, typer.Option("--recursive", help="Compute the importances again after each step.")
    ] = False,
    recursive_step_size: Annotated[int, typer.Option(min=1, help="Amount masked per recursive step.")] = 1,
    riemann_samples: RiemannSamples = 50,
    target: Annotated[Target, typer.Option(help="Explain the gold label or the predicted one.")] = Target.GOLD,
    signed: Annotated[
        bool, typer.Option("--signed", help="Rank tokens by signed score instead of by absolute value.")
    ] = False,
    seed: Seed = 0,
    out: Annotated[
        Path, typer.Option(help="Folder for models, masks and importances, which later runs use again.")
    ] = Path("runs/roar"),
    choices: Choices = None,
) -> None:
    """Compute one point of a ROAR curve: mask the most important tokens, retrain the model, and print its score.

    Earlier steps that are missing are computed first; finished ones are read from --out.

    Example: diffmask roar --task babi-1 --importance-measure gradient --roar-strategy quantile --k 20 --recursive
    --recursive-step-size 10 --seed 0
    """
    from diffmask.metrics.roar.masking import RoarProtocol
    from diffmask.metrics.roar.roar_metric import roar_method
    from diffmask.metrics.roar.step import RoarStep

    configure_logging(quiet=False)
    method = roar_method(importance_measure, riemann_samples, signed)
    protocol = RoarProtocol(
        strategy=roar_strategy.value,
        recursive=recursive,
        step_size=recursive_step_size,
        target=target.value,
        absolute=not signed,
    )
    step = RoarStep(roar_workspace(task, data, choices, seed, out), method, protocol, k)
    unit = "tokens" if roar_strategy is Strategy.COUNT else "percent of the tokens"
    masking = f"with the {k} {unit} masked that {method.label} finds most important" if k else "with nothing masked"
    print(f"Training a BiLSTM on {task}, seed {seed}, {masking}; finished models in {out} are used again.", flush=True)
    result = step.score()
    print(f"{step.label}: {result.score:.4f} on {result.rows} test rows")


MEASURES = "attention,gradient,times-input-gradient,integrated-gradients"
FINDINGS = "data,synthetic,sparsity,answers,riemann,lengths,leaks"


def analyse_command(
    task: DataSet = "babi-1",
    data: Files = None,
    importance_measures: Annotated[
        str,
        typer.Option(
            help="Methods as in `diffmask roar`, separated by commas; the example shows the first. Default: "
            f"{MEASURES.replace(',', ', ')}.",
            show_default=False,
        ),
    ] = MEASURES,
    findings: Annotated[
        str,
        typer.Option(
            help="Analyses, separated by commas; 'leaks' trains two models per method. Default: "
            f"{FINDINGS.replace(',', ', ')}.",
            show_default=False,
        ),
    ] = FINDINGS,
    riemann_samples: RiemannSamples = 50,
    rows: Annotated[int, typer.Option(help="Number of validation rows that are explained.")] = 200,
    k: Annotated[int, typer.Option(help="Percent of the tokens that the analysis of leaks masks.")] = 20,
    example: Annotated[int, typer.Option(help="Test row of the worked example.")] = 0,
    seed: Seed = 0,
    out: Annotated[
        Path, typer.Option(help="Folder of `diffmask roar` or `diffmask run`, whose models are used again.")
    ] = Path("runs/roar"),
    choices: Choices = None,
) -> None:
    """Analyse a ROAR curve: data, sparsity, positions of masks, integration points, leaks, and a worked example.

    Each table is printed and written to OUT/analyses as CSV and LaTeX; curves are also drawn as PNG and PDF.

    Example: diffmask analyse --task babi-1 --importance-measures attention,gradient --out runs/roar
    """
    from diffmask.metrics.roar.analysis import RoarAnalysis
    from diffmask.metrics.roar.roar_metric import roar_method
    from diffmask.report.terminal import print_table
    from diffmask.results.records import write_text

    configure_logging(quiet=False)
    methods = [roar_method(name.strip(), riemann_samples) for name in importance_measures.split(",")]
    analysis = RoarAnalysis(roar_workspace(task, data, choices, seed, out), methods, rows, k)
    for finding in analysis.tables([name.strip() for name in findings.split(",")]):
        print_table(finding)
        finding.write(out / "analyses")
    write_text(out / "analyses" / "example.tex", analysis.example(example))
    print(f"\ntables and figures: {out / 'analyses'}")
