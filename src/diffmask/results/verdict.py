"""The verdict of a benchmark: sentences that state which conclusions the comparisons allow. No torch here."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from diffmask.results.benchmark_result import Comparison, MethodResult, MetricInfo
from diffmask.results.comparison import MIN_ROWS
from diffmask.results.formatting import (
    format_count,
    format_duration,
    format_estimate,
    format_number,
    join_names,
    lowercase_title,
)


@dataclass(frozen=True, kw_only=True)
class VerdictInputs:
    """Results that the verdict is based on."""

    metrics: Sequence[MetricInfo]
    methods: Sequence[MethodResult]
    comparisons: Sequence[Comparison]
    texts: int
    baseline: str
    """Name of the method with random scores."""
    masking_excess_loss: float | None = None
    """Largest log-loss of the model on masked texts minus the entropy of the labels, in nats, if it was measured."""

    def winner(self, metric: str, first: str, second: str) -> str | None:
        """Return the significantly better of two methods by a metric, or None."""
        for comparison in self.comparisons:
            if comparison.metric == metric and {comparison.first, comparison.second} == {first, second}:
                return comparison.winner
        return None

    def ranked(self, metric: str) -> list[MethodResult]:
        """Return the methods that have the metric, best mean first."""
        sign = -1 if next(info.higher_is_better for info in self.metrics if info.name == metric) else 1
        measured = [method for method in self.methods if metric in method.estimates]
        return sorted(measured, key=lambda method: sign * method.estimates[metric].mean)

    def beats_random(self, metric: str, method: str) -> bool:
        """Return whether a method is significantly better than the random baseline by a metric."""
        return method != self.baseline and self.winner(metric, method, self.baseline) == method

    def leaders(self, metric: str) -> list[MethodResult]:
        """Return the best method that beats the random baseline, and those that also do and do not differ from it."""
        candidates = [method for method in self.ranked(metric) if self.beats_random(metric, method.name)]
        if not candidates:
            return []
        best, *others = candidates
        return [best, *(other for other in others if self.winner(metric, best.name, other.name) is None)]


def verdict(inputs: VerdictInputs) -> list[str]:
    """Write the paragraphs: against the random baseline, between methods, cost, and limits.

    The first paragraph can be quoted alone: it defines every metric that it names.
    """
    compared = [metric for metric in inputs.metrics if len(inputs.ranked(metric.name)) > 1]
    if inputs.texts < MIN_ROWS:
        return [
            f"No verdict: {inputs.texts} texts are too few to compare methods; at least {MIN_ROWS} are needed. "
            "The table shows the measured values with their confidence intervals.",
            _describe_limits(inputs, compared),
        ]
    summary = [*map(_define, compared), _compare_with_random(inputs, compared), *_name_leaders(inputs, compared)]
    return [
        " ".join(summary),
        *_describe_differences(inputs, compared),
        _describe_cost(inputs),
        _describe_limits(inputs, compared),
    ]


def _define(metric: MetricInfo) -> str:
    """Define a metric in one sentence."""
    return f"{metric.title} is the {metric.definition} ({metric.direction} is better)."


def _compare_with_random(inputs: VerdictInputs, metrics: Sequence[MetricInfo]) -> str:
    """State which methods beat the random baseline by all metrics, by some, or by none."""
    by_all, by_some, by_none, worse = [], [], [], []
    for method in inputs.methods:
        if method.name == inputs.baseline:
            continue
        measured = [metric for metric in metrics if metric.name in method.estimates]
        won = [metric.title for metric in measured if inputs.beats_random(metric.name, method.name)]
        lost = [
            metric.title
            for metric in measured
            if inputs.winner(metric.name, method.name, inputs.baseline) == inputs.baseline
        ]
        if lost:
            worse.append(f"{method.name} is worse than the random baseline by {_join_titles(lost)}.")
        if measured and len(won) == len(measured):
            by_all.append(method.name)
        elif won:
            by_some.append(f"{method.name} beats it only by {_join_titles(won)}.")
        elif not lost:
            by_none.append(method.name)
    scope = "by every metric" if len(metrics) > 1 else f"by {_join_titles([metric.title for metric in metrics])}"
    sentences = [f"On {inputs.texts} texts {_subject(by_all)} the random baseline {scope}."]
    if by_none:
        sentences.append(f"{join_names(by_none)} {'was' if len(by_none) == 1 else 'were'} not shown to beat it.")
    return " ".join([*sentences, *by_some, *worse])


def _subject(names: Sequence[str]) -> str:
    if not names:
        return "no method beats"
    return f"{join_names(names)} {'beats' if len(names) == 1 else 'beat'}"


def _join_titles(titles: Sequence[str]) -> str:
    return join_names([lowercase_title(title) for title in titles])


def _name_leaders(inputs: VerdictInputs, metrics: Sequence[MetricInfo]) -> Iterator[str]:
    """Name the best methods by each metric. A method that was not shown to beat the random baseline is never named."""
    for metric in metrics:
        title = lowercase_title(metric.title)
        names = [
            f"{method.name} ({format_number(method.estimates[metric.name].mean)})"
            for method in inputs.leaders(metric.name)
        ]
        if not names:
            yield f"By {title} no method is best, because none was shown to beat the random baseline."
            continue
        tie = ", without a significant difference between them" if len(names) > 1 else ""
        yield f"Best by {title}: {join_names(names)}{tie}." + _mention_unproven(inputs, metric.name)


def _mention_unproven(inputs: VerdictInputs, metric: str) -> str:
    """Name the methods that do not differ from the best one but were not shown to beat the random baseline."""
    best = inputs.leaders(metric)[0].name
    names = [
        method.name
        for method in inputs.ranked(metric)
        if not inputs.beats_random(metric, method.name)
        and method.name != inputs.baseline
        and inputs.winner(metric, best, method.name) is None
    ]
    if not names:
        return ""
    verb = "does" if len(names) == 1 else "do"
    return f" {join_names(names)} {verb} not differ significantly from {best}, but also not from the random baseline."


def _describe_differences(inputs: VerdictInputs, metrics: Sequence[MetricInfo]) -> Iterator[str]:
    """List the methods by each metric, best mean first, and the pairs that do not differ significantly."""
    for metric in metrics:
        pairs = [comparison for comparison in inputs.comparisons if comparison.metric == metric.name]
        ties = [f"{pair.first} and {pair.second}" for pair in pairs if pair.winner is None]
        values = ", ".join(_describe_method(method, metric.name) for method in inputs.ranked(metric.name))
        text = (
            f"{metric.title} ({metric.direction} is better), mean and 95 % confidence interval, best first: {values}. "
        )
        text += f"{len(pairs) - len(ties)} of {len(pairs)} pairs differ significantly."
        yield text + (f" No significant difference: {', '.join(ties)}." if ties else "")


def _describe_method(method: MethodResult, metric: str) -> str:
    estimate = method.estimates[metric]
    return f"{method.name} {format_estimate(estimate.mean, estimate.low, estimate.high)}"


def _describe_cost(inputs: VerdictInputs) -> str:
    """State the cost of each method per text, and after how many texts a fit pays off."""
    methods = sorted(inputs.methods, key=lambda method: method.cost.get("seconds", 0.0))
    return "Cost per text: " + "; ".join(map(_describe_method_cost, methods)) + "."


def _describe_method_cost(method: MethodResult) -> str:
    cost = method.cost
    text = f"{method.name} {format_duration(cost.get('seconds', 0.0))}, {_passes(cost.get('forwards', 0.0), 'forward')}"
    if cost.get("backwards"):
        text += f", {_passes(cost['backwards'], 'backward')}"
    if cost.get("fit_seconds", 0.0) < 1:
        return text
    break_even = cost.get("break_even", float("inf"))
    pays_off = f"after {break_even:,.0f} texts" if break_even < float("inf") else "for no number of texts"
    return (
        f"{text}, after a fit of {format_duration(cost['fit_seconds'])} "
        f"(cheaper than integrated gradients with 50 steps {pays_off})"
    )


def _passes(count: float, direction: str) -> str:
    return f"{format_count(count)} {direction} {'pass' if count == 1 else 'passes'}"


def _describe_limits(inputs: VerdictInputs, metrics: Sequence[MetricInfo]) -> str:
    # Metrics with the same limits are listed together.
    titles: dict[str, list[str]] = {}
    for metric in metrics:
        titles.setdefault(metric.limitation, []).append(metric.title)
    return " ".join(
        [
            "Limits: these results do not show whether the model is right, whether the explanations help people, or "
            "how the methods compare on another model or on other texts.",
            *(f"{join_names(group)}: {limitation}" for limitation, group in titles.items()),
            *_describe_masking(inputs.masking_excess_loss),
        ]
    )


def _describe_masking(excess_loss: float | None) -> Iterator[str]:
    if excess_loss is not None:
        relation = "above" if excess_loss > 0 else "below"
        yield (
            "Check of masked texts: with random words erased, the log-loss of the model is at most "
            f"{format_number(abs(excess_loss))} nats {relation} that of predicting the label frequencies. The higher "
            "it is above, the further masked texts are out of distribution."
        )
