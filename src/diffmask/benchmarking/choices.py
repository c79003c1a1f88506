"""Choices written as `key=value`: of the task, or `name.key=value` of a method or an evaluation."""

from collections.abc import Sequence
from typing import Any

from diffmask.errors import RecipeError, nearest
from diffmask.recipe import choices_of

Nodes = list[dict[str, Any]]


def sorted_choices(
    texts: Sequence[str], methods: Sequence[str], evaluations: Sequence[str]
) -> tuple[dict[str, Any], Nodes, Nodes]:
    """The task's choices, and the methods and evaluations with theirs.

    >>> sorted_choices(["max_tokens=64", "diffmask.steps=5"], ["random", "diffmask"], ["comprehensiveness"])
    ({'max_tokens': 64}, [{'name': 'random'}, {'name': 'diffmask', 'steps': 5}], [{'name': 'comprehensiveness'}])
    """
    names = [[name.strip() for name in listed if name.strip()] for listed in (methods, evaluations)]
    nodes = [{name: {"name": name} for name in listed} for listed in names]
    of_the_task = {}
    for key, value in choices_of(texts).items():
        name, dot, option = key.rpartition(".")
        if not dot:
            of_the_task[key] = value
            continue
        owners = [found[name] for found in nodes if name in found]
        if not owners:
            raise RecipeError(f"'{key}': '{name}' is not compared here; {nearest(name, [*names[0], *names[1]])}")
        owners[0][option] = value
    return of_the_task, list(nodes[0].values()), list(nodes[1].values())
