"""`diffmask train`: a classifier for those who have none."""

from pathlib import Path
from typing import Annotated

import typer


def train(
    out: Annotated[Path, typer.Option(help="Folder for the classifier; `transformers` loads it.")],
    model: Annotated[str, typer.Option(help="Encoder: 'minilm' (packaged), a folder or a hub id.")] = "minilm",
    data: Annotated[
        str,
        typer.Option(
            help="'rotten-tomatoes', 'imdb-reviews', sst2:FOLDER, sst5:FOLDER, snli:FOLDER, hub:OWNER/NAME, "
            "or a table's path."
        ),
    ] = "rotten-tomatoes",
    seed: Annotated[int, typer.Option(help="Of the new head, the order of the rows and dropout.")] = 0,
    choices: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="Such as epochs=2, rows=2000, label_column=stars, masked=0.5."),
    ] = None,
) -> None:
    """Fine-tune an encoder on labelled texts; the epoch best on the validation rows is saved.

    Example: diffmask train --model minilm --data rotten-tomatoes --out clf/ epochs=2
    """
    from diffmask.cli.screen import show_log
    from diffmask.core.config import parse_overrides
    from diffmask.tasks.text.configs import FineTunedClassificationConfig

    show_log(quiet=False)
    recipe: FineTunedClassificationConfig = FineTunedClassificationConfig.from_dict(
        {"model": model, "data": data, **parse_overrides(choices or [])}, "train"
    )
    task = recipe.build(seed)
    recipe.train(task, seed)
    task.save_pretrained(out)
    print(f"score on test rows: {task.score(task.data['test']):.4f}\nclassifier: {out}")
