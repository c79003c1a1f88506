"""`diffmask analyse`: what lies behind a ROAR curve."""

from pathlib import Path
from typing import Annotated

import typer


def analyse(
    task: Annotated[
        str, typer.Option(help="babi-1, babi-2, babi-3, sst, snli, imdb, mimic-diabetes or mimic-anemia.")
    ] = "babi-1",
    data: Annotated[
        str | None, typer.Option(help="Folder of its files, or hub:OWNER/NAME; bABI is generated without.")
    ] = None,
    importance_measures: Annotated[
        str, typer.Option(help="Names as `diffmask roar` takes them, with commas; the first is shown on an example.")
    ] = "attention,gradient,times-input-gradient,integrated-gradient",
    riemann_samples: Annotated[int, typer.Option(help="Points on the path of integrated gradients.")] = 50,
    rows: Annotated[int, typer.Option(help="Validation rows whose importances are looked at.")] = 200,
    k: Annotated[int, typer.Option(help="Percent of tokens masked where leaks are sought.")] = 20,
    example: Annotated[int, typer.Option(help="The test row of the worked example.")] = 0,
    seed: int = 0,
    out: Annotated[Path, typer.Option(help="A folder of `diffmask roar` or `run`; its models are found again.")] = Path(
        "runs/roar"
    ),
    choices: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Of the BiLSTM, such as rows=1000, epochs=3.")
    ] = None,
) -> None:
    """What lies behind a ROAR curve: the data, sparsity, points of a path, lengths, leaks, a worked example.

    Each finding is printed, and written into OUT/analyses as CSV, LaTeX and, where it is a curve, PNG and PDF. Leaks
    train two models a measure.

    Example: diffmask analyse --task babi-1 --importance-measures attention,gradient --out runs/roar
    """
    from diffmask.bench import Bench
    from diffmask.cli.screen import show_finding, show_log
    from diffmask.recipe import choices_of
    from diffmask.record import write_text
    from diffmask.roar.behind import Behind
    from diffmask.roar.measures import measure
    from diffmask.store import Store
    from diffmask.tasks.word_recipes import BiLSTM

    show_log(quiet=False)
    recipe: BiLSTM = BiLSTM.from_dict({"data": task, "folder": data, **choices_of(choices or [])}, "analyse")
    methods = [measure(name.strip(), riemann_samples) for name in importance_measures.split(",")]
    behind = Behind(Bench(Store(out / "store"), recipe, seed), methods, rows, k)
    for finding in behind.findings():
        show_finding(finding)
        finding.write(out / "analyses")
    write_text(out / "analyses" / "example.tex", behind.example(example))
    print(f"\ntables and figures: {out / 'analyses'}")
