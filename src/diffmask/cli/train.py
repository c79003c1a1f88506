"""`diffmask train`: fine-tune a classifier."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from diffmask.cli.options import Data, Force, Seed, TrustRemoteCode, configure_logging, overrides, require_folder


def train(
    out: Annotated[Path, typer.Option(help="Folder for the classifier, which `transformers` can load.")],
    model: Annotated[str, typer.Option(help="Encoder: 'minilm' (packaged), a folder or a hub id.")] = "minilm",
    data: Data = "rotten-tomatoes",
    seed: Seed = 0,
    force: Force = False,
    trust_remote_code: TrustRemoteCode = False,
    choices: Annotated[
        list[str] | None,
        overrides("Options of the training, such as epochs=2, rows=2000, label_column=stars, masked_fraction=0.5."),
    ] = None,
) -> None:
    """Fine-tune an encoder on labelled texts, and save the epoch with the best validation score.

    Example: diffmask train --model minilm --data rotten-tomatoes --out clf/ epochs=2
    """
    from diffmask.core.config import parse_overrides
    from diffmask.tasks.text.configs import FineTunedClassificationConfig

    require_folder(out, ["config.json"], force)
    configure_logging(quiet=False)
    config: FineTunedClassificationConfig = FineTunedClassificationConfig.from_dict(
        {"model": model, "data": data, **parse_overrides(choices or [])}, "train"
    )
    config = replace(config, trust_remote_code=trust_remote_code)
    task = config.build(seed)
    config.train(task, seed)
    task.save_pretrained(out)
    print(f"score on test rows: {task.score(task.data['test']):.4f}\nclassifier: {out}")
