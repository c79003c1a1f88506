"""What a method takes for a text, and after how many texts a fit is cheaper than integrated gradients of 50 steps."""

import math
from collections.abc import Sequence

from diffmask.bench import Bench, Explained
from diffmask.benchmarking.work import Done
from diffmask.errors import DiffMaskError
from diffmask.methods.integrated_gradient import IntegratedGradient
from diffmask.recipe import digest_of
from diffmask.store import Artefact

STEPS = 50


def price(explained: Sequence[Explained], rival: float | None) -> dict[str, float]:
    """Per text: rows forward and backward, seconds; in all: seconds of the fit, memory, and the break-even in texts."""
    texts = sum(len(one.attribution) for one in explained)
    costs = [one.cost for one in explained]
    found = {
        "forwards": sum(cost.rows for cost in costs) / texts,
        "backwards": sum(cost.rows_back for cost in costs) / texts,
        "seconds": sum(cost.seconds for cost in costs) / texts,
        "fit_seconds": sum(one.fit_cost.seconds for one in explained) / len(explained),
        "peak_megabytes": max(max(one.cost.peak_megabytes, one.fit_cost.peak_megabytes) for one in explained),
    }
    learned = any(one.fit_cost.forwards for one in explained)
    return {**found, **({"break_even": break_even(found, rival)} if learned and rival is not None else {})}


def break_even(cost: dict[str, float], rival: float) -> float:
    """Texts after which fit and explanations together have taken no more than the rival's: f / (r - s).

    >>> break_even({"fit_seconds": 90.0, "seconds": 0.1}, 1.0)
    100.0
    """
    gain = rival - cost["seconds"]
    return cost["fit_seconds"] / gain if gain > 0 else math.inf


def rival_seconds(found: Sequence[Done], bench: Bench, split: str, few: int = 8) -> float | None:
    """Seconds that integrated gradients of 50 steps take for a text: as benchmarked, or measured on a few texts."""
    for done in found:
        if isinstance(done.method, IntegratedGradient) and done.measured:
            explained = bench.explained(done.method, split)
            return explained.cost.seconds / len(explained.attribution) * STEPS / done.method.n_steps

    def make() -> Artefact:
        some = bench.task().data[split].spread(few)
        explainer = IntegratedGradient(n_steps=STEPS).fit(bench.task())
        explainer(some, rows_at_once=1)  # a text's points fill a pass; beside other texts there would be padding
        return Artefact({}, {"seconds": explainer.cost.seconds / len(some)})

    try:
        kept = bench.store.get_or_make("price", digest_of(["price", bench.task_digest(), split, STEPS]), make)
    except DiffMaskError:
        return None
    return float(kept.values["seconds"])
