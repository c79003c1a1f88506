"""Sixty-four calls from eight threads: every score must be that of a serial call."""

from itertools import pairwise

import torch

from diffmask.core.explainer import Explainer
from test_threads import in_threads, job
from trials.count import Count, each_fitted, small_task

CALLS = 64


def run(seed: int) -> Count:
    """Call every method from eight threads, and pairs of neighbouring methods on one model."""
    task, count = small_task(), Count("64 calls from 8 threads, every method: calls")
    rows = [task.data["test"][row : row + 1].trim() for row in range(16)]
    fitted: list[Explainer] = []

    def visit(name: str, explainer: Explainer) -> None:
        fitted.append(explainer)
        _compare(name, [explainer], count)

    def _compare(name: str, explainers: list[Explainer], count: Count) -> None:
        jobs = [job(explainers[at % len(explainers)], rows[at // 2 % 16]) for at in range(CALLS)]
        serial = [call() for call in jobs[:32]]
        try:
            found = in_threads(jobs)
        except Exception as error:
            count.add(name, f"{type(error).__name__}: {error}")
            return
        for at, scores in enumerate(found):
            equal = torch.equal(scores, serial[at % 32])
            count.add(name, None if equal else f"call {at} differs from the serial call")

    each_fitted(task, count, seed, visit)
    for first, second in pairwise(fitted):
        _compare(f"{first._known_config().name} and {second._known_config().name}", [first, second], count)
    return count
