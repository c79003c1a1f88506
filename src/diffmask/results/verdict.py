"""What may be concluded from a comparison of methods, in sentences that can be quoted. No torch here."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from diffmask.results.benchmark_result import Comparison, MethodResult, MetricInfo
from diffmask.results.comparison import FEWEST_ROWS

BASELINE = "random"


@dataclass(frozen=True, kw_only=True)
class VerdictInputs:
    """What the sentences are made of."""

    metrics: Sequence[MetricInfo]
    methods: Sequence[MethodResult]
    comparisons: Sequence[Comparison]
    texts: int

    def winner(self, metric: str, one: str, other: str) -> str | None:
        """The better of two methods by a measure; none where they cannot be told apart."""
        for found in self.comparisons:
            if found.metric == metric and {found.first, found.second} == {one, other}:
                return found.winner
        return None

    def compared(self, metric: str) -> list[MethodResult]:
        """The methods that a measure speaks of, best first."""
        sign = -1 if next(info.higher_is_better for info in self.metrics if info.name == metric) else 1
        those = [method for method in self.methods if metric in method.estimates]
        return sorted(those, key=lambda method: sign * method.estimates[metric].mean)

    def tied_with_the_best(self, metric: str) -> list[MethodResult]:
        """The best by a measure, and those that cannot be told apart from it."""
        best, *others = self.compared(metric)
        return [best, *(other for other in others if self.winner(metric, best.name, other.name) is None)]


def verdict(findings: VerdictInputs) -> list[str]:
    """Paragraphs: against chance, among each other, at what cost, and what none of it says."""
    compared = [metric for metric in findings.metrics if len(findings.compared(metric.name)) > 1]
    if findings.texts < FEWEST_ROWS:
        return [
            f"No verdict: {findings.texts} texts are too few to tell methods apart; at least {FEWEST_ROWS} are needed. "
            "The figures below are what was measured, with intervals.",
            _limits(compared),
        ]
    return [
        " ".join([_against_chance(findings, compared), *_leaders(findings, compared)]),
        *_differences(findings, compared),
        _cost(findings, compared),
        _limits(compared),
    ]


def _against_chance(findings: VerdictInputs, metrics: Sequence[MetricInfo]) -> str:
    """Which methods beat a random order, by all measures, some, or none."""
    every, some, none, worse = [], [], [], []
    others = [method for method in findings.methods if method.name != BASELINE]
    for method in others:
        asked = [metric for metric in metrics if metric.name in method.estimates]
        won = [one.title for one in asked if findings.winner(one.name, method.name, BASELINE) == method.name]
        lost = [one.title for one in asked if findings.winner(one.name, method.name, BASELINE) == BASELINE]
        if lost:
            worse.append(f"{method.name} is worse than random by {listed(lost)}")
        if asked and len(won) == len(asked):
            every.append(method.name)
        elif won:
            some.append(f"{method.name} only by {listed(won)}")
        elif not lost:
            none.append(method.name)
    said = f"On {findings.texts} texts "
    said += (
        f"{listed(every)} {plural(every, 'beats', 'beat')} a random order"
        if every
        else "no method beats a random order"
    )
    said += " by every measure" if len(metrics) > 1 else f" by {within(metrics[0].title)}" if metrics else ""
    parts = [said, *some]
    if none:
        parts.append(f"{listed(none)} cannot be told from a random order")
    return "; ".join([*parts, *worse]) + "."


def _leaders(findings: VerdictInputs, metrics: Sequence[MetricInfo]) -> Iterator[str]:
    """Who is best by each measure, as far as that can be said."""
    for metric in metrics:
        names = [
            f"{one.name} ({shown(one.estimates[metric.name].mean)})" for one in findings.tied_with_the_best(metric.name)
        ]
        if len(names) == len(findings.compared(metric.name)):
            yield f"By {within(metric.title)} no method can be told from any other."
        elif len(names) == 1:
            yield f"Best by {within(metric.title)}: {names[0]}, ahead of all others."
        else:
            yield f"Best by {within(metric.title)}: {listed(names)}, which cannot be told apart."


def _differences(findings: VerdictInputs, metrics: Sequence[MetricInfo]) -> Iterator[str]:
    """Measure by measure, the order with its ties."""
    for metric in metrics:
        names = [method.name for method in findings.compared(metric.name)]
        pairs = [found for found in findings.comparisons if found.metric == metric.name]
        ties = [f"{found.first} and {found.second}" for found in pairs if found.winner is None]
        order = ", ".join(f"{one.name} {interval(one, metric.name)}" for one in findings.compared(metric.name))
        said = f"{metric.title} ({metric.direction} is better), {names[0]} first: {order}. "
        said += f"{len(pairs) - len(ties)} of {len(pairs)} pairs differ"
        yield said + (f"; cannot be told apart: {', '.join(ties)}." if ties else ".")


def _cost(findings: VerdictInputs, metrics: Sequence[MetricInfo]) -> str:
    """What each method takes for a text, and when a fit has paid for itself."""
    parts = []
    for method in sorted(findings.methods, key=lambda method: method.cost.get("seconds", 0.0)):
        cost = method.cost
        said = f"{method.name} {seconds(cost.get('seconds', 0.0))} and {counted(cost.get('forwards', 0.0))} forward"
        if cost.get("backwards"):
            said += f", {cost['backwards']:.3g} backward"
        if cost.get("fit_seconds", 0.0) >= 1:
            said += f" after a fit of {seconds(cost['fit_seconds'])}"
            even = cost.get("break_even", float("inf"))
            said += (
                f" (cheaper than IG-50 after {even:,.0f} texts)"
                if even < float("inf")
                else " (never cheaper than IG-50)"
            )
        parts.append(said)
    return "A text takes: " + "; ".join(parts) + "."


def _limits(metrics: Sequence[MetricInfo]) -> str:
    # Two measures of one kind have the same limits, which are said once.
    titles: dict[str, list[str]] = {}
    for metric in metrics:
        titles.setdefault(metric.limitation, []).append(metric.title)
    said = [f"{listed(those)}: {limitation}" for limitation, those in titles.items()]
    return " ".join(
        [
            "What this cannot say: whether the model is right, whether a person is helped, or how methods fare on "
            "another model or other texts.",
            *said,
        ]
    )


def within(title: str) -> str:
    """A title within a sentence.

    >>> within("Mass on evidence"), within("ROAR's RACU")
    ('mass on evidence', "ROAR's RACU")
    """
    return title if title[:2].isupper() else title[:1].lower() + title[1:]


def shown(value: float) -> str:
    """A number of a table.

    >>> shown(0.4081), shown(-0.0129), shown(12.3)
    ('.408', '-.013', '12.3')
    """
    return f"{value:.3f}".replace("0.", ".", 1) if abs(value) < 1 else f"{value:.3g}"


def interval(method: MethodResult, metric: str) -> str:
    """A mean with its interval."""
    found = method.estimates[metric]
    return f"{shown(found.mean)} [{shown(found.low)}, {shown(found.high)}]"


def seconds(value: float) -> str:
    """A time for people.

    >>> seconds(0.0042), seconds(0.17), seconds(3.21), seconds(400.0)
    ('4.2 ms', '170 ms', '3.2 s', '6.7 min')
    """
    if value < 1:
        return f"{value * 1000:.2g} ms" if value < 0.01 else f"{value * 1000:.0f} ms"
    return f"{value:.2g} s" if value < 100 else f"{value / 60:.1f} min"


def counted(rows: float) -> str:
    """Rows through a model.

    >>> counted(1.0), counted(23.31)
    ('1 row', '23.3 rows')
    """
    return f"{rows:.3g} row{'' if rows == 1 else 's'}"


def listed(names: Sequence[str]) -> str:
    """Names in a sentence.

    >>> listed(["a", "b", "c"])
    'a, b and c'
    """
    return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else "".join(names)


def plural(names: Sequence[str], one: str, many: str) -> str:
    """The form of a verb."""
    return one if len(names) == 1 else many
