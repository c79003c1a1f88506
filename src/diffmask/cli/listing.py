"""`diffmask list`: what there is to choose from."""

import json
from enum import StrEnum
from typing import Annotated

import typer

from diffmask.registry import entries


class Kind(StrEnum):
    """What can be listed."""

    METHODS = "methods"
    TASKS = "tasks"
    EVALUATIONS = "evaluations"


def listing(
    kind: Annotated[Kind, typer.Argument(help="What to list.")],
    as_json: Annotated[bool, typer.Option("--json", help="As JSON, for programs.")] = False,
) -> None:
    """List methods, tasks or evaluations.

    Example: diffmask list methods --json
    """
    found = entries(kind.value.removesuffix("s"))
    if as_json:
        print(json.dumps([{"name": entry.name, "summary": entry.summary} for entry in found], indent=1))
        return
    width = max(len(entry.name) for entry in found)
    for entry in found:
        print(f"{entry.name:<{width}}  {entry.summary}")
