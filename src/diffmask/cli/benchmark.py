"""`diffmask benchmark`: which explanation can be believed on this model?"""

from pathlib import Path
from typing import Annotated

import typer


def benchmark(
    model: Annotated[str, typer.Option(help="Classifier: a folder or a hub id.")],
    data: Annotated[str, typer.Option(help="A data set's name or a table's path, as for `diffmask train`.")],
    methods: Annotated[
        str, typer.Option(help="Names from `diffmask list methods`, with commas between; 'random' is always added.")
    ] = "random,gradient,input-x-gradient,integrated-gradients,leave-one-out",
    metrics: Annotated[
        str, typer.Option(help="Names from `diffmask list metrics`, with commas between.")
    ] = "comprehensiveness",
    texts: Annotated[int, typer.Option(help="Held-out texts to explain; a verdict needs 30, and gains by 200.")] = 200,
    seeds: Annotated[str, typer.Option(help="Seeds of the methods, with commas between.")] = "0",
    budget: Annotated[
        float | None,
        typer.Option(help="Rows through the model, forward and backward, that each method may spend on a text."),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for the board, its records and its report.")] = Path("runs/board"),
    choices: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KEY=VALUE]...",
            help="Of a method or a metric, such as surrogate-mask.steps=500, comprehensiveness.mode=delete; "
            "or of the task, such as max_tokens=128, text_column=review.",
        ),
    ] = None,
) -> None:
    """Compare explanation methods on your model and your texts, and say what may be concluded.

    It forecasts what it will take, explains held-out texts by every method, measures each, and ends with a table and a
    verdict: which methods beat a random order, which differ, which cannot be told apart, and at what cost. Everything
    is kept in --out: kill it and run it again, and it goes on.

    Example: diffmask benchmark --model clf/ --data reviews.csv --methods gradient,captum:Lime,surrogate-mask --out run/

    At an equal price: diffmask benchmark --model clf/ --data reviews.csv --budget 100 --out run/

    With choices: diffmask benchmark --model clf/ --data reviews.csv --methods surrogate-mask surrogate-mask.steps=500
    """
    from diffmask.benchmarking.benchmark import benchmark as run_benchmark
    from diffmask.benchmarking.config import sorted_choices
    from diffmask.cli.screen import show_log
    from diffmask.tasks.text.configs import TextClassificationConfig

    show_log(quiet=False)
    of_the_task, listed, measured = sorted_choices(choices or [], methods.split(","), metrics.split(","))
    board = run_benchmark(
        TextClassificationConfig.from_dict({"model": model, "data": data, **of_the_task}, "benchmark"),
        listed,
        measured,
        texts=texts,
        seeds=[int(seed) for seed in seeds.split(",")],
        budget=budget,
        out=out,
    )
    print(f"\n{board}\n\nboard: {out / 'board.json'}")
