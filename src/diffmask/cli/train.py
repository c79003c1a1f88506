"""`diffmask train`: fine-tune a model."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from diffmask.cli.options import (
    Data,
    Force,
    LabelledColumns,
    Quiet,
    Seed,
    TrustRemoteCode,
    Verbose,
    configure_logging,
    expand_groups,
    overrides,
    require_folder,
)


@expand_groups
def train_command(
    out: Annotated[Path, typer.Option(help="Folder for the model, which `transformers` can load.")],
    model: Annotated[
        str, typer.Option(help="Encoder: 'minilm' (packaged), a folder, a hub id; or 'words'.")
    ] = "minilm",
    data: Data = "rotten-tomatoes",
    task: Annotated[
        str, typer.Option(help="text-classification, question-answering, token-classification or recommender.")
    ] = "text-classification",
    *,
    columns: LabelledColumns,
    seed: Seed = 0,
    force: Force = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
    trust_remote_code: TrustRemoteCode = False,
    choices: Annotated[
        list[str] | None,
        overrides("Options of the training, such as epochs=2, rows=2000, label_column=stars, masked_fraction=0.5."),
    ] = None,
) -> None:
    """Fine-tune an encoder on labelled texts, and save the epoch with the best validation score.

    Example: diffmask train --model minilm --data rotten-tomatoes --out clf/ epochs=2

    Example: diffmask train --task question-answering --model minilm --data squad:FOLDER --out qa/

    Example: diffmask train --task recommender --model minilm --data mind:FOLDER --out nrms/ checkpoints=epochs/
    """
    from diffmask.core.config import parse_overrides
    from diffmask.core.progress import stage
    from diffmask.tasks.text.known_tasks import fine_tuned_config_class

    chosen = columns.with_overrides(choices)
    kind = fine_tuned_config_class(task)
    require_folder(out, ["config.json"], force)
    configure_logging(quiet, verbose)
    config = kind.from_dict({"model": model, "data": data, **parse_overrides(chosen)}, "train")
    config = replace(config, trust_remote_code=trust_remote_code)
    trained = config.build(seed)
    config.train(trained, seed)
    trained.save_pretrained(out)
    with stage("score the test rows"):
        score = trained.score(trained.data["test"])
    print(f"score on test rows: {score:.4f}\nmodel: {out}")
