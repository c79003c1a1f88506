"""A made-up benchmark with sentences that read like reviews, and methods whose true order is known."""

import math
import statistics
from collections.abc import Mapping, Sequence
from itertools import combinations
from random import Random

from diffmask.results.benchmark_result import (
    BenchmarkResult,
    BenchmarkText,
    Comparison,
    Curve,
    Estimate,
    MethodResult,
    MetricInfo,
)
from diffmask.results.intervals import t_interval

OPINIONS = {
    "hilarious": 2.4, "gripping": 2.2, "tender": 1.6, "luminous": 1.9, "funny": 1.8, "honest": 1.2, "assured": 1.1,
    "tedious": -2.4, "lifeless": -2.2, "clumsy": -1.7, "stale": -1.5, "predictable": -1.3, "hollow": -1.9, "long": -0.6,
}  # fmt: skip
FRAMES = (
    "A {0} , {1} film that never loses its way .",
    "The script is {0} and the direction {1} , though the ending lands .",
    "What begins as a {0} portrait of a family becomes a {1} thriller by the second hour .",
    "It 's {0} .",
    "Despite a {0} first act , the leads give {1} performances that the camera adores .",
    "You may leave the cinema wondering how something so {0} was ever sold as {1} comedy .",
    "Too {0} for children , too {1} for anyone else .",
    "There is a {0} story in here somewhere , told with a {1} eye for small rooms and large regrets .",
)
NOISE = {
    "random": 9.0, "attention": 1.6, "gradient": 1.1, "integrated-gradients": 0.35, "leave-one-out": 0.3,
    "captum:Lime": 0.5, "diffmask": 0.3, "input-x-gradient": 0.8,
}  # fmt: skip
"""How far each method's scores stray from the words' true weights: the true order of the methods."""
COST = {
    "random": (0.0, 0.0, 0.0001, 0.0), "attention": (1.0, 0.0, 0.011, 0.0), "gradient": (1.0, 1.0, 0.031, 0.0),
    "integrated-gradients": (50.0, 50.0, 1.21, 0.0), "leave-one-out": (19.0, 0.0, 0.16, 0.0),
    "captum:Lime": (50.0, 0.0, 0.43, 0.0), "diffmask": (1.0, 0.0, 0.014, 95.2),
    "input-x-gradient": (1.0, 1.0, 0.032, 0.0),
}  # fmt: skip
PARTICULAR = {("attention", "sufficiency"): 9.0, ("diffmask", "shortcut"): 0.0}
"""Where a method does not stand where it usually does."""
ROWS = 200
"""Rows that were measured; a board may show fewer of them."""
RATIOS = (0.05, 0.1, 0.2, 0.5)
METRICS = (
    MetricInfo(name="comprehensiveness", title="Comprehensiveness", higher_is_better=True,
            definition="fall of the probability without the words ranked first",
            interpretation="Erasing the words a method ranks first changes the answer much.",
            limitation="That the erased text is one the model has learned to read."),
    MetricInfo(name="sufficiency", title="Sufficiency", higher_is_better=False,
            definition="fall of the probability with only the words ranked first",
            interpretation="The words a method ranks first give the answer by themselves.",
            limitation="That no other words would give it too."),
    MetricInfo(name="flip", title="Words to flip", higher_is_better=False,
            definition="share of words to erase before the decision changes",
            interpretation="Few words must be erased before the decision changes.",
            limitation="Which of several shortest ways the model took."),
    MetricInfo(name="shortcut", title="Planted shortcut", higher_is_better=True,
            definition="share of texts in which the planted token is ranked first",
            interpretation="A token planted in the data and learned by a copy of the model is ranked first.",
            limitation="How the method fares on evidence that is spread over words."),
)  # fmt: skip
FIT = {
    layer: {
        "margin": 0.1, "hard_divergence": 0.04 + 0.013 * index, "hard_agreement": 0.99 - 0.004 * index,
        "open_share": 0.62 - 0.08 * index, "multiplier": {"value": 11.0 + index, "at_bound": False, "swing": 0.2},
        "problems": {"margin": "masks change the answer by 0.118 nats, the margin is 0.1"} if index == 6 else {},
    }
    for index, layer in enumerate(("embedding", "block0", "block1", "block2", "block3", "block4", "output"))
}  # fmt: skip


def synthetic_board(
    texts: int = 200, methods: int = 7, layers: int = 7, repeat: int = 1, seed: int = 0
) -> BenchmarkResult:
    """`repeat` joins so many sentences to one text."""
    random = Random(seed)
    names = list(NOISE)[:methods]
    per_row = {name: {metric.name: _values(name, metric, seed) for metric in METRICS} for name in names}
    per_row["random"].pop("shortcut")
    return BenchmarkResult(
        title="Which explanation of minilm on rotten-tomatoes can be believed?",
        verdict=(
            "On 200 held-out reviews integrated-gradients, leave-one-out and diffmask beat random on every "
            "measure, and erasure cannot tell them apart; diffmask alone is best at finding planted shortcuts, and "
            "explains a text 86 times faster than integrated-gradients.",
            "attention does not beat random on sufficiency. These measures erase words with [MASK], which the model "
            "has seen in pre-training only; they say what the model reacts to, not what would convince a person.",
        ),
        warnings=("Erased texts are out of distribution: with random words erased accuracy falls by 9 points.",),
        metrics=METRICS,
        methods=[_method(name, per_row[name]) for name in names],
        comparisons=_comparisons(per_row),
        curves=[_curve(name, metric) for metric in ("comprehensiveness", "sufficiency") for name in names],
        agreement={"rank correlation": _agreement(names, 1.0), "overlap of the top words": _agreement(names, 0.8)},
        texts=[_text(random, names, layers, repeat) for _ in range(texts)],
        manifest={"diffmask": "0.1.0", "python": "3.11", "model": "minilm", "rows": ROWS, "seeds": [0]},
    )  # fmt: skip


def _text(random: Random, names: Sequence[str], layers: int, repeat: int) -> BenchmarkText:
    words = [word for _ in range(repeat) for word in _sentence(random).split()]
    weights = [OPINIONS.get(word, 0.0) for word in words]
    logit = sum(weights)
    prediction = "positive" if logit > 0 else "negative"
    sign = 1 if logit > 0 else -1
    scores = {name: [sign * w + NOISE[name] * random.gauss(0, 0.25) for w in weights] for name in names}
    by_layer = {}
    if "diffmask" in names:
        gates = [_gates(random, weight, layers) for weight in weights]
        by_layer["diffmask"] = [[gate[layer] for gate in gates] for layer in range(layers)]
        scores["diffmask"] = [sum(gate) / layers for gate in gates]
    return BenchmarkText(
        words=words,
        gaps=["", *("" if word in {".", ",", "'s"} else " " for word in words[1:]), ""],
        gold=prediction if random.random() < 0.88 else ("negative" if sign > 0 else "positive"),
        prediction=prediction,
        probability=1 / (1 + math.exp(-abs(logit))),
        scores=scores,
        by_layer=by_layer,
        layers={name: ["embedding", *(f"block{i}" for i in range(layers - 2)), "output"] for name in by_layer},
    )


def _sentence(random: Random) -> str:
    return random.choice(FRAMES).format(*random.sample(list(OPINIONS), 2))


def _gates(random: Random, weight: float, layers: int) -> list[float]:
    """Words that matter are needed long; others are dropped layer by layer."""
    lasts = (abs(weight) / 2.4) * layers + random.gauss(0, 0.6) + 0.8
    return [1 / (1 + math.exp(3 * (layer - lasts))) for layer in range(layers)]


def _values(name: str, metric: MetricInfo, seed: int) -> list[float]:
    quality = 1 / (1 + PARTICULAR.get((name, metric.name), NOISE[name]))
    shared, own = Random(f"{metric.name}{seed}"), Random(f"{metric.name}{name}{seed}")
    best, worst = (0.6, 0.05) if metric.higher_is_better else (0.02, 0.25)
    mean = worst + (best - worst) * quality
    return [mean + shared.gauss(0, 0.15) + own.gauss(0, 0.08) for _ in range(ROWS)]


def _method(name: str, per_row: Mapping[str, Sequence[float]]) -> MethodResult:
    forwards, backwards, seconds, fit = COST[name]
    cost = {
        "forwards": forwards,
        "backwards": backwards,
        "seconds": seconds,
        "fit_seconds": fit,
        "peak_megabytes": 612.0,
    }
    return MethodResult(
        name=name,
        config={"name": name, "steps": 50} if name == "integrated-gradients" else {"name": name},
        estimates={metric: _estimate(values) for metric, values in per_row.items()},
        cost={**cost, "break_even": 80.0} if fit else cost,
        diagnostics=FIT if fit else {},
        is_baseline=name == "random",
    )


def _estimate(values: Sequence[float]) -> Estimate:
    low, high = t_interval(values)
    return Estimate(mean=statistics.fmean(values), low=low, high=high, rows=len(values))


def _comparisons(per_row: Mapping[str, Mapping[str, Sequence[float]]]) -> list[Comparison]:
    """Paired, by the normal approximation; Bonferroni for the number of pairs."""
    pairs = [
        (metric, first, second)
        for metric in METRICS
        for first, second in combinations(per_row, 2)
        if metric.name in per_row[first] and metric.name in per_row[second]
    ]
    return [
        _comparison(metric, first, second, per_row[first][metric.name], per_row[second][metric.name], len(pairs))
        for metric, first, second in pairs
    ]


def _comparison(
    metric: MetricInfo, first: str, second: str, ours: Sequence[float], theirs: Sequence[float], pairs: int
) -> Comparison:
    differences = [a - b for a, b in zip(ours, theirs, strict=True)]
    mean, (low, high) = statistics.fmean(differences), t_interval(differences)
    error = max((high - low) / 3.92, 1e-9)
    p_value = min(1.0, pairs * math.erfc(abs(mean) / error / math.sqrt(2)))
    better = first if (mean > 0) == (metric.higher_is_better) else second
    return Comparison(
        metric=metric.name, first=first, second=second, difference=mean, low=low, high=high, p_value=p_value,
        winner=better if p_value < 0.05 else None,
    )  # fmt: skip


def _curve(name: str, metric: str) -> Curve:
    quality = 1 / (1 + NOISE[name])
    rise = [ratio**0.4 * (0.15 + 0.7 * quality) for ratio in RATIOS]
    y = rise if metric == "comprehensiveness" else [0.45 * (1 - quality) * (1 - ratio) for ratio in RATIOS]
    return Curve(
        metric=metric, method=name, x_label="share of words", x=RATIOS, y=y,
        low=[value - 0.03 for value in y], high=[value + 0.03 for value in y],
    )  # fmt: skip


def _agreement(names: Sequence[str], most: float) -> list[list[float]]:
    def alike(first: str, second: str) -> float:
        return 1.0 if first == second else most / (1 + 0.6 * (NOISE[first] + NOISE[second]))

    return [[alike(first, second) for second in names] for first in names]
