"""ROAR's curves and RACU from the records of a run: plain values with bootstrap intervals over seeds. No torch here."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from diffmask.bootstrap import Spread, bootstrap
from diffmask.record import Record

VARIANTS = {"roar": "Not recursive", "recursive_roar": "Recursive"}
TITLES = {
    "attention": "Attention",
    "gradient": "Gradient",
    "input-x-gradient": "Input times gradient",
    "integrated-gradient": "Integrated gradient",
    "mutual-information": "Mutual information",
    "random": "Random",
}


@dataclass(frozen=True, kw_only=True)
class RoarCurve:
    """The score of one method on one task after masking more and more, over seeds."""

    task: str
    method: str
    variant: str
    """`roar` or `recursive_roar`."""
    at: tuple[float, ...]
    points: tuple[Spread, ...]


@dataclass(frozen=True, kw_only=True)
class RoarArea:
    """The RACU of one method on one task, over seeds."""

    task: str
    method: str
    variant: str
    racu: Spread
    clipped: Spread
    area: Spread
    possible: Spread
    """The denominator of RACU: where it is small, RACU is not to be trusted."""


def title(method: str) -> str:
    """A method's name for a figure.

    >>> title("gradient (one_hot, quantity=logit)"), title("erasure")
    ('Gradient', 'erasure')
    """
    return TITLES.get(method.partition(" ")[0], method)


def roar_curves(records: Iterable[Record]) -> list[RoarCurve]:
    """Every curve of a run."""
    found: dict[tuple[str, str, str], dict[float, list[float]]] = defaultdict(lambda: defaultdict(list))
    for record in records:
        variant = record.metric.removesuffix("_score")
        if record.at is not None and variant in VARIANTS:
            found[record.task, record.method, variant][record.at].append(record.value)
    return [
        RoarCurve(
            task=task,
            method=method,
            variant=variant,
            at=tuple(sorted(values)),
            points=tuple(bootstrap(values[at]) for at in sorted(values)),
        )
        for (task, method, variant), values in found.items()
    ]


def roar_areas(records: Iterable[Record]) -> list[RoarArea]:
    """Every RACU of a run: the mean of the seeds' own."""
    found: dict[tuple[str, str, str], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for record in records:
        for variant in VARIANTS:
            part = record.metric.removeprefix(f"{variant}_")
            if record.metric != part and part in ("racu", "racu_clipped", "area", "area_possible"):
                found[record.task, record.method, variant][part].append(record.value)
    return [
        RoarArea(
            task=task,
            method=method,
            variant=variant,
            racu=bootstrap(values["racu"]),
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


def racu_table(areas: Sequence[RoarArea]) -> str:
    """The published LaTeX table: RACU in percent, a line a task and method, a column a variant."""
    variants = [variant for variant in VARIANTS if any(area.variant == variant for area in areas)]
    cells = {(area.task, area.method, area.variant): percent(area.racu) for area in areas}
    lines = dict.fromkeys((area.task, area.method) for area in areas)
    body = [
        [task, title(method), *(cells.get((task, method, variant), "--") for variant in variants)]
        for task, method in lines
    ]
    return table(["Data set", "Importance measure", *(VARIANTS[variant] for variant in variants)], body)


def performance_table(records: Iterable[Record], curves: Sequence[RoarCurve]) -> str:
    """The score of each task's model, of the model trained on masks alone, and the number of test rows."""
    scores: dict[str, list[float]] = defaultdict(list)
    rows: dict[str, int] = {}
    for record in records:
        if record.metric == "quality" and record.method == "model":
            scores[record.task].append(record.value)
            rows[record.task] = record.rows
    masked = {curve.task: curve.points[-1] for curve in curves if curve.at[-1] == 100}
    body = [
        [task, str(rows[task]), percent(bootstrap(values)), percent(masked[task]) if task in masked else "--"]
        for task, values in scores.items()
    ]
    return table(["Data set", "Test rows", "Score", "All masked"], body)


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
