"""What a benchmark will take, told before it starts; what is in the store takes nothing."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product

from diffmask.bench import Bench
from diffmask.benchmarking.plan import Plan, short_names
from diffmask.benchmarking.rehearsal import fit_seconds, rehearsal, shortened, timed, training_seconds
from diffmask.errors import DiffMaskError
from diffmask.evaluation import Evaluation
from diffmask.explainer import Method
from diffmask.graph import FitNode, MeasureNode
from diffmask.part import Part
from diffmask.parts import part_digest
from diffmask.training import track
from diffmask.verdict import listed, seconds


@dataclass(frozen=True)
class Forecast:
    """Seconds of every method, and of every evaluation before it asks the first; and what is not in them."""

    by_part: dict[str, float]
    unknown: tuple[str, ...]
    """Evaluations whose work does not grow with the texts: a few texts do not tell what they take."""
    trainings: int = 0
    """Models that are trained for it."""

    @property
    def seconds(self) -> float:
        """In all."""
        return sum(self.by_part.values())

    def __str__(self) -> str:
        if not any(self.by_part.values()) and not self.unknown:
            return "forecast: everything is there already"
        dearest = sorted(self.by_part, key=lambda name: -self.by_part[name])[:3]
        parts = ", ".join(f"{name} {seconds(self.by_part[name])}" for name in dearest if self.by_part[name])
        models = f" for {self.trainings} trainings and the rest" if self.trainings else ""
        said = f"forecast: about {seconds(self.seconds)}{models} ({parts})"
        return said + (f", and what {listed(self.unknown)} will take" if self.unknown else "")


def forecast(plan: Plan, benches: Sequence[Bench]) -> Forecast:
    """Measured on a few texts, method by method and evaluation by evaluation."""
    parts = _missing_parts(plan, benches)
    todo = {
        name: _Missing(plan, method, benches)
        for name, method in zip(short_names(plan.methods), plan.methods, strict=True)
    }
    found = dict.fromkeys(todo, 0.0)
    if not parts and not any(missing.anything for missing in todo.values()):
        return Forecast(found, ())
    with rehearsal(benches[0].task(), plan.split, benches[0].seed) as small:
        for evaluation in plan.evaluations:
            if evaluation.beside(small) and any(missing.measurements.get(evaluation) for missing in todo.values()):
                found[evaluation.name] = found.get(evaluation.name, 0.0) + _preparation(evaluation, benches, small)
        for name, missing in track(todo.items(), "rehearse on a few texts"):
            if missing.anything:
                found[name] = missing.seconds(small)
        made = _making(parts, plan.split, benches[0], small)
    unknown = tuple(
        evaluation.name
        for evaluation in plan.evaluations
        if not evaluation.per_text and not evaluation.parts(plan.methods[0], benches[0])
    )
    trainings = sum(part.trains for name in made for part in parts[name])
    return Forecast({**found, **made}, unknown, trainings)


def _missing_parts(plan: Plan, benches: Sequence[Bench]) -> dict[str, list[Part]]:
    """By evaluation, what is still to be made for it; what two of them share stands with the first."""
    seen: set[tuple[str, str]] = set()
    found: dict[str, list[Part]] = {}
    for evaluation, bench, method in product(plan.evaluations, benches, plan.methods):
        for part in evaluation.parts(method, bench):
            address = part.address
            if address not in seen and not bench.store.has(*address):
                found.setdefault(evaluation.name, []).append(part)
            seen.add(address)
    return found


def _making(parts: Mapping[str, Sequence[Part]], split: str, bench: Bench, small: Bench) -> dict[str, float]:
    """What trainings and explanations of every row will take, by evaluation; nothing where none can be trained."""
    task = bench.task()
    rows = sum(len(batch) for batch in task.data.values())
    few = len(small.task().data[split])

    @cache
    def explaining(method: Method) -> float:
        try:
            each = small.explained(shortened(method), split).cost.seconds / few
            return rows * each + fit_seconds(method, small)
        except DiffMaskError:
            return 0.0

    try:
        training = training_seconds(task, bench.seed) if parts else 0.0
    except DiffMaskError:
        return {}
    return {
        name: training * sum(part.trains for part in made)
        + sum(explaining(part.explained_by) for part in made if part.explained_by)
        for name, made in parts.items()
    }


def _preparation(evaluation: Evaluation, benches: Sequence[Bench], small: Bench) -> float:
    """What an evaluation's own tasks will take to train, told from short trainings; nothing where none can be made."""
    short, longer = evaluation.rehearsed()
    spent = 0.0
    for place, rehearsed in enumerate(short.beside(small)):
        try:
            each = longer * timed(rehearsed.task)
        except DiffMaskError:
            continue
        beside = [evaluation.beside(bench)[place] for bench in benches]
        spent += each * sum(not bench.store.has("task", bench.task_digest()) for bench in beside)
    return spent


class _Missing:
    """What is not yet there of one method."""

    def __init__(self, plan: Plan, method: Method, benches: Sequence[Bench]) -> None:
        self.plan, self.method = plan, method
        self.texts = len(benches[0].task().data[plan.split])
        self.explanations = sum(self._unexplained(bench) for bench in benches)
        self.fitted = [bench for bench in benches if FitNode(bench, method).is_done()]
        self.fits = sum(bench not in self.fitted and self._unexplained(bench) > 0 for bench in benches)
        # By evaluation, the benches on which it is still to be made.
        self.measurements = {
            evaluation: [bench for bench in benches if not MeasureNode(bench, method, evaluation).is_done()]
            for evaluation in plan.evaluations
            if evaluation.per_text
        }

    @property
    def anything(self) -> bool:
        """Whether anything is missing."""
        return bool(self.explanations or any(self.measurements.values()))

    def _unexplained(self, bench: Bench) -> float:
        """The share of the texts that is not explained yet."""
        digest = bench.explain_digest(self.method, self.plan.split)
        if bench.store.has("explain", digest):
            return 0.0
        rows = bench.part_rows or self.texts
        parts = -(-self.texts // rows)
        done = sum(bench.store.has("part", part_digest(digest, number, rows)) for number in range(parts))
        return 1 - done / parts

    def seconds(self, small: Bench) -> float:
        """What the rest will take; nothing for a method that cannot do it."""
        try:
            spent = self.fits * fit_seconds(self.method, small) if self.fits else 0.0
            each = small.explained(self._rehearsed(small), self.plan.split).cost.seconds / self._few(small)
            spent += self.explanations * self.texts * each
            return spent + sum(
                self._measuring(evaluation, benches, small)
                for evaluation, benches in self.measurements.items()
                if benches
            )
        except DiffMaskError:
            return 0.0

    def _measuring(self, evaluation: Evaluation, benches: Sequence[Bench], small: Bench) -> float:
        """What one evaluation will take, over tasks that are trained already."""
        short, _ = evaluation.rehearsed()
        spent = 0.0
        for place, rehearsed in enumerate(short.beside(small)):
            beside = [evaluation.beside(bench)[place] for bench in benches]
            fits = sum(not FitNode(bench, self.method).is_done() for bench in beside)
            # Asked for even where every fit is there: what is timed below then finds a short one made.
            spent += fits * fit_seconds(self.method, rehearsed)
        a_few = timed(lambda: _measure(short, self._rehearsed(small), small))
        return spent + len(benches) * a_few * self.texts / self._few(small)

    def _rehearsed(self, small: Bench) -> Method:
        """The method with a short fit; as it is where there is a fit to borrow and no evaluation wants others."""
        if not self.fitted or any(evaluation.beside(small) for evaluation in self.plan.evaluations):
            return shortened(self.method)
        small.borrow(self.method, self.fitted[0].explainer(self.method))
        return self.method

    def _few(self, small: Bench) -> int:
        return len(small.task().data[self.plan.split])


def _measure(evaluation: Evaluation, method: Method, bench: Bench) -> None:
    for _ in evaluation.run(method, bench):
        pass
