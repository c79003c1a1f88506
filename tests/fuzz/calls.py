"""Calls of the Python interface with values that no caller should pass, and with some that callers do."""

import math
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st

import diffmask as dm
from diffmask import registry
from diffmask.core.config import parse
from diffmask.datasets.tables import Columns, Example, read_examples
from diffmask.errors import DiffMaskError
from fuzz.commands import EXPLAINERS, MODELS, TABLES
from fuzz.home import EXPERIMENT, rows, small_task
from fuzz.outcome import Failure, TooLongError, time_limit

VALUES: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    1,
    -1,
    2,
    0.5,
    -0.5,
    1e-9,
    math.nan,
    math.inf,
    -math.inf,
    10**30,
    "",
    "a",
    "embedding",
    "0",
    "nan",
    b"a",
    (),
    [],
    {},
    (1, 2),
    [0.5, "a"],
    [math.nan],
    {"a": 1},
    {"name": "gradient"},
    object(),
    Path("x"),
    torch.tensor(1.0),
    torch.tensor([math.nan]),
    np.float64(0.5),
    np.array([1, 2]),
    int,
    len,
    "é" * 3000,
    "\ud800",
    1j,
    range(3),
    frozenset({1}),
)
TEXT_INPUTS: tuple[Any, ...] = (
    "the film is good",
    "",
    " ",
    "\n",
    "good",
    "\ud800",
    "\0",
    "[MASK] [CLS]",
    "\U0001f600",
    "good " * 2000,
    "\u202egood",
    ("a film", "a plot"),
    ("", ""),
    ("a",),
    ("a", "b", "c"),
    ("a", None),
    (1, 2),
    [],
    ["a", "b"],
    ["a", 1],
    ["a", None],
    [("a", "b"), "c"],
    [[]],
    [["a", "b"]],
    None,
    7,
    1.5,
    b"good",
    {},
    {"text": "a"},
    {"a": 1},
    Example("good film"),
    [Example("good"), Example("bad", "fun")],
    Example(""),
    iter(["a"]),
    {"a", "b"},
    np.array(["a", "b"]),
    torch.tensor([1, 2]),
    object(),
)
SOURCES: tuple[Any, ...] = (
    [],
    [""],
    ["a"],
    [("a", 1)],
    [("a", 1, 2)],
    [("a", "b")],
    [(1, 2)],
    [None],
    [7],
    {},
    {"text": ["a"]},
    {"text": ["a", "b"], "label": [1]},
    {"text": 7},
    {"label": [1]},
    {"text": None},
    [{"text": "a"}],
    [{"label": 1}],
    [{"text": "a", "label": math.nan}],
    [{"text": "a", "label": 9}],
    [{"text": "a", "label": "x"}],
    [{"text": "a", "label": -1}],
    [{"text": "a", "label": [1]}],
    [("a", None), ("b", 1)],
    [(("a", "b"), 1), ("c", 0)],
    7,
    None,
    object(),
    b"x",
    "",
    Path("nowhere"),
    ({"text": t, "label": n} for t, n in rows()),
    rows(),
    rows() * 2,
    np.array(["a", "b"]),
    [["a", 1]],
    [("a", True)],
    [("a", 0.5)],
    [("a", 10**20)],
    *TABLES,
)


@dataclass(frozen=True)
class Call:
    """A named function and its arguments."""

    name: str
    run: Callable[..., Any]
    arguments: tuple[Any, ...]

    def __str__(self) -> str:
        return f"{self.name}{self.arguments!r}"[:400]


@cache
def _task() -> dm.TextClassification:
    return small_task()


@cache
def _explainer(name: str) -> Any:
    return _method(name).fit(_task())


FAST: dict[str, dict[str, Any]] = {
    "surrogate-mask": {"steps": 2, "batch_size": 8},
    "diffmask": {"steps": 2, "batch_size": 8},
    "nested-diffmask": {"steps": 2, "batch_size": 8},
    "amortised": {"budget": "16 texts", "width": 8, "held_out": 8},
    "attributive-masking": {"steps": 2, "width": 8},
    "diffmask-per-input": {"steps": 2},
    "diffmask-reinforce": {"steps": 2, "samples": 2},
    "noise-tolerance": {"max_steps": 2, "samples": 2},
    "bottleneck": {"steps": 2},
    "integrated-gradients": {"n_steps": 3},
    "subset-search": {"budget": 8, "beam": 1},
    "captum:Lime": {"n_samples": 6},
}
FITTED = (
    "gradient",
    "leave-one-out",
    "surrogate-mask",
    "integrated-gradients",
    "attention",
    "random",
    "diffmask",
    "diffmask-per-input",
    "subset-search",
)
SLOW_FIELDS = (
    "steps",
    "samples",
    "n_steps",
    "max_steps",
    "budget",
    "n_samples",
    "width",
    "held_out",
    "beam",
    "rows_at_once",
    "refine",
    "rounds",
    "hidden",
)
"""Fields whose large values take long or much memory, as they should."""


def _method(name: str) -> Any:
    return parse("method", {"name": name, **FAST.get(name, {})}, "fuzz")


def _configs(kind: str) -> list[tuple[str, type, str]]:
    found = []
    for entry in registry.entries(kind):
        config = registry.find(kind, entry.name, "fuzz").load()
        found += [(entry.name, config, field.name) for field in fields(config)]
    return found


def build_config(config: type, field: str, value: Any) -> None:
    """Build a config in Python; what is accepted has a digest, a label and a YAML form."""
    required = {"model": "clf", "data": "reviews.csv"} if "trust_remote_code" in map(_name, fields(config)) else {}
    built = config(**{**required, field: value})
    assert built.digest and built.label and built.to_dict()


def _name(field: Any) -> str:
    return str(field.name)


def parse_config(kind: str, name: str, field: str, value: Any) -> None:
    """Build a config from a YAML node."""
    required = {"model": "clf", "data": "reviews.csv"} if "classification" in name else {}
    assert parse(kind, {"name": name, **required, field: value}, "fuzz").digest


def fit_and_explain(name: str, field: str, value: Any) -> None:
    """Fit a method with one odd choice and explain a text."""
    method = registry.find("method", name, "fuzz").load()
    config = method(**{**FAST.get(name, {}), field: value})
    scores = config.fit(_task())("the film is good", verify=False).scores
    assert scores.isfinite().all(), "scores are not finite"


def explain(name: str, inputs: Any, verify: Any) -> None:
    """Explain any object."""
    _explainer(name)(inputs, verify=verify)


def explain_batch(name: str, target: Any, rows_at_once: Any) -> None:
    """Explain a batch for any target."""
    attribution = _explainer(name)(_task().data["test"][:3], target, rows_at_once=rows_at_once)
    assert attribution.scores.shape == _task().data["test"][:3].tokens.shape


def make_batch(name: str, field: str, value: Any) -> None:
    """Explain a batch of which one tensor is another."""
    batch = _task().data["test"][:3]
    _explainer(name)(dm.Batch(**{**vars(batch), field: value}))


def read(source: Any, column: Any) -> None:
    """Read the rows of any source."""
    list(read_examples(source, Columns(text_column=column)))


def make_task(model: Any, source: Any) -> None:
    """Make a task of any model on any texts."""
    if isinstance(model, str):
        dm.TextClassification(model, train=source)
    else:
        dm.TextClassification(_task().model, _task().tokenizer, train=source)


def benchmark(**changed: Any) -> None:
    """Compare methods with one odd argument."""
    usual = {"methods": ["gradient"], "metrics": ["comprehensiveness"], "texts": 3}
    dm.benchmark(_task(), **{**usual, **changed}, say=lambda _: None)


def read_experiment(key: str, value: Any) -> None:
    """Read an experiment with one odd value."""
    dm.Experiment.from_dict({**EXPERIMENT, key: value})


def custom(result: Any) -> None:
    """Explain with a function of the user that returns anything."""
    dm.from_function(lambda *_: result, name="mine").fit(_task())(_task().data["test"][:2])


def round_trip(name: str, folder: Any) -> None:
    """Save an explainer anywhere and load it."""
    _explainer(name).save_pretrained(folder)
    dm.load_explainer(folder, _task())


def _racu(measure: list[float], random: list[float]) -> None:
    dm.racu(measure=measure, random=random)


def calls() -> st.SearchStrategy[Call]:
    """Draw a function and its arguments."""
    values, names = st.sampled_from(VALUES), st.sampled_from(FITTED)
    texts = st.one_of(st.sampled_from(TEXT_INPUTS), st.text(max_size=60), st.lists(st.text(max_size=20), max_size=3))
    methods = [found for found in _configs("method") if found[0] in FITTED and found[2] not in SLOW_FIELDS]
    tensors = st.sampled_from(
        [
            *VALUES,
            torch.zeros(3, 2),
            torch.zeros(3, 2).bool(),
            torch.full((3, 12), 10**6),
            torch.zeros(0, 5).long(),
            torch.ones(3, 300).long(),
        ]
    )
    experiment = st.sampled_from([*EXPERIMENT, "explained_split", "shard_size", "metods"])
    arguments = ("methods", "metrics", "texts", "seeds", "split", "budget", "out")
    return st.one_of(
        _call("build_config", build_config, _flat(_all_configs(), lambda one: (one[1], one[2])), values),
        _call("parse_config", parse_config, _flat(_kinds(), lambda one: one), values),
        _call("fit_and_explain", fit_and_explain, _flat(methods, lambda one: (one[0], one[2])), values),
        _call("explain", explain, names, texts, st.sampled_from([True, False])),
        _call("explain_batch", explain_batch, names, tensors, st.sampled_from([256, 1, 0, -1, None, "a", 1.5])),
        _call("make_batch", make_batch, names, st.sampled_from(["tokens", "present", "maskable", "target"]), tensors),
        _call("read", read, st.sampled_from(SOURCES), st.sampled_from(["text", "label", "", None, 7, "\ud800"])),
        _call("make_task", make_task, st.sampled_from([None, None, *MODELS, ""]), st.sampled_from(SOURCES)),
        _call("benchmark", lambda key, value: benchmark(**{key: value}), st.sampled_from(arguments), values),
        _call("read_experiment", read_experiment, experiment, values),
        _call("load_explainer", dm.load_explainer, st.sampled_from([*EXPLAINERS, "", "a b", *map(str, range(3))])),
        _call(
            "round_trip",
            round_trip,
            names,
            st.sampled_from(["new/kept", "taken", "loop", "taken/x", "empty", "clf", "/proc/x", "", "\0", "x" * 300]),
        ),
        _call("racu", _racu, _numbers(), _numbers()),
        _call("custom", custom, tensors),
    )


def _all_configs() -> list[tuple[str, type, str]]:
    return [*_configs("method"), *_configs("metric"), *_configs("task")]


def _kinds() -> list[tuple[str, str, str]]:
    return [(kind, name, field) for kind in ("method", "metric", "task") for name, _, field in _configs(kind)]


def _numbers() -> st.SearchStrategy[list[float]]:
    return st.lists(st.one_of(st.floats(), st.sampled_from([0.0, 0.5, 1.0])), max_size=12)


def _flat(options: Iterable[Any], take: Callable[[Any], tuple[Any, ...]]) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.sampled_from([take(option) for option in options])


def _call(name: str, function: Callable[..., Any], *arguments: st.SearchStrategy[Any]) -> st.SearchStrategy[Call]:
    def make(drawn: tuple[Any, ...]) -> Call:
        # A tuple from `_flat` is several arguments.
        first = drawn[0] if arguments and isinstance(drawn[0], tuple) and name in GROUPED else (drawn[0],)
        return Call(name, function, (*first, *drawn[1:]))

    return st.tuples(*arguments).map(make)


GROUPED = ("build_config", "parse_config", "fit_and_explain")


def run_call(call: Call) -> Failure | None:
    """Make a call and return what is wrong with its end, if anything."""
    try:
        with warnings.catch_warnings(), time_limit():
            warnings.simplefilter("ignore")
            call.run(*call.arguments)
    except DiffMaskError as error:
        return None if str(error) else Failure(str(call), "an error without a message", "message")
    except (Exception, TooLongError) as error:
        return Failure.of(str(call), error)
    return None
