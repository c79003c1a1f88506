"""The search for a threshold, level by level, against arithmetic done by hand."""

import math
from collections.abc import Callable
from typing import cast

import pytest
import torch

from diffmask.core.explainer import ForwardTrace
from diffmask.methods.diffmask.base import MaskExplainer
from diffmask.methods.diffmask.calibration import ThresholdSearch, calibration_split
from diffmask.methods.diffmask.gated import DiffMask
from support.linear import LinearTask


class Margin:
    """A margin that depends on the number of tokens that the first mask keeps; notes every question."""

    def __init__(self, allowed: Callable[[int], bool]) -> None:
        self.allowed, self.tried = allowed, list[int]()
        self.standard_errors, self.min_agreements = list[float](), list[float | None]()

    def is_satisfied(
        self,
        traces: object,
        site: str,
        masks: list[torch.Tensor],
        margin: float,
        standard_errors: float,
        min_agreement: float | None,
    ) -> bool:
        self.tried.append(int(masks[0].sum()))
        self.standard_errors.append(standard_errors)
        self.min_agreements.append(min_agreement)
        return self.allowed(self.tried[-1])


def search_of(scores: torch.Tensor, allowed: Callable[[int], bool]) -> tuple[ThresholdSearch, Margin]:
    """A search over one row of scores, all of whose tokens are maskable."""
    task, margin = LinearTask([[1] * scores.shape[1]]), Margin(allowed)
    trace = ForwardTrace.of(task, task.data["test"])
    explainer = cast(MaskExplainer, DiffMask(mask="inputs", steps=5, calibration_rows=0).build(task, 0))
    explainer.satisfies_margin = margin.is_satisfied  # type: ignore[method-assign, assignment]
    kept = torch.ones_like(scores, dtype=torch.bool)
    return ThresholdSearch(explainer, "embedding", [trace], [kept], [scores]), margin


def test_levels_are_tried_from_the_top_and_refined_twice() -> None:
    scores = torch.arange(101.0)[None]  # the quantile of a level is 100 times the level
    search, margin = search_of(scores, lambda kept: kept >= 34)
    # 95, 90, 80 and 70 % erase too many; 60 % does not. Then 65 %, and 67.5 %, which does not hold.
    assert search.highest(0.1) == pytest.approx(65.0)
    assert margin.tried == [5, 10, 20, 30, 40, 35, 33]
    assert set(margin.standard_errors) == {0.0} and set(margin.min_agreements) == {None}
    assert search.highest(0.1, min_agreement=0.9) == pytest.approx(65.0)
    assert set(margin.min_agreements[-7:]) == {0.9}


def test_without_a_level_that_holds_a_small_part_may_still_be_erased_or_nothing() -> None:
    search, margin = search_of(torch.arange(101.0)[None], lambda kept: kept >= 95)
    assert search.highest(0.1) == pytest.approx(3.75) and margin.tried[-2:] == [93, 97]
    nothing, _ = search_of(torch.arange(101.0)[None], lambda kept: False)
    assert nothing.highest(0.1) == -math.inf
    everything, margin = search_of(torch.arange(101.0)[None], lambda kept: True)
    assert everything.highest(0.1) == pytest.approx(98.75) and margin.tried == [5, 3, 2]


def test_infinite_scores_have_no_quantile() -> None:
    search, _ = search_of(torch.full((1, 4), torch.inf), lambda kept: True)
    assert search.highest(0.1) == -math.inf
    mixed, _ = search_of(torch.tensor([[torch.inf, 0.0, 1.0, 2.0]]), lambda kept: True)
    assert 1.5 < mixed.highest(0.1) <= 2.0


def test_one_held_out_row_serves_for_both_halves_and_three_are_split() -> None:
    task = LinearTask([[1], [2], [3], [1]])
    for rows, expected in (([[1]], ([1], [1])), ([[1], [2]], ([1], [2])), ([[1], [2], [3]], ([1, 3], [2]))):
        task.data["valid"] = LinearTask(rows).data["train"]
        first, second = calibration_split(task)
        assert (first.tokens.flatten().tolist(), second.tokens.flatten().tolist()) == expected
