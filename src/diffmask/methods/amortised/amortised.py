"""Scores learned once, then one forward pass a text: an amortised explainer. Jethani et al. 2022 (FastSHAP)."""

import math
import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from jaxtyping import Bool, Shaped
from torch import Tensor, nn
from torch.distributions import Distribution

from diffmask.core.batch import Attribution, Batch
from diffmask.core.config import parse
from diffmask.core.distributions import flat_logits, log_odds_gradient, predicted_outcome
from diffmask.core.explainer import Explainer, Method
from diffmask.core.probe import Baseline, baseline_state, site_statistics
from diffmask.core.task import Task
from diffmask.core.training import generator, infinite_minibatches, seeded
from diffmask.errors import ConfigError, FitWarning
from diffmask.methods.amortised.diagnostics import additivity, interaction_only
from diffmask.methods.amortised.network import AttributionNetwork, ood_score
from diffmask.methods.amortised.objectives import AdditiveObjective, DistillationObjective, TeacherEnsemble, kept_scores
from diffmask.methods.amortised.refine import RefinedExplainer
from diffmask.methods.amortised.training import Budget, Fit, Lesson, Objective, Schedule, parse_budget

if TYPE_CHECKING:
    from diffmask.metrics.amortised_report import Report


@dataclass(frozen=True, kw_only=True)
class Amortised(Method):
    """f(kept tokens) = f(none) + sum of the kept tokens' scores, f the answer's logits, over random sets of tokens."""

    name: ClassVar[str] = "amortised"

    teacher: Any = None
    """What to imitate: a method's name, a method with its options, or several, whose mean is taken; None: the model.

    `greedy` is a search for the order best for sufficiency and comprehensiveness."""
    budget: str | None = None
    """What the fit may cost: '3000 texts', or time as '5min'; only texts give the same explainer twice.

    Where none is given, 4000 texts, or 1500 with a teacher."""
    sites: tuple[str, ...] = ()
    """The sites that the student reads; the first, two in the middle and the last where none is named."""
    width: int = 256
    """Units of the student's hidden layers."""
    baseline: Baseline = "auto"
    """What a masked token's embedding is replaced by."""
    pairs: int = 4
    """Masks drawn a text, each asked with its complement."""
    pointed: int = 0
    """How many of them keep what the student itself scores high, so far."""
    batch_size: int = 16
    updates: int | None = None
    """Steps of the optimiser for each batch of texts; 6 where none is given, 12 with a teacher."""
    replay: int = 150_000
    """Tokens whose states are kept to be learned from again, in half precision; the oldest go first."""
    learning_rate: float = 1e-3
    held_out: int = 128
    """Texts that decide when to stop, from the validation rows."""
    patience: int = 4
    """Looks at the held-out texts without gain after which the fit stops."""
    statistics_rows: int = 512
    """Training rows that the sites' means and deviations are taken from."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "teacher", _plain_teacher(self.teacher))
        parse_budget(self.budget or "1 text")
        counts = (self.width, self.pairs, self.batch_size, self.replay, self.held_out, self.patience)
        if min(*counts, self.updates or 1) < 1 or not 0 <= self.pointed < self.pairs:
            raise ConfigError("amortised: sizes and counts are at least 1, and fewer masks are pointed than drawn")

    def teachers(self) -> list[Method]:
        """The methods to imitate."""
        listed = self.teacher if isinstance(self.teacher, list) else [] if self.teacher is None else [self.teacher]
        return [parse("method", node, "amortised: teacher") for node in listed]

    def build(self, task: Task, seed: int) -> "AmortisedExplainer":
        """A student that scores every token 0."""
        sites = self.sites or middle_sites(task.sites)
        for site in sites:
            task.site(site)
        known = site_statistics(task, sites, self.statistics_rows)
        with torch.no_grad():
            features = flat_logits(task.predict(task.data["train"][:1].trim())).shape[1]
        with seeded(seed, "amortised"):
            student = AttributionNetwork({site: known[site] for site in sites}, features, self.width)
        return AmortisedExplainer(task, student, baseline_state(task, task.sites[0], self.baseline))

    def train(self, explainer: "AmortisedExplainer", task: Task, seed: int) -> None:
        """Ask, learn, look, until the budget is spent; then say what was learned."""
        start, source = time.perf_counter(), generator(seed, "amortised")
        rows, held_out = split_off(task, self.held_out)
        adding_up = AdditiveObjective(task, explainer.student, explainer.baseline, self.pairs, self.pointed, source)
        copies = ask_all(adding_up, held_out, self.batch_size)
        if self.teacher is None:
            fit: Fit[AttributionNetwork, Any] = Fit(
                explainer.student, adding_up, self._schedule(), copies, source, start
            )
            fit.run(infinite_minibatches(rows, self.batch_size, source, pool=16))
        else:
            course = DistillationObjective(
                task, explainer.student.sites, TeacherEnsemble(self.teachers(), task, kept_scores())
            )
            taught = ask_all(course, held_out, self.batch_size)
            fit = Fit(explainer.student, course, self._schedule(), taught, source, start)
            # The same texts in the same batches for every seed: a teacher is asked once.
            fit.run(infinite_minibatches(rows, self.batch_size, generator(0, "teacher"), pool=16))
        strange = [ood_score(explainer.student, *lesson.reading.full()) for lesson in copies]
        explainer.ood_threshold.copy_(torch.cat(strange).quantile(0.99))
        adds_up = additivity(explainer.student, copies)
        found = {**fit.findings(), **(adds_up if self.teacher is None else interaction_only(adds_up))}
        explainer.diagnostics = {"student": found}
        for name, text in found["problems"].items():
            warnings.warn(f"{self.label}: {name}: {text}", FitWarning, stacklevel=4)

    @property
    def effort(self) -> int | None:
        """Batches of texts that it asks about; None where its budget is time."""
        texts = self._budget().texts
        return math.ceil(texts / self.batch_size) if math.isfinite(texts) else None

    def with_effort(self, steps: int) -> "Amortised":
        """The same with another budget."""
        return replace(self, budget=f"{steps * self.batch_size} texts")

    def _budget(self) -> Budget:
        return parse_budget(self.budget or ("4000 texts" if self.teacher is None else "1500 texts"))

    def _schedule(self) -> Schedule:
        return Schedule(
            budget=self._budget(),
            updates=self.updates or (6 if self.teacher is None else 12),
            replay=self.replay,
            learning_rate=self.learning_rate,
            patience=self.patience,
        )


def ask_all(course: Objective[Any, Lesson], rows: Batch, size: int) -> list[Lesson]:
    """Lessons from all rows, in order of length."""
    order = rows.present.sum(dim=1).argsort(stable=True)
    return [course.ask(rows[some].trim()) for some in order.split(size)]


def _plain_teacher(teacher: Any) -> Any:
    """A name, a mapping, or a list of these."""
    if isinstance(teacher, Method):
        return teacher.to_dict()
    return [_plain_teacher(one) for one in teacher] if isinstance(teacher, list | tuple) else teacher


def split_off(task: Task, count: int) -> tuple[Batch, Batch]:
    """Rows to learn from and rows held out: validation rows or, where there are none, the last training rows."""
    rows = task.data["train"]
    if "valid" in task.data:
        return rows, task.data["valid"][:count]
    count = min(count, len(rows) // 2)
    return rows[: len(rows) - count], rows[len(rows) - count :]


def middle_sites(sites: tuple[str, ...]) -> tuple[str, ...]:
    """The first site, two in between, the last.

    >>> middle_sites(("embedding", "1", "2", "3", "4", "5", "6", "output"))
    ('embedding', '2', '4', 'output')
    """
    last = len(sites) - 1
    return tuple(sites[place] for place in sorted({0, last // 3, (2 * last) // 3, last}))


class AmortisedExplainer(Explainer):
    """One clean pass, and the student's word on its states."""

    ood_threshold: Tensor

    def __init__(self, task: Task, student: AttributionNetwork, baseline: Tensor) -> None:
        super().__init__(task)
        self.student = student
        self.baseline = nn.Parameter(baseline, requires_grad=False)
        self.register_buffer("ood_threshold", baseline.new_tensor(torch.inf))

    def forward(self, batch: Batch, target: Any = None, *, rows_at_once: int = 256) -> Attribution:
        """As every explainer; the model's own answer comes with the pass that explains it."""
        if target is None:
            return self.explain_with_answer(batch, rows_at_once=rows_at_once)[1]
        return super().forward(batch, target, rows_at_once=rows_at_once)

    @torch.no_grad()
    def explain(self, batch: Batch, target: Shaped[Tensor, "row *event"]) -> Attribution:
        """Scores for an outcome, signed."""
        return self._read(batch, target)[1]

    @torch.no_grad()
    def answer(self, batch: Batch) -> tuple[Distribution, Attribution]:
        """One pass serves both."""
        return self._read(batch, None)

    def report(
        self,
        batch: Batch | None = None,
        rows: int = 100,
        *,
        strangers: Batch | None = None,
        planted: bool | Mapping[str, Any] = True,
    ) -> "Report":
        """This explainer beside its teachers and two standard methods, on test texts or on others.

        Strangers are texts unlike those of the fit; where none are given, the same texts with their words in random
        order. A planted shortcut, with choices of `planted-shortcut` where they are given, takes a copy of the model
        that learns it and a fit of everybody to that copy; both are kept for the next report.
        """
        from diffmask.metrics.amortised_report import report_on

        return report_on(self, batch, rows, strangers, planted)

    def refined(self, copies: int = 64) -> RefinedExplainer:
        """An explainer that asks about so many masked copies of each text and starts from these scores."""
        return RefinedExplainer(self, copies)

    @torch.no_grad()
    def unlike(self, batch: Batch, rows_at_once: int = 256) -> Bool[Tensor, " row"]:
        """Whether each text lies farther from the fit's texts than all but one in a hundred held-out texts."""
        order = batch.present.sum(dim=1).argsort(stable=True)
        parts = [
            ood_score(self.student, self.task.trace(batch[rows].trim())[1], batch[rows].trim().present)
            for rows in order.split(rows_at_once)
        ]
        return (torch.cat(parts) > self.ood_threshold)[order.argsort()]

    def _read(self, batch: Batch, target: Shaped[Tensor, "row *event"] | None) -> tuple[Distribution, Attribution]:
        answer, states = self.task.trace(batch)
        found = self.student(states, batch.present).masked_fill(~batch.maskable[..., None], 0.0)
        empty = flat_logits(answer) - found.sum(dim=1)
        towards = log_odds_gradient(answer, empty, predicted_outcome(answer) if target is None else target)
        return answer, Attribution((found @ towards[..., None]).squeeze(-1))
