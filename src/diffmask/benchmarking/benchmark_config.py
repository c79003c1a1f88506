"""Config of a benchmark, and the `key=value` overrides of its task, methods and metrics."""

import math
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
from diffmask.metrics.metric import Metric

Nodes = list[dict[str, Any]]


def sort_overrides(
    texts: Sequence[str], methods: Sequence[str], metrics: Sequence[str]
) -> tuple[dict[str, Any], Nodes, Nodes]:
    """Sort `key=value` overrides into those of the task and `name.key=value` of a method or metric.

    >>> sort_overrides(["max_tokens=64", "diffmask.steps=5"], ["random", "diffmask"], ["comprehensiveness"])
    ({'max_tokens': 64}, [{'name': 'random'}, {'name': 'diffmask', 'steps': 5}], [{'name': 'comprehensiveness'}])
    """
    names = [[name.strip() for name in given if name.strip()] for given in (methods, metrics)]
    nodes = [{name: {"name": name} for name in given} for given in names]
    task_options = {}
    for key, value in parse_overrides(texts).items():
        name, dot, option = key.rpartition(".")
        if not dot:
            task_options[key] = value
            continue
        owners = [by_name[name] for by_name in nodes if name in by_name]
        if not owners:
            raise ConfigError(f"'{key}': '{name}' is not compared here; {nearest(name, [*names[0], *names[1]])}")
        owners[0][option] = value
    return task_options, list(nodes[0].values()), list(nodes[1].values())


METHODS = ("random", "gradient", "input-x-gradient", "integrated-gradients", "leave-one-out")
METRICS = ("comprehensiveness",)

Named = str | Mapping[str, Any]
"""Name of a registered config, or a mapping of its name and options."""


@dataclass(frozen=True, kw_only=True)
class BenchmarkConfig:
    """Config of a benchmark."""

    methods: tuple[Method, ...]
    metrics: tuple[Metric, ...]
    texts: int = 200
    """Number of held-out texts to explain, or all if there are fewer."""
    seeds: tuple[int, ...] = (0,)
    """Seeds; each gives one fit and one set of scores per method."""
    split: str = "test"
    """Split of the texts."""
    budget: int | float | None = None
    """Rows that each method may send through the model per text, forward and backward; None is unlimited."""

    def __post_init__(self) -> None:
        if type(self.texts) is not int or self.texts < 1:
            raise ConfigError(f"benchmark: texts is a whole number from 1; found {self.texts!r}")
        if not self.seeds or not all(type(seed) is int and seed >= 0 for seed in self.seeds):
            raise ConfigError(f"benchmark: seeds is a list of whole numbers from 0; found {self.seeds!r}")
        if self.budget is not None and not (type(self.budget) in (int, float) and 0 < self.budget < math.inf):
            raise ConfigError(f"benchmark: budget is a number of rows above 0; found {self.budget!r}")

    @staticmethod
    def of(
        methods: Sequence[Named | Method] | None, metrics: Sequence[Named | Metric] | None, **choices: Any
    ) -> "BenchmarkConfig":
        """Return a config from names; a random order is always one of the methods."""
        for name, given in (("methods", methods), ("metrics", metrics), ("seeds", choices.get("seeds", ()))):
            if (given is not None or name == "seeds") and (
                isinstance(given, str | Mapping) or not isinstance(given, Sequence)
            ):
                raise ConfigError(f"benchmark: '{name}' is a list; found {given!r}")
        listed = [_parse_config("method", given) for given in (METHODS if methods is None else methods)]
        if not any(isinstance(method, Random) for method in listed):
            listed.insert(0, Random())
        measured = [_parse_config("metric", given) for given in (METRICS if metrics is None else metrics)]
        if not measured:
            raise ConfigError("benchmark: 'metrics' is a list of at least one metric")
        if "seeds" in choices:
            choices["seeds"] = tuple(choices["seeds"])
        return BenchmarkConfig(methods=tuple(dict.fromkeys(listed)), metrics=tuple(dict.fromkeys(measured)), **choices)

    def held_out(self, task: Task) -> Task:
        """Return the task with only the texts that are explained: a random sample, always the same."""
        if not isinstance(self.split, str) or self.split not in task.data:
            raise InputError(f"the task has no split '{self.split}'; {nearest(str(self.split), task.data)}")
        maskable = task.data[self.split].maskable.any(dim=1).nonzero().flatten()
        if not len(maskable):
            raise InputError(f"no text of the split '{self.split}' has a word that could be masked")
        order = torch.randperm(len(maskable), generator=generator(0, "benchmark", len(maskable)))
        return task.subset(self.split, maskable[order[: self.texts]].sort().values)


def _parse_config(kind: str, given: Any) -> Any:
    return given if isinstance(given, Method | Metric) else parse(kind, given, "benchmark")
