"""`diffmask compare`: words whose importance differs between two models."""

from pathlib import Path
from typing import Annotated

import typer

from diffmask.cli.options import Data, Force, Seed, configure_logging, overrides, require_folder


def compare_command(
    model: Annotated[list[str], typer.Option(help="Folder of a model; give it twice.")],
    data: Data,
    out: Annotated[Path, typer.Option(help="Folder for comparison.html and comparison.json.")],
    method: Annotated[str, typer.Option(help="Name of a method from `diffmask list methods`.")] = "surrogate-mask",
    n_samples: Annotated[int, typer.Option(min=1, help="Number of test texts or impressions to explain.")] = 200,
    seed: Seed = 0,
    force: Force = False,
    choices: Annotated[list[str] | None, overrides("Options of the method, such as steps=500.")] = None,
) -> None:
    """Explain the same texts to two models and report the words whose importance changed.

    Example: diffmask compare --model clean/ --model poisoned/ --data mind:FOLDER --out poisoning/
    """
    from diffmask.benchmarking.compare_models import compare as compare_models
    from diffmask.benchmarking.compare_models import comparison_inputs
    from diffmask.core.config import parse, parse_overrides
    from diffmask.errors import InputError
    from diffmask.tasks.text.known_tasks import trained_config_class

    if len(model) != 2:
        raise InputError(f"two models are compared: give --model twice, not {len(model)} times")
    require_folder(out, ["comparison.json"], force)
    configure_logging(quiet=False)
    config = parse("method", {"name": method, **parse_overrides(choices or [])}, "compare")
    tasks = [
        trained_config_class(None, name).from_dict({"model": name, "data": data}, "compare").load() for name in model
    ]
    names = (Path(model[0]).name, Path(model[1]).name)
    inputs = comparison_inputs(tasks[0], n_samples)
    result = compare_models(tasks[0], tasks[1], explainer=config, data=inputs, names=names, seed=seed)
    out.mkdir(parents=True, exist_ok=True)
    result.to_html(out / "comparison.html")
    result.to_json(out / "comparison.json")
    print(f"{result}\npage: {out / 'comparison.html'}")
