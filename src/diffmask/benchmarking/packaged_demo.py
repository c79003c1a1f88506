"""The demonstration: fine-tune a packaged encoder, fit an explainer, explain held-out sentences, compare methods."""

from dataclasses import dataclass
from pathlib import Path

from diffmask.benchmarking.compare_methods import benchmark
from diffmask.core.batch import spread_indices
from diffmask.core.store import Store
from diffmask.core.task import Task
from diffmask.datasets.tables import Example
from diffmask.explanation.explanation import Explanation
from diffmask.explanation.heatmap import short_layer_name
from diffmask.explanation.verified_set import HardMask
from diffmask.methods.diffmask.surrogate import SurrogateMask
from diffmask.results.benchmark_result import BenchmarkResult
from diffmask.tasks.text.text_configs import FineTunedClassificationConfig
from diffmask.workspace.workspace import Workspace

TASK = FineTunedClassificationConfig(rows=2000, epochs=1, batch_size=16, learning_rate=1e-4)
"""One epoch over a quarter of the reviews, after which about 80 % of held-out reviews are classified correctly."""
METHOD = SurrogateMask(mask="inputs", margin=0.05, steps=64, coverage=None)
"""Half the usual margin: the classifier is unsure, so that a small change may flip its prediction.

Every sentence is verified, so no coverage is calibrated."""
SENTENCES = 10
TEXTS = 50
"""Held-out reviews of the benchmark."""


@dataclass(frozen=True)
class Demo:
    """Trained task, fitted method and explanations of the demonstration."""

    task: Task
    method: SurrogateMask
    accuracy: float
    """Accuracy of the classifier on held-out reviews."""
    explanations: list[Explanation]
    checks: list[HardMask]
    """Hard mask of each explanation: the prediction without the words that are not needed."""

    def answer(self) -> list[str]:
        """Return a summary, and per sentence the needed words and the prediction without the others."""
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
    config: FineTunedClassificationConfig = TASK,
    method: SurrogateMask = METHOD,
    sentences: int = SENTENCES,
    seed: int = 0,
) -> Demo:
    """Fine-tune, fit and explain on the packaged data; finished work in `folder` is used again."""
    store = Store(folder / "store")
    task = Workspace(store, config, seed).task()
    explainer = Workspace.over(store, task, seed).explainer(method)
    explanations = [explainer(example.text) for example in held_out_sentences(config, sentences)]
    checks = [explanation.hard_mask() for explanation in explanations]
    return Demo(task, method, task.score(task.data["test"]), explanations, checks)


def compare_methods(demo: Demo, folder: Path, texts: int = TEXTS) -> BenchmarkResult:
    """Benchmark the fitted method against three others and a random order; its fit is used again."""
    return benchmark(demo.task, ["gradient", "input-x-gradient", "leave-one-out", demo.method], texts=texts, out=folder)


def held_out_sentences(config: FineTunedClassificationConfig, count: int) -> list[Example]:
    """Return short sentences, evenly spaced over the test reviews, which are sorted by label."""
    fitting = [example for example in config.dataset().test if 8 <= len(example.text.split()) <= 16]
    return [fitting[index] for index in spread_indices(len(fitting), count)]


def _line(explanation: Explanation, check: HardMask) -> str:
    """Describe one sentence: the prediction, the words that are enough, and those that only earlier layers need."""
    dropped = [
        f"{word} (until {short_layer_name(layer)})"
        for word, layer, kept in zip(explanation.words, explanation.dropped_at(), check.kept, strict=True)
        if layer is not None and layer != explanation.layers[0] and not kept
    ]
    enough = explanation.verified.sentence if explanation.verified else "predicted, not verified"
    earlier = f"\n    needed by earlier layers only: {', '.join(dropped)}" if dropped else ""
    return (
        f"{explanation.prediction}: {explanation.text}\n    {enough}{earlier}\n"
        f"    with these words alone: {check.prediction}, KL {check.divergence:.3f} nats"
    )
