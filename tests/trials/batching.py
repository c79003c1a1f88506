"""Rows explained in a batch and alone: the scores must agree, for every method in four families of models."""

from typing import Any

from diffmask.core.explainer import Explainer
from diffmask.core.task import Task
from test_contract_heads import QUICK
from trials.count import Count, each_fitted, parts_task, small_task, toy_task

FAMILIES = ("bert", "deberta-v2", "gpt2", "llama")
SETTINGS: dict[str, dict[str, Any]] = {
    **QUICK,
    "integrated-gradients": {},
    "captum:IntegratedGradients": {},
    "captum:LayerIntegratedGradients": {},
    "diffmask-per-input": {"steps": 40},
    "diffmask-reinforce": {"steps": 40, "samples": 2},
}
"""More steps than elsewhere for methods in which rounding errors grow from step to step."""
LARGEST = 1e-5
"""Largest difference of two scores, relative to the largest score of the text if that is above 1."""


def run(seed: int) -> Count:
    """Compare a batch of eight texts of different lengths with each of its texts."""
    count = Count("batched against single, every method in 4 families: pairs of method and family")
    largest: dict[str, float] = {}
    for family in FAMILIES:
        # Methods that need parts or known evidence have no model of this family.
        tasks = [small_task(family), *((parts_task(), toy_task()) if family == FAMILIES[0] else ())]

        def visit(name: str, task: Task, explainer: Explainer, family: str = family) -> None:
            batch = task.data["test"][:8]
            together, difference = explainer(batch).scores, 0.0
            for row in range(len(batch)):
                alone = explainer(batch[row : row + 1].trim()).scores[0]
                scale = max(1.0, float(alone.abs().max()))
                difference = max(difference, float((together[row, : len(alone)] - alone).abs().max()) / scale)
            largest[name] = max(largest.get(name, 0.0), difference)
            count.add(f"{name}, {family}", None if difference <= LARGEST else f"differs by {difference:.1e}")

        each_fitted(tasks, count, seed, visit, SETTINGS)
    worst = max(largest, key=lambda name: largest[name])
    count.notes.append(f"largest difference {largest[worst]:.1e}, {worst}")
    return count
