"""`diffmask fit`: an explainer of a classifier."""

from dataclasses import fields
from pathlib import Path
from typing import Annotated

import typer


def fit(
    model: Annotated[str, typer.Option(help="Classifier: a folder or a hub id.")],
    data: Annotated[str, typer.Option(help="A data set's name or a table's path, as for `diffmask train`.")],
    out: Annotated[Path, typer.Option(help="Folder for the explainer.")],
    method: Annotated[
        str, typer.Option(help="What to fit: 'diffmask', 'amortised', or any that `list` names.")
    ] = "surrogate-mask",
    mask: Annotated[
        str | None, typer.Option(help="diffmask: 'inputs', which words are needed; 'states', which hidden states.")
    ] = None,
    margin: Annotated[
        float | None, typer.Option(help="diffmask: largest change of the answer that masking may cause, in nats.")
    ] = None,
    teacher: Annotated[
        list[str] | None, typer.Option(help="amortised: a method to imitate; the mean of several, if given again.")
    ] = None,
    budget: Annotated[str | None, typer.Option(help="amortised: '5min' or '3000 texts'.")] = None,
    seed: int = 0,
    choices: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="Of the method or the task, such as steps=500, max_tokens=128."),
    ] = None,
) -> None:
    """Fit an explainer to a classifier, and say whether its explanations deserve belief.

    Example: diffmask fit --model clf/ --data rotten-tomatoes --mask inputs --margin 0.1 --out explainer/

    Example: diffmask fit --model clf/ --data rotten-tomatoes --method amortised --budget 5min --out fast/
    """
    from diffmask.cli.screen import show_log
    from diffmask.core.config import parse, parse_overrides
    from diffmask.tasks.text.configs import TextClassificationConfig

    show_log(quiet=False)
    given = parse_overrides(choices or [])
    of_the_task = {
        name: given.pop(name) for name in {field.name for field in fields(TextClassificationConfig)} & set(given)
    }
    task = TextClassificationConfig.from_dict({"model": model, "data": data, **of_the_task}, "fit").load(seed)
    options = {"mask": mask, "margin": margin, "teacher": teacher or None, "budget": budget}
    chosen = {name: value for name, value in options.items() if value is not None}
    explainer = parse("method", {"name": method, **chosen, **given}, "fit").fit(task, seed)
    explainer.save_pretrained(out)
    print(f"explainer: {out}")
