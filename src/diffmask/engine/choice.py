"""The engine that a name and a few choices stand for."""

from collections.abc import Mapping
from typing import Any

from diffmask.engine.base import Engine
from diffmask.errors import RecipeError, nearest

NAMES = ("serial", "processes", "dask", "slurm")


def engine_named(name: str, choices: Mapping[str, Any]) -> Engine:
    """The engine of that name; choices that are none are left at their defaults, those that are not its own refused."""
    from dataclasses import fields

    from diffmask.engine.cluster import Dask
    from diffmask.engine.processes import Processes
    from diffmask.engine.serial import Serial
    from diffmask.engine.slurm import Slurm

    engines: dict[str, type[Engine]] = dict(zip(NAMES, (Serial, Processes, Dask, Slurm), strict=True))
    if name not in engines:
        raise RecipeError(f"there is no engine '{name}'; {nearest(name, NAMES)}")
    made = {key: value for key, value in choices.items() if value is not None}
    known = {field.name for field in fields(engines[name])}
    for key in made:
        if key not in known:
            raise RecipeError(f"the engine '{name}' has no option '{key}'; {nearest(key, known)}")
    return engines[name](**made)
