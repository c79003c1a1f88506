"""The count that every kind of trial ends with."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from diffmask import registry
from diffmask.core.config import parse
from diffmask.core.explainer import Explainer, Method
from diffmask.core.task import Task
from diffmask.errors import TaskError
from diffmask.tasks.classification import TextClassification
from diffmask.tasks.generation.prompt_encoding import PromptEncodingConfig
from diffmask.tasks.generation.text_generation import TextGeneration
from diffmask.tasks.toy import ToyTaskConfig
from support.tiny_language_models import tiny_language_model, word_tokenizer
from support.tiny_models import tiny_model, word_pieces
from test_contract_heads import QUICK

WORDS = ("good", "great", "fun", "bad", "dull", "mess", "enjoyable", "not bad")


@dataclass
class Count:
    """How many trials were made, and those that failed."""

    title: str
    trials: int = 0
    failures: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """Methods that a task cannot serve, and faults that this machine does not allow."""

    def add(self, trial: str, failure: str | None) -> None:
        """Count one trial."""
        self.trials += 1
        if failure is not None:
            self.failures.append(f"{trial}: {failure}")

    def show(self) -> None:
        """Print the number of failures, and each of them."""
        print(f"{self.title}: {len(self.failures)} of {self.trials} failed", flush=True)
        for line in (*self.failures, *(f"({note})" for note in self.notes)):
            print(f"  {line}", flush=True)


def names() -> list[str]:
    """Return every registered method."""
    return [entry.name for entry in registry.entries("method")]


def method(name: str, settings: Mapping[str, dict[str, Any]] = QUICK) -> Method:
    """Return a method, by default with settings that take little time."""
    found: Method = parse("method", {"name": name, **settings.get(name, {})}, "trials")
    return found


def small_task(family: str = "bert") -> TextClassification:
    """Return a tiny classifier of a family, with texts of different lengths."""
    rows = [(f"{'the film is ' * (1 + n % 3)}{word} {n}", n % 2) for n in range(4) for word in WORDS]
    return TextClassification(tiny_model(family, 2), word_pieces(), train=rows, valid=rows, test=rows)


def parts_task() -> TextGeneration:
    """Return a tiny language model with prompts of several parts, for methods that erase parts as a whole."""
    facts = ["ann lives in oslo.", "bob lives in lima.", "ann is a pilot.", "bob works as a baker."]
    prompts = [
        {"documents": facts[first : first + 1 + first % 3], "question": f"where does {name} live?"}
        for first in range(4)
        for name in ("ann", "bob", "the baker", "the pilot")
    ]
    encoding = PromptEncodingConfig(max_new_tokens=4)
    model = tiny_language_model("llama")
    return TextGeneration(model, word_tokenizer(), train=prompts, test=prompts, encoding=encoding)


def toy_task() -> Task:
    """Return a small counter, whose smallest evidence is known."""
    return ToyTaskConfig(rows=200, epochs=1, width=8).load(seed=0)


def each_fitted(
    tasks: Sequence[Task],
    count: Count,
    seed: int,
    visit: Callable[[str, Task, Explainer], None],
    settings: Mapping[str, dict[str, Any]] = QUICK,
) -> None:
    """Call `visit` with every method, fitted to the first of the tasks that can serve it."""
    torch.set_num_threads(1)
    for name in names():
        reason = ""
        for task in tasks:
            try:
                explainer = method(name, settings).fit(task, seed)
                explainer(task.data["test"][:1].trim())
            except TaskError as error:
                reason = str(error)[:100]
                continue
            visit(name, task, explainer)
            break
        else:
            count.notes.append(f"{name} does not apply: {reason}")
