"""`diffmask fit`: fit an explainer to a model."""

from dataclasses import fields, replace
from pathlib import Path
from typing import Annotated

import typer

from diffmask.cli.options import (
    Data,
    Device,
    Force,
    LabelledColumns,
    Model,
    Quiet,
    Seed,
    TaskName,
    TrustRemoteCode,
    Verbose,
    configure_logging,
    expand_groups,
    overrides,
    require_folder,
)

MethodName = Annotated[str, typer.Option(help="Name of a method from `diffmask list methods`.")]
Mask = Annotated[
    str | None, typer.Option(help="masks: mask 'inputs' (words, the default) or 'states' (hidden states).")
]
Margin = Annotated[
    float | None,
    typer.Option(help="masks: largest KL(original || masked) that a mask may cause, in nats; by default 0.1."),
]
Teachers = Annotated[
    list[str] | None, typer.Option(help="amortised: method to imitate; give it several times to imitate the mean.")
]
Budget = Annotated[
    str | None, typer.Option(help="surrogate-mask, amortised: limit of the fit, such as '1min' or '3000 texts'.")
]
Checkpoints = Annotated[
    Path | None, typer.Option(help="diffmask: folder for checkpoints; a killed fit resumes from the last one.")
]
MethodOptions = Annotated[
    list[str] | None, overrides("Options of the method or of the task, such as steps=500, max_tokens=128.")
]


@expand_groups
def fit_command(
    model: Model,
    data: Data,
    out: Annotated[Path, typer.Option(help="Folder for the explainer.")],
    method: MethodName = "surrogate-mask",
    mask: Mask = None,
    margin: Margin = None,
    teacher: Teachers = None,
    budget: Budget = None,
    checkpoints: Checkpoints = None,
    task: TaskName = None,
    *,
    columns: LabelledColumns,
    seed: Seed = 0,
    force: Force = False,
    device: Device = None,
    quiet: Quiet = False,
    verbose: Verbose = False,
    trust_remote_code: TrustRemoteCode = False,
    choices: MethodOptions = None,
) -> None:
    """Fit an explainer to a model, check it on held-out texts, and warn if a check fails.

    Example: diffmask fit --model clf/ --data rotten-tomatoes --mask inputs --margin 0.1 --out explainer/

    Example: diffmask fit --model clf/ --data rotten-tomatoes --method amortised --budget 5min --out fast/

    Example: diffmask fit --model clf/ --data rotten-tomatoes --method diffmask --checkpoints steps/ --out gates/
    """
    from diffmask.core.config import parse, parse_overrides
    from diffmask.registry import find
    from diffmask.tasks.text.known_tasks import trained_config_class

    require_folder(out, ["artefact.json"], force)
    configure_logging(quiet, verbose)
    given = parse_overrides(columns.with_overrides(choices))
    names = {field.name for field in fields(find("method", method, "fit").load())} & set(given)
    chosen = {name: given.pop(name) for name in names}
    options = {"mask": mask, "margin": margin, "teacher": teacher or None, "budget": budget}
    method_options = {name: value for name, value in options.items() if value is not None}
    # The method is checked before the model's files are read, the task before its weights are.
    config = parse("method", {"name": method, **method_options, **chosen}, "fit")
    kind = trained_config_class(task, model, trust_remote_code=trust_remote_code)
    task_config = kind.from_dict({"model": model, "data": data, **given}, "fit")
    loaded = replace(task_config, trust_remote_code=trust_remote_code).load(seed)
    if device is not None:
        loaded.to(device)
    explainer = config.fit(loaded, seed, checkpoints=checkpoints)
    explainer.save_pretrained(out)
    print(f"explainer: {out}")
