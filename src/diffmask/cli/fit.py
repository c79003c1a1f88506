"""`diffmask fit`: an explainer of a classifier."""

from dataclasses import fields
from pathlib import Path
from typing import Annotated

import typer


def fit(
    model: Annotated[str, typer.Option(help="Classifier: a folder or a hub id.")],
    data: Annotated[str, typer.Option(help="A data set's name or a table's path, as for `diffmask train`.")],
    out: Annotated[Path, typer.Option(help="Folder for the explainer.")],
    mask: Annotated[
        str, typer.Option(help="'inputs': which words are needed; 'states': which hidden states.")
    ] = "inputs",
    margin: Annotated[float, typer.Option(help="Largest change of the answer that masking may cause, in nats.")] = 0.1,
    seed: int = 0,
    choices: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="Of the method or the task, such as steps=500, max_tokens=128."),
    ] = None,
) -> None:
    """Fit DiffMask to a classifier, and say whether its explanations deserve belief.

    Example: diffmask fit --model clf/ --data rotten-tomatoes --mask inputs --margin 0.1 --out explainer/
    """
    from diffmask.cli.screen import show_log
    from diffmask.methods.diffmask import DiffMask
    from diffmask.recipe import choices_of
    from diffmask.tasks.recipes import TextTask

    show_log(quiet=False)
    given = choices_of(choices or [])
    of_the_task = {name: given.pop(name) for name in {field.name for field in fields(TextTask)} & set(given)}
    task = TextTask.from_dict({"model": model, "data": data, **of_the_task}, "fit").load(seed)
    explainer = DiffMask.from_dict({"mask": mask, "margin": margin, **given}, "fit").fit(task, seed)
    explainer.save_pretrained(out)
    print(f"explainer: {out}")
