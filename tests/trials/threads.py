"""Sixty-four calls from eight threads: every score must be that of a serial call."""

from itertools import pairwise

import torch

from diffmask.core.explainer import Explainer
from diffmask.core.task import Task
from test_threads import in_threads, job
from trials.count import Count, each_fitted, parts_task, small_task, toy_task

CALLS = 64


def run(seed: int) -> Count:
    """Call every method from eight threads, and pairs of neighbouring methods on one model."""
    count = Count("64 calls from 8 threads, every method: calls")
    fitted: list[tuple[str, Task, Explainer]] = []

    def visit(name: str, task: Task, explainer: Explainer) -> None:
        fitted.append((name, task, explainer))
        _compare(name, task, [explainer], count)

    each_fitted([small_task(), parts_task(), toy_task()], count, seed, visit)
    for (first, task, explainer), (second, other, neighbour) in pairwise(fitted):
        if task is other:
            _compare(f"{first} and {second}", task, [explainer, neighbour], count)
    count.notes.append(f"{len(fitted)} methods")
    return count


def _compare(name: str, task: Task, explainers: list[Explainer], count: Count) -> None:
    """Compare sixty-four calls on sixteen rows from eight threads with serial calls."""
    rows = [task.data["test"][row : row + 1].trim() for row in range(16)]
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
