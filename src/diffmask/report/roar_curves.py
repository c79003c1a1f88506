"""ROAR's curves and RACU from the records of a run: plain values with bootstrap intervals over seeds. No torch here."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from diffmask.bootstrap import Spread, bootstrap
from diffmask.record import Record

VARIANTS = {
    "roar": "Not recursive",
    "recursive_roar": "Recursive",
    "roar_count": "Not recursive, by count",
    "recursive_roar_count": "Recursive, by count",
}
AREAS = ("racu", "racu_clipped", "area", "area_possible")
METRICS = frozenset(f"{variant}_{part}" for variant in VARIANTS for part in AREAS)
"""What a run's summary has of ROAR; its page shows it beside the curves."""
Panels = Mapping[str, Sequence[str]]
"""The data set and the model of each task, by its label; a task that is not there is a data set of its own."""
TITLES = {
    "attention": "Attention",
    "gradient": "Gradient",
    "input-x-gradient": "Input times gradient",
    "integrated-gradient": "Integrated gradient",
    "mutual-information": "Mutual information",
    "random": "Random",
}


Column = tuple[str, str]
"""A model and a variant."""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What ROAR found of one method on one data set and model, over seeds."""

    data: str
    model: str
    method: str
    title: str
    """The method's name for a figure; in full where two methods of the run have the same short one."""
    variant: str
    """A key of `VARIANTS`."""

    @property
    def column(self) -> Column:
        """Where it stands in the row of its data set."""
        return self.model, self.variant


@dataclass(frozen=True, kw_only=True)
class RoarCurve(Measured):
    """The score after masking more and more."""

    at: tuple[float, ...]
    points: tuple[Spread, ...]

    def point(self, at: float) -> Spread | None:
        """Its score after masking so much, where that was measured."""
        return dict(zip(self.at, self.points, strict=True)).get(at)


@dataclass(frozen=True, kw_only=True)
class RoarArea(Measured):
    """RACU and its parts."""

    racu: Spread
    seeds: tuple[float, ...]
    """Each seed's own RACU."""
    clipped: Spread
    area: Spread
    possible: Spread
    """The denominator of RACU: where it is small, RACU is not to be trusted."""


def titles_of(methods: Iterable[str]) -> dict[str, str]:
    """Names of methods for a figure, as short as tells them apart.

    >>> titles_of(["gradient (one_hot)", "erasure"])
    {'gradient (one_hot)': 'Gradient', 'erasure': 'erasure'}
    >>> titles_of(["gradient (one_hot)", "gradient"])
    {'gradient (one_hot)': 'gradient (one_hot)', 'gradient': 'gradient'}
    """
    short = {method: TITLES.get(method.partition(" ")[0], method) for method in methods}
    often = Counter(short.values())
    return {method: name if often[name] == 1 else method for method, name in short.items()}


def parted(task: str, panels: Panels) -> dict[str, str]:
    """A task as its data set and its model.

    >>> parted("babi-1 bilstm", {"babi-1 bilstm": ["babi-1", "bilstm"]}), parted("own", {})
    ({'data': 'babi-1', 'model': 'bilstm'}, {'data': 'own', 'model': ''})
    """
    data, model = panels.get(task, (task, ""))
    return {"data": data, "model": model}


def roar_curves(records: Iterable[Record], panels: Panels = MappingProxyType({})) -> list[RoarCurve]:
    """Every curve of a run."""
    found: dict[tuple[str, str, str], dict[float, list[float]]] = defaultdict(lambda: defaultdict(list))
    for record in records:
        variant = record.metric.removesuffix("_score")
        if record.at is not None and variant in VARIANTS:
            found[record.task, record.method, variant][record.at].append(record.value)
    titles = titles_of(method for _, method, _ in found)
    return [
        RoarCurve(
            **parted(task, panels),
            method=method,
            title=titles[method],
            variant=variant,
            at=tuple(sorted(values)),
            points=tuple(bootstrap(values[at]) for at in sorted(values)),
        )
        for (task, method, variant), values in found.items()
    ]


def roar_areas(records: Iterable[Record], panels: Panels = MappingProxyType({})) -> list[RoarArea]:
    """Every RACU of a run: the mean of the seeds' own."""
    found: dict[tuple[str, str, str], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for record in sorted(records, key=lambda record: record.seed):
        for variant in VARIANTS:
            part = record.metric.removeprefix(f"{variant}_")
            if record.metric != part and part in AREAS:
                found[record.task, record.method, variant][part].append(record.value)
    titles = titles_of(method for _, method, _ in found)
    return [
        RoarArea(
            **parted(task, panels),
            method=method,
            title=titles[method],
            variant=variant,
            racu=bootstrap(values["racu"]),
            seeds=tuple(values["racu"]),
            clipped=bootstrap(values["racu_clipped"]),
            area=bootstrap(values["area"]),
            possible=bootstrap(values["area_possible"]),
        )
        for (task, method, variant), values in found.items()
    ]


def percent(spread: Spread) -> str:
    """A mean with its interval in LaTeX: how far up and how far down.

    >>> percent(Spread(0.665, 0.573, 0.757))
    '$66.5^{+9.2}_{-9.2}$'
    """
    up, down = 100 * (spread.high - spread.mean), 100 * (spread.mean - spread.low)
    return f"${100 * spread.mean:.1f}^{{+{up:.1f}}}_{{-{down:.1f}}}$"


def columns_of(found: Sequence[Measured]) -> dict[Column, str]:
    """Each model in each variant that there is, with a heading: the model is named where there are several."""
    models = list(dict.fromkeys(one.model for one in found))
    there = {one.column for one in found}
    pairs = [(model, variant) for model in models for variant in VARIANTS if (model, variant) in there]
    return {
        (model, variant): f"{model}: {VARIANTS[variant]}" if len(models) > 1 else VARIANTS[variant]
        for model, variant in pairs
    }


def racu_table(areas: Sequence[RoarArea]) -> str:
    """The published LaTeX table: RACU in percent, a line a data set and method, a column a model and variant."""
    columns = columns_of(areas)
    cells = {(area.data, area.method, area.column): percent(area.racu) for area in areas}
    lines = {(area.data, area.method): area.title for area in areas}
    body = [
        [data, title, *(cells.get((data, method, column), "--") for column in columns)]
        for (data, method), title in lines.items()
    ]
    return table(["Data set", "Importance measure", *columns.values()], body)


def performance_table(records: Iterable[Record], panels: Panels = MappingProxyType({})) -> str:
    """The score of each model, of one trained on masks alone, and the number of test rows."""
    scores: dict[str, list[float]] = defaultdict(list)
    masked: dict[str, list[float]] = defaultdict(list)
    rows: dict[str, int] = {}
    for record in records:
        if record.metric == "quality" and record.method == "model":
            scores[record.task].append(record.value)
            rows[record.task] = record.rows
        elif record.at == 100 and record.method == "random" and record.metric in ("roar_score", "recursive_roar_score"):
            masked[record.task].append(record.value)
    body = [
        [
            *parted(task, panels).values(),
            str(rows[task]),
            percent(bootstrap(values)),
            percent(bootstrap(masked[task])) if task in masked else "--",
        ]
        for task, values in scores.items()
    ]
    return table(["Data set", "Model", "Test rows", "Score", "All masked"], body)


def table(headings: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    """A table of LaTeX's booktabs."""
    lines = [
        " & ".join(cell.replace("%", r"\%").replace("_", r"\_") if "$" not in cell else cell for cell in row)
        for row in (headings, *body)
    ]
    head, *rest = (f"{line} \\\\" for line in lines)
    columns = "l" * 2 + "r" * (len(headings) - 2)
    return "\n".join(
        [
            f"\\begin{{tabular}}{{{columns}}}",
            "\\toprule",
            head,
            "\\midrule",
            *rest,
            "\\bottomrule",
            "\\end{tabular}",
            "",
        ]
    )
