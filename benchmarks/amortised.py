"""The amortised explainer beside slow methods, in one run: `python benchmarks/amortised.py --model DIR --data NAME`.

Comprehensiveness and sufficiency over ratios 5, 10, 20 and 50 %, erased tokens replaced by the mask token, in the
predicted class's probability; time a text over a bare forward pass; seconds of the fit; texts from which on it pays.
"""

import argparse
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from statistics import mean

import numpy as np
import torch
from numpy.typing import NDArray

from diffmask.core.batch import Batch
from diffmask.core.explainer import Explainer, Method
from diffmask.core.task import Task
from diffmask.errors import FitWarning
from diffmask.methods.amortised.amortised import Amortised
from diffmask.methods.amortised.attributive_masking import AttributiveMasking
from diffmask.methods.baselines import Random
from diffmask.methods.captum import CaptumShapleyValueSampling
from diffmask.methods.diffmask.nested import NestedDiffMask
from diffmask.methods.gradients import IntegratedGradients
from diffmask.methods.leave_one_out import LeaveOneOut
from diffmask.metrics.amortised_report import FaithfulnessScores, drops_by_text
from diffmask.metrics.faithfulness import Comprehensiveness
from diffmask.results.comparison import compare, estimate
from diffmask.tasks.text.text_configs import TextClassificationConfig

METRICS = tuple(info for info in Comprehensiveness().infos if info.name in ("comprehensiveness", "sufficiency"))


@dataclass(frozen=True)
class Row:
    """One method: means over seeds."""

    name: str
    quality: FaithfulnessScores
    seconds: float
    """To explain all texts."""
    fit_seconds: float
    drops: dict[str, NDArray[np.float64]]
    """Comprehensiveness and sufficiency of every seed and text, by metric."""


def seconds_of(work: Callable[[], object], times: int) -> float:
    """The fastest of several runs: what else the machine does only adds."""
    seconds = []
    for _ in range(times):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def bare(task: Task, texts: Batch) -> float:
    """Seconds of a forward pass over the texts, taken in order of length as every explainer takes them."""
    order = texts.present.sum(dim=1).argsort(stable=True)

    @torch.no_grad()
    def work() -> None:
        for rows in order.split(256):
            task.predict(texts[rows].trim())

    return seconds_of(work, times=5)


def measure(method: Method, task: Task, texts: Batch, seeds: list[int]) -> tuple[Row, Explainer]:
    """A method fitted with each seed."""
    rows, explainer = [], method.build(task, seeds[0])
    for seed in seeds:
        explainer = method.fit(task, seed)
        scores = explainer(texts).scores
        seconds = explainer.cost.seconds
        if seconds < 30:
            seconds = seconds_of(lambda fitted=explainer: fitted(texts), times=5)  # type: ignore[misc]
        both = {info.name: each for info, each in zip(METRICS, drops_by_text(task, texts, scores), strict=True)}
        quality = FaithfulnessScores(*(each.mean().item() for each in both.values()))
        drops = {name: each[None].double().numpy() for name, each in both.items()}
        rows.append(Row(method.label, quality, seconds, explainer.fit_cost.seconds, drops))
        print(f"  {method.label}, seed {seed}: {quality}, {explainer.fit_cost}", flush=True)
    quality = FaithfulnessScores(
        mean(row.quality.comprehensiveness for row in rows), mean(row.quality.sufficiency for row in rows)
    )
    drops = {info.name: np.concatenate([row.drops[info.name] for row in rows]) for info in METRICS}
    seconds, fit_seconds = mean(row.seconds for row in rows), mean(row.fit_seconds for row in rows)
    return Row(method.label, quality, seconds, fit_seconds, drops), explainer


def rivals(task: Task, fitted: Explainer) -> list[Method]:
    """Return AML and an amortised Shapley model with about as many rows through the model as the fitted one had.

    Yang et al. 2023 (arXiv 2305.19998) train a network on Shapley values of 25 sampled permutations per text.
    """
    method = fitted._known_config()
    assert isinstance(method, Amortised)
    budget = fitted.fit_cost.rows
    tokens = task.data["train"][:200].maskable.sum().item() / 200
    # Three forward passes and two backward passes, each of which costs about two forward passes.
    masking = AttributiveMasking(steps=max(1, round(budget / (7 * method.batch_size))))
    teacher = CaptumShapleyValueSampling(n_samples=25)
    labelled = max(method.batch_size, round(budget / (25 * tokens)))
    return [masking, Amortised(teacher=teacher, budget=f"{labelled} texts", held_out=16)]


def show(rows: list[Row], once: float, texts: int, peer: Row) -> None:
    """The table, and the texts from which on each fit takes less time than the peer."""
    print(f"{'method':44} compreh.  suffic.  x bare  fit s  break-even against {peer.name.split()[0]}")
    for row in rows:
        saved = (peer.seconds - row.seconds) / texts
        even = f"{row.fit_seconds / saved:.0f}" if saved > 0 else "-"
        quality = f"{row.quality.comprehensiveness:8.3f} {row.quality.sufficiency:8.3f}"
        print(f"{row.name[:44]:44} {quality} {row.seconds / once:7.2f} {row.fit_seconds:6.0f}  {even}")


def show_comparisons(rows: list[Row]) -> None:
    """Print means with 95 % intervals over texts and seeds, and the first method against all others, Holm-corrected."""
    seeds = len(rows[0].drops[METRICS[0].name])
    for info in METRICS:
        values = {row.name: np.repeat(row.drops[info.name], seeds // len(row.drops[info.name]), axis=0) for row in rows}
        print(f"{info.title}, {'higher' if info.higher_is_better else 'lower'} is better")
        for name, each in values.items():
            interval = estimate(each)
            print(f"  {name[:60]:60} {interval.mean:.3f} [{interval.low:.3f}, {interval.high:.3f}]")
        for pair in compare([info], {info.name: values}):
            if rows[0].name in (pair.first, pair.second):
                between = f"{pair.difference:+.3f} [{pair.low:+.3f}, {pair.high:+.3f}], p = {pair.p_value:.3f}"
                print(f"  {pair.first[:40]} - {pair.second[:60]}: {between}: {pair.winner or 'a tie'}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True, help="folder of a classifier")
    parser.add_argument("--data", required=True, help="its data set, as for `diffmask fit`")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--texts", type=int, default=200)
    parser.add_argument("--budget", default=None, help="of the amortised fit: '5min' or '3000 texts'")
    parser.add_argument("--teachers", nargs="*", default=[], help="methods to imitate as well")
    parser.add_argument("--margins", type=float, nargs="*", default=[], help="margins of a NestedDiffMask")
    parser.add_argument("--steps", type=int, default=300, help="steps of that NestedDiffMask")
    parser.add_argument("--comprehensiveness-weight", type=float, default=0.0, help="weight of its second term")
    parser.add_argument("--rivals", action="store_true", help="measure AML and Yang et al. 2023 at the same budget too")
    parser.add_argument("--fast-only", action="store_true", help="leave out integrated gradients and leave-one-out")
    given = parser.parse_args()
    warnings.simplefilter("ignore", FitWarning)

    task = TextClassificationConfig(model=given.model, data=given.data).load()
    texts = task.data["test"][: given.texts]
    seeds = list(range(given.seeds))
    print(f"{len(texts)} texts, {torch.get_num_threads()} threads", flush=True)
    once = bare(task, texts)
    amortised, fitted = measure(Amortised(budget=given.budget), task, texts, seeds)
    rows = [amortised]
    for teacher in given.teachers:
        rows.append(measure(Amortised(teacher=teacher, budget=given.budget), task, texts, seeds)[0])
    if given.rivals:
        for rival in rivals(task, fitted):
            rows.append(measure(rival, task, texts, seeds)[0])
    if given.margins:
        several = NestedDiffMask(
            margins=tuple(given.margins),
            steps=given.steps,
            baseline="mask",
            comprehensiveness_weight=given.comprehensiveness_weight,
        )
        row, explainer = measure(several, task, texts, seeds)
        rows.append(row)
        print({name: {key: diagnostics[key] for key in ("hard_divergence", "nested_share", "open_share")}
               for name, diagnostics in explainer.diagnostics.items()})  # fmt: skip
    slow = [IntegratedGradients(n_steps=50, baseline="auto", signed=True), LeaveOneOut()]
    for method in ([] if given.fast_only else slow) + [Random()]:
        rows.append(measure(method, task, texts, [0])[0])
    show(rows, once, len(texts), rows[0] if given.fast_only else rows[-3])
    if given.rivals:
        show_comparisons(rows)
    print({key: value for key, value in fitted.diagnostics["network"].items() if key != "curve"})


if __name__ == "__main__":
    main()
