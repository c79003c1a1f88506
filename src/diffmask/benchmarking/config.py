"""Choices written as `key=value`: of the task, or `name.key=value` of a method or a metric.

What a benchmark compares: methods x metrics on some held-out texts, at some seeds.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from diffmask.core.config import parse, parse_overrides
from diffmask.core.explainer import Method
from diffmask.core.task import Task
from diffmask.core.training import generator
from diffmask.errors import ConfigError, InputError, nearest
from diffmask.methods.baselines import Random
from diffmask.metrics.base import Metric

Nodes = list[dict[str, Any]]


def sort_overrides(
    texts: Sequence[str], methods: Sequence[str], metrics: Sequence[str]
) -> tuple[dict[str, Any], Nodes, Nodes]:
    """The task's choices, and the methods and metrics with theirs.

    >>> sort_overrides(["max_tokens=64", "diffmask.steps=5"], ["random", "diffmask"], ["comprehensiveness"])
    ({'max_tokens': 64}, [{'name': 'random'}, {'name': 'diffmask', 'steps': 5}], [{'name': 'comprehensiveness'}])
    """
    names = [[name.strip() for name in listed if name.strip()] for listed in (methods, metrics)]
    nodes = [{name: {"name": name} for name in listed} for listed in names]
    of_the_task = {}
    for key, value in parse_overrides(texts).items():
        name, dot, option = key.rpartition(".")
        if not dot:
            of_the_task[key] = value
            continue
        owners = [found[name] for found in nodes if name in found]
        if not owners:
            raise ConfigError(f"'{key}': '{name}' is not compared here; {nearest(name, [*names[0], *names[1]])}")
        owners[0][option] = value
    return of_the_task, list(nodes[0].values()), list(nodes[1].values())


METHODS = ("random", "gradient", "input-x-gradient", "integrated-gradients", "leave-one-out")
METRICS = ("comprehensiveness",)

Named = str | Mapping[str, Any]
"""A recipe's name, or a mapping of its name and choices."""


@dataclass(frozen=True, kw_only=True)
class BenchmarkConfig:
    """The choices of a benchmark."""

    methods: tuple[Method, ...]
    metrics: tuple[Metric, ...]
    texts: int = 200
    """Held-out texts that are explained; all where there are fewer."""
    seeds: tuple[int, ...] = (0,)
    """One fit, and one set of scores, for each."""
    split: str = "test"
    """Where the texts are taken from."""
    budget: int | float | None = None
    """Rows through the model that each method may spend on a text, forward and backward; as it likes where none is."""

    def __post_init__(self) -> None:
        if self.texts < 1 or not self.seeds:
            raise ConfigError("benchmark: texts is at least 1, and there is at least one seed")
        if self.budget is not None and self.budget <= 0:
            raise ConfigError(f"benchmark: budget is a number of rows above 0; found {self.budget}")

    @staticmethod
    def of(
        methods: Sequence[Named | Method] | None, metrics: Sequence[Named | Metric] | None, **choices: Any
    ) -> "BenchmarkConfig":
        """A config from names; a random order is always part of it."""
        listed = [_recipe("method", one) for one in (METHODS if methods is None else methods)]
        if not any(isinstance(method, Random) for method in listed):
            listed.insert(0, Random())
        measured = [_recipe("metric", one) for one in (METRICS if metrics is None else metrics)]
        if not measured:
            raise ConfigError("benchmark: 'metrics' is a list of at least one metric")
        return BenchmarkConfig(methods=tuple(dict.fromkeys(listed)), metrics=tuple(dict.fromkeys(measured)), **choices)

    def held_out(self, task: Task) -> Task:
        """The task with only the texts that are explained: drawn at random, always the same ones."""
        if self.split not in task.data:
            raise InputError(f"the task has no split '{self.split}'; {nearest(self.split, task.data)}")
        some = task.data[self.split].maskable.any(dim=1).nonzero().flatten()
        if not len(some):
            raise InputError(f"no text of the split '{self.split}' has a word that could be masked")
        drawn = some[torch.randperm(len(some), generator=generator(0, "benchmark", len(some)))]
        return task.subset(self.split, drawn[: self.texts].sort().values)


def short_names(recipes: Sequence[Method]) -> list[str]:
    """Each recipe's name; where two share it, with the choices that tell them apart, or numbered."""
    shared = Counter(recipe.name for recipe in recipes)
    found: list[str] = []
    for recipe in recipes:
        name = recipe.label if shared[recipe.name] > 1 else recipe.name
        found.append(f"{name} #{found.count(name) + 1}" if name in found else name)
    return found


def _recipe(kind: str, one: Any) -> Any:
    return one if isinstance(one, Method | Metric) else parse(kind, one, "benchmark")
