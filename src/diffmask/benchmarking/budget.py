"""Methods at an equal price: each is given as many steps or samples as so many rows through the model pay for."""

from collections.abc import Iterator
from dataclasses import replace

from diffmask.bench import Bench
from diffmask.benchmarking.plan import Plan
from diffmask.benchmarking.rehearsal import Calls, changed, rehearsal
from diffmask.errors import DiffMaskError
from diffmask.explainer import Method
from diffmask.task import Task
from diffmask.verdict import BASELINE

KNOBS = ("n_steps", "n_samples", "samples", "most_steps", "steps")
"""Options that say how much a method spends, in the order in which they are looked for."""
PROBED = (8, 16)
"""Values of a knob between which the price is taken to be a line."""
SLACK = 1.1
"""A method without a knob may cost a tenth more than the budget."""


def within_budget(plan: Plan, task: Task) -> tuple[Plan, list[str]]:
    """The plan with every method at its budget, and what to say of those that cannot be; a random order stays."""
    if plan.budget is None:
        return plan, []
    kept, said = [], []
    with rehearsal(task, plan.split, plan.seeds[0]) as small:
        for method in plan.methods:
            found = method if method.name == BASELINE else affordable(method, small, plan)
            if found is None:
                said.append(f"{method.label} is left out: a text costs it more than {plan.budget:g} rows")
            else:
                kept.append(found)
    return replace(plan, methods=tuple(kept)), said


def affordable(method: Method, bench: Bench, plan: Plan) -> Method | None:
    """The method with its knob where the budget is spent; as it is where it has none; None if it costs more."""
    budget = plan.budget or 0.0
    try:
        knob = next(iter(knobs(method)), None)
        if knob is None:
            return method if calls(method, bench, plan) <= SLACK * budget else None
        low, high = (calls(changed(method, knob, value), bench, plan) for value in PROBED)
    except DiffMaskError:
        return method  # what it cannot do is said when it is asked to do it
    each = (high - low) / (PROBED[1] - PROBED[0])
    if each <= 0:
        return method if low <= SLACK * budget else None
    value = int(PROBED[0] + (budget - low) / each)
    return changed(method, knob, value) if value >= 1 else None


def knobs(method: Method) -> Iterator[str]:
    """The options of a method that say how much it spends."""
    choices = method.to_dict()
    return (name for name in KNOBS if isinstance(choices.get(name), int))


def calls(method: Method, bench: Bench, plan: Plan) -> float:
    """Rows through the model for a text, the fit shared by all texts of the plan."""
    return Calls.of(bench.explained(method, plan.split)).a_text(plan.texts)
