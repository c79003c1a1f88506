"""`diffmask roar`: one point of a ROAR curve, with whatever it needs."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from diffmask.cli.words import Choices, DataSet, Files, RiemannSamples, bench_of


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
    from diffmask.cli.screen import show_log
    from diffmask.roar.measures import measure
    from diffmask.roar.steps import Protocol, Step

    show_log(quiet=False)
    method = measure(importance_measure, riemann_samples, signed)
    protocol = Protocol(
        strategy=roar_strategy.value,
        recursive=recursive,
        step_size=recursive_step_size,
        target=target.value,
        absolute=not signed,
    )
    step = Step(bench_of(task, data, choices, seed, out), method, protocol, k)
    found = step.score()
    print(f"{step.label}: {found.score:.4f} on {found.rows} test rows")
