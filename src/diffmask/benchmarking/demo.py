"""The demonstration: fine-tune a packaged encoder, fit an explainer, explain held-out sentences, compare methods."""

from dataclasses import dataclass
from pathlib import Path

from diffmask.benchmarking.benchmark import benchmark
from diffmask.core.batch import spread_indices
from diffmask.core.store import Store
from diffmask.core.task import Task
from diffmask.datasets.tables import Example
from diffmask.explanation.explanation import Explanation, HardMask
from diffmask.methods.diffmask.surrogate import SurrogateMask
from diffmask.results.benchmark_result import BenchmarkResult
from diffmask.tasks.text.configs import FineTunedClassificationConfig
from diffmask.workspace.workspace import Workspace

TASK = FineTunedClassificationConfig(rows=2000, epochs=1, batch_size=16, learning_rate=1e-4)
"""One pass over a quarter of the reviews: 4 of 5 held-out ones are then classified right, with little certainty."""
METHOD = SurrogateMask(mask="inputs", margin=0.05, steps=64)
"""Half the usual margin: where the classifier is not certain, a small change of its answer may be another answer."""
SENTENCES = 10
TEXTS = 50
"""Held-out reviews that methods are compared on."""


@dataclass(frozen=True)
class Demo:
    """What was trained, fitted and explained."""

    task: Task
    method: SurrogateMask
    accuracy: float
    """Of the classifier on held-out reviews."""
    explanations: list[Explanation]
    checks: list[HardMask]
    """Of each explanation: what the model says without the words it is said not to need."""

    def answer(self) -> list[str]:
        """Lines for a reader in a hurry: which words were needed, until which layer, and whether that holds."""
        survived = sum(
            check.prediction.label == explanation.prediction.label
            for check, explanation in zip(self.checks, self.explanations, strict=True)
        )
        gone = sum(len(check.kept) - sum(check.kept) for check in self.checks)
        words = sum(len(check.kept) for check in self.checks)
        first = (
            f"{gone} of the {words} words in {len(self.checks)} held-out sentences were erased, "
            f"and {survived} of the {len(self.checks)} predictions survived."
        )
        return [first, *(_line(*pair) for pair in zip(self.explanations, self.checks, strict=True))]


def run_demo(
    folder: Path,
    recipe: FineTunedClassificationConfig = TASK,
    method: SurrogateMask = METHOD,
    sentences: int = SENTENCES,
    seed: int = 0,
) -> Demo:
    """Fine-tune, fit, explain, on what is packaged; what is in `folder` already is not done again."""
    store = Store(folder / "store")
    task = Workspace(store, recipe, seed).task()
    explainer = Workspace.over(store, task, seed).explainer(method)
    explanations = [explainer(example.text) for example in held_out_sentences(recipe, sentences)]
    checks = [explanation.hard_mask() for explanation in explanations]
    return Demo(task, method, task.score(task.data["test"]), explanations, checks)


def compare_methods(demo: Demo, folder: Path, texts: int = TEXTS) -> BenchmarkResult:
    """SurrogateMask beside three other methods and a random order, on held-out texts; its fit is not made again."""
    return benchmark(demo.task, ["gradient", "input-x-gradient", "leave-one-out", demo.method], texts=texts, out=folder)


def held_out_sentences(recipe: FineTunedClassificationConfig, count: int) -> list[Example]:
    """Of those that fit a screen so many, evenly from first to last: the reviews are sorted by their labels."""
    fitting = [example for example in recipe.dataset().test if 8 <= len(example.text.split()) <= 16]
    return [fitting[index] for index in spread_indices(len(fitting), count)]


def _line(explanation: Explanation, check: HardMask) -> str:
    """One sentence: what the model says, the words it needs to the last layer, and those it drops on the way."""
    last = [word for word, kept in zip(explanation.words, check.kept, strict=True) if kept]
    dropped = explanation.dropped_at()
    on_the_way = [
        f"{word} (until {layer})"
        for word, layer in zip(explanation.words, dropped, strict=True)
        if layer not in (None, explanation.layers[0])
    ]
    way = f"; on the way also {', '.join(on_the_way)}" if on_the_way else ""
    return (
        f"{explanation.prediction}: {explanation.text}\n"
        f"    needs {', '.join(last) or 'no word'}{way}\n"
        f"    without the rest: {check.prediction}, a change of {check.divergence:.3f} nats"
    )
