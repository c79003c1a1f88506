"""The demonstration: fine-tune a packaged encoder, explain held-out reviews without and with a fit, compare methods."""

from dataclasses import dataclass
from pathlib import Path

from diffmask.benchmarking.compare_methods import benchmark
from diffmask.core.batch import spread_indices
from diffmask.core.store import Store
from diffmask.core.task import Task
from diffmask.datasets.tables import Example
from diffmask.explanation.explanation import Explanation
from diffmask.explanation.verified_set import HardMask
from diffmask.methods.diffmask.surrogate import SurrogateMask
from diffmask.results.benchmark_result import BenchmarkResult
from diffmask.results.formatting import format_decimal
from diffmask.tasks.text.text_configs import FineTunedClassificationConfig
from diffmask.workspace.quick import explain
from diffmask.workspace.workspace import Workspace

TASK = FineTunedClassificationConfig(data="short-reviews", epochs=1, batch_size=16, learning_rate=2e-4)
"""One epoch over the short reviews, after which more than 85 % of held-out reviews are classified correctly."""
METHOD = SurrogateMask(mask="inputs", margin=0.1, steps=16, calibration_rows=64, coverage=None)
"""A short fit: every review is verified on the model, so the scores only have to order its words."""
REVIEWS = 10
LONGEST = 40
"""Words of the longest review that is explained, so that it can be read at a glance."""
TEXTS = 30
"""Held-out reviews of the benchmark: the fewest that allow a verdict."""


@dataclass(frozen=True)
class Demo:
    """Trained task, fitted method and explanations of the demonstration."""

    task: Task
    method: SurrogateMask
    explanations: list[Explanation]
    checks: list[HardMask]
    """Hard mask of each explanation: the prediction without the words that are not needed."""

    def answer(self) -> list[str]:
        """Return a summary, and per review the needed words and the prediction without the others."""
        survived = sum(
            check.prediction.label == explanation.prediction.label
            for check, explanation in zip(self.checks, self.explanations, strict=True)
        )
        gone = sum(len(check.kept) - sum(check.kept) for check in self.checks)
        words = sum(len(check.kept) for check in self.checks)
        first = (
            f"{gone} of the {words} words in {len(self.checks)} held-out reviews were erased, "
            f"and {survived} of the {len(self.checks)} predictions survived."
        )
        return [first, *(_line(*pair) for pair in zip(self.explanations, self.checks, strict=True))]


def train_classifier(folder: Path, config: FineTunedClassificationConfig = TASK, seed: int = 0) -> Task:
    """Return the fine-tuned packaged encoder, from `folder` where an earlier run stored it."""
    return Workspace(Store(folder / "store"), config, seed).task()


def first_explanation(task: Task, config: FineTunedClassificationConfig = TASK) -> Explanation:
    """Explain one held-out review by leave-one-out, which needs no fit; the words that are enough are verified."""
    explanation: Explanation = explain(task, held_out_reviews(config, REVIEWS)[-1].text)
    return explanation


def run_demo(
    task: Task,
    folder: Path,
    config: FineTunedClassificationConfig = TASK,
    method: SurrogateMask = METHOD,
    reviews: int = REVIEWS,
    seed: int = 0,
) -> Demo:
    """Fit a method to the classifier and explain held-out reviews; a finished fit in `folder` is used again."""
    explainer = Workspace.over(Store(folder / "store"), task, seed).explainer(method)
    explanations = [explainer(example.text) for example in held_out_reviews(config, reviews)]
    return Demo(task, method, explanations, [explanation.hard_mask() for explanation in explanations])


def compare_methods(demo: Demo, folder: Path, texts: int = TEXTS) -> BenchmarkResult:
    """Benchmark the method, whose fit is in `folder`, against three others and a random order."""
    return benchmark(demo.task, ["gradient", "input-x-gradient", "leave-one-out", demo.method], texts=texts, out=folder)


def held_out_reviews(config: FineTunedClassificationConfig, count: int) -> list[Example]:
    """Return the test reviews that are short enough to read, evenly spaced; the reviews are sorted by label."""
    short = [example for example in config.dataset().test if len(example.text.split()) <= LONGEST]
    return [short[index] for index in spread_indices(len(short), count)]


def _line(explanation: Explanation, check: HardMask) -> str:
    """Describe one review: the prediction, the words that are enough, and those that all layers but the last need."""
    late = [
        word
        for word, layer, kept in zip(explanation.words, explanation.dropped_at(), check.kept, strict=True)
        if layer == explanation.layers[-1] and not kept
    ]
    enough = explanation.verified.sentence if explanation.verified else "predicted, not verified"
    earlier = f"\n    needed by every layer but the last: {', '.join(late)}" if late else ""
    return (
        f"{explanation.prediction}: {explanation.text}\n    {enough}{earlier}\n"
        f"    with these words alone: {check.prediction}, KL {format_decimal(check.divergence, 3)} nats"
    )
