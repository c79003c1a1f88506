"""Which tokens ROAR masks, against arithmetic done by hand."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from diffmask.core.batch import Batch
from diffmask.errors import ConfigError, TaskError
from diffmask.metrics.roar.masking import (
    RoarProtocol,
    apply_masks,
    mask_tokens,
    no_masks,
    number_to_mask,
    published_random_scores,
    select_most_important,
)
from support.linear import LinearTask

NAN, INF = float("nan"), float("inf")


@settings(deadline=None, max_examples=50)
@given(n=st.integers(1, 599), k=st.integers(0, 10))
def test_the_quantile_is_a_floor(n: int, k: int) -> None:
    assert number_to_mask(torch.ones(1, n, dtype=torch.bool), 10 * k, "quantile").item() == (10 * k * n) // 100


def test_the_count_never_exceeds_what_may_be_masked() -> None:
    maskable = torch.tensor([[True, True, False, False], [True, True, True, True]])
    assert number_to_mask(maskable, 3, "count").tolist() == [2, 3]


def test_a_short_text_keeps_everything_at_ten_percent() -> None:
    assert number_to_mask(torch.ones(1, 9, dtype=torch.bool), 10, "quantile").item() == 0


def mask(
    scores: list[float], number: int, maskable: list[int] | None = None, masked: list[int] | None = None
) -> list[int]:
    size = len(scores)
    allowed = torch.tensor([maskable or [1] * size]).bool()
    before = torch.tensor([masked or [0] * size]).bool()
    return select_most_important(torch.tensor([scores]), allowed, before, torch.tensor([number]))[0].int().tolist()


def test_ties_are_broken_by_position() -> None:
    assert mask([0.5] * 5, 3) == [1, 1, 1, 0, 0]


def test_what_is_masked_already_stays_masked_whatever_it_scores() -> None:
    assert mask([9.0, INF, 0.0, 8.0], 2, masked=[0, 0, 1, 0]) == [0, 1, 1, 0]


def test_special_tokens_are_never_masked_even_when_all_is_asked_for() -> None:
    assert mask([9.0, 1.0, 2.0, 9.0], 4, maskable=[0, 1, 1, 0]) == [0, 1, 1, 0]


def test_nan_never_ranks_before_a_number() -> None:
    assert mask([NAN, -5.0, NAN, 0.1], 2) == [0, 1, 0, 1]


@settings(deadline=None, max_examples=50)
@given(st.lists(st.floats(-1, 1, width=32), min_size=1, max_size=30), st.integers(0, 9))
def test_masks_of_one_ranking_are_nested(scores: list[float], tenth: int) -> None:
    yes = torch.ones(1, len(scores), dtype=torch.bool)
    found = [
        select_most_important(torch.tensor([scores]), yes, ~yes, number_to_mask(yes, k, "quantile"))
        for k in (10 * tenth, 10 * tenth + 10)
    ]
    assert bool((found[0] <= found[1]).all())
    assert int(found[1].sum()) == len(scores) * (10 * tenth + 10) // 100


def test_a_mask_replaces_and_never_deletes() -> None:
    tokens = torch.tensor([[1, 7, 8, 2]])
    real = torch.ones(1, 4, dtype=torch.bool)
    batch = Batch(tokens=tokens, present=real, maskable=tokens > 2, target=torch.tensor([0]))
    changed = mask_tokens(batch, torch.tensor([[False, True, False, False]]), 3)
    assert changed.tokens.tolist() == [[1, 3, 8, 2]]
    assert torch.equal(changed.present, batch.present) and torch.equal(changed.maskable, batch.maskable)


@pytest.mark.parametrize("strategy", ["count", "quantile"])
def test_nothing_is_masked_at_zero(strategy: str) -> None:
    assert number_to_mask(torch.ones(2, 5, dtype=torch.bool), 0, strategy).tolist() == [0, 0]  # type: ignore[arg-type]  # parametrised


def test_random_scores_are_drawn_as_published_split_by_split_and_256_rows_at_a_time() -> None:
    def rows(lengths: list[int]) -> Batch:
        present = torch.arange(6) < torch.tensor(lengths)[:, None]
        return Batch(tokens=present.long(), present=present, maskable=present, target=torch.zeros(len(lengths)).long())

    data = {"train": rows([3] * 256 + [2, 5]), "test": rows([4, 1])}
    found = published_random_scores(data, seed=7)
    source = np.random.RandomState(7)
    first, second, test = source.rand(256, 3), source.rand(2, 5), source.rand(2, 4)
    np.testing.assert_allclose(found["train"][:256, :3], first, rtol=1e-6)
    np.testing.assert_allclose(found["train"][256:, :5], second, rtol=1e-6)
    np.testing.assert_allclose(found["test"][:, :4], test, rtol=1e-6)


def test_the_default_protocol_is_that_of_the_paper() -> None:
    protocol = RoarProtocol()
    assert (protocol.strategy, protocol.recursive, protocol.step_size, protocol.absolute) == (
        "quantile",
        False,
        10,
        True,
    )
    assert protocol.importance(torch.tensor([[-2.0, 1.0]])).tolist() == [[2.0, 1.0]]
    assert RoarProtocol(absolute=False).importance(torch.tensor([[-2.0, 1.0]])).tolist() == [[-2.0, 1.0]]


def test_a_step_of_one_is_the_smallest() -> None:
    assert RoarProtocol(step_size=1).step_size == 1
    with pytest.raises(ConfigError, match="step_size is at least 1; found 0"):
        RoarProtocol(step_size=0)


def test_masks_of_all_splits_are_applied_with_the_task_s_mask_token() -> None:
    task = LinearTask([[1, 2], [3]])
    nothing = no_masks(task.data)
    assert not any(masks.any() for masks in nothing.values()) and set(nothing) == {"train", "test"}
    masks = {**nothing, "test": torch.tensor([[False, True], [True, False]])}
    masked = apply_masks(task, task.data, masks)
    assert masked["train"].tokens.tolist() == [[1, 2], [3, 0]] and masked["test"].tokens.tolist() == [[1, 4], [4, 0]]
    task.mask_token = None  # type: ignore[assignment]  # a vocabulary without one
    with pytest.raises(TaskError, match="LinearTask has no mask token, which ROAR needs"):
        apply_masks(task, task.data, masks)


def test_ties_in_a_long_text_are_broken_by_position_and_special_tokens_never_take_a_rank() -> None:
    assert mask([0.0] * 500, 100) == [1] * 100 + [0] * 400
    assert mask([0.0, 0.5, 0.5, 0.1], 2, maskable=[0, 0, 1, 1]) == [0, 0, 1, 1]
