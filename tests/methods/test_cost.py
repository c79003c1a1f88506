"""Every method counts the passes it makes: forward, backward, and rows."""

from typing import Any

import pytest

from diffmask.core.config import parse
from diffmask.core.explainer import Explainer
from support.transformer import TransformerTask

BATCH = 8
"""Rows explained."""


@pytest.fixture(scope="module")
def task() -> TransformerTask:
    return TransformerTask()


def explained(task: TransformerTask, name: str, options: dict[str, Any]) -> Explainer:
    explainer: Explainer = parse("method", {"name": name, **options}, "cost").fit(task)
    explainer(task.data["test"][:BATCH])
    return explainer


# The first term of each sum is the pass for the model's prediction.
COUNTS: list[tuple[str, dict[str, Any], int, int, int]] = [
    ("uniform", {}, 1, 0, BATCH),
    ("random", {}, 1, 0, BATCH),
    ("mutual-information", {}, 1, 0, BATCH),
    ("attention", {}, 1 + 1, 0, 2 * BATCH),
    ("attention-rollout", {}, 1 + 1, 0, 2 * BATCH),
    ("gradient", {}, 1 + 1, 1, 2 * BATCH),
    ("input-x-gradient", {}, 1 + 2, 1, 3 * BATCH),
    # One trace, ten points with four per pass, and the two ends of the path.
    (
        "integrated-gradients",
        {"n_steps": 10, "internal_batch_size": 4 * BATCH},
        1 + 1 + 3 + 2,
        3,
        (1 + 1 + 10 + 2) * BATCH,
    ),
    # One trace and one pass per step.
    ("bottleneck", {"steps": 5}, 1 + 1 + 5, 5, 7 * BATCH),
    # Row by row: one trace, one pass with everything masked, one per step, and one with the final masks.
    ("diffmask-per-input", {"steps": 5}, (1 + 2 + 5 + 1) * BATCH, 5 * BATCH, 9 * BATCH),
    ("diffmask-reinforce", {"steps": 5, "samples": 3}, (1 + 2 + 15 + 1) * BATCH, 0, 19 * BATCH),
    ("diffmask", {"steps": 2, "batch_size": 8}, 1, 0, BATCH),
    ("surrogate-mask", {"steps": 2, "batch_size": 8}, 1, 0, BATCH),
    ("nested-diffmask", {"steps": 2, "batch_size": 8}, 1, 0, BATCH),
    # One trace, two unmodified passes, and one pass of 4 samples per step.
    ("noise-tolerance", {"max_steps": 3, "samples": 4}, 1 + 1 + 2 + 3, 3, (1 + 1 + 2 + 3 * 4) * BATCH),
    (
        "noise-tolerance",
        {"max_steps": 3, "samples": 4, "targets": ["*"]},
        1 + 1 + 3 * (2 + 3),
        9,
        (1 + 1 + 3 * (2 + 3 * 4)) * BATCH,
    ),
    ("captum:Saliency", {}, 1 + 2, 1, 3 * BATCH),
    ("captum:DeepLift", {}, 1 + 2, 1, 4 * BATCH),
]


@pytest.mark.filterwarnings("ignore::diffmask.errors.FitWarning")
@pytest.mark.parametrize(
    ("name", "options", "forwards", "backwards", "rows"), COUNTS, ids=[f"{case[0]}-{len(case[1])}" for case in COUNTS]
)
def test_passes_are_counted(
    task: TransformerTask, name: str, options: dict[str, Any], forwards: int, backwards: int, rows: int
) -> None:
    cost = explained(task, name, options).cost
    assert (cost.forwards, cost.backwards, cost.rows) == (forwards, backwards, rows)
    assert cost.seconds > 0


def test_leave_one_out_costs_one_row_per_token(task: TransformerTask) -> None:
    words = int(task.data["test"][:BATCH].maskable.sum())
    cost = explained(task, "leave-one-out", {"internal_batch_size": 10}).cost
    assert cost.rows == BATCH + BATCH + words
    assert cost.forwards == 1 + 1 + -(-words // 10)
    assert cost.backwards == 0


def test_a_search_costs_one_row_per_evaluated_set(task: TransformerTask) -> None:
    batch = task.data["test"][:BATCH]
    explainer = explained(task, "subset-search", {})
    evaluated = sum(result.evaluated for result in explainer.search(batch.trim()))  # type: ignore[operator]  # its own method
    assert explainer.cost.rows == BATCH + evaluated


def test_costs_add_up_over_calls_and_the_fit_is_counted_separately(task: TransformerTask) -> None:
    explainer = explained(task, "gradient", {})
    explainer(task.data["test"][:BATCH])
    assert explainer.cost.forwards == 4
    assert explainer.fit_cost.forwards == 0
