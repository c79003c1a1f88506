"""Batches are selected, repeated, padded, iterated and concatenated consistently in all their tensors."""

from dataclasses import replace

import pytest
import torch

from diffmask.core.batch import (
    Attribution,
    Batch,
    delete_tokens,
    hide_tokens,
    iter_by_length,
    map_by_length,
    order_by_length,
    ranking,
    require_tokens,
    spread_indices,
)
from diffmask.errors import InputError, NumericsError
from support.linear import batch_of


@pytest.fixture
def batch() -> Batch:
    present = torch.tensor([[True, True, True, False], [True, False, False, False]])
    return Batch(
        tokens=torch.tensor([[5, 6, 7, 0], [8, 0, 0, 0]]),
        present=present,
        maskable=present.clone(),
        target=torch.tensor([1, 0]),
        inputs={"query": torch.tensor([[1, 2], [3, 4]])},
        token_inputs={"segment": torch.tensor([[0, 0, 1, 0], [1, 0, 0, 0]])},
    )


def test_rows_are_selected_in_every_tensor(batch: Batch) -> None:
    second = batch[torch.tensor([1])]
    assert len(second) == 1
    assert second.tokens.tolist() == [[8, 0, 0, 0]]
    assert second.inputs["query"].tolist() == [[3, 4]]
    assert second.token_inputs["segment"].tolist() == [[1, 0, 0, 0]]


def test_copies_of_a_row_are_adjacent(batch: Batch) -> None:
    assert batch.repeat(2).target.tolist() == [1, 1, 0, 0]


def test_trimming_undoes_padding(batch: Batch) -> None:
    padded = batch.pad(9, token=3)
    assert padded.tokens.shape == (2, 9)
    assert padded.tokens[0, 8] == 3
    assert not padded.present[:, 4:].any()
    assert padded.trim().tokens.tolist() == [[5, 6, 7], [8, 0, 0]]
    assert padded.trim().token_inputs["segment"].tolist() == [[0, 0, 1], [1, 0, 0]]


def test_padding_to_less_is_refused(batch: Batch) -> None:
    with pytest.raises(InputError, match="cannot pad 4 tokens down to 2"):
        batch.pad(2)


def test_scores_that_are_not_finite_are_refused_with_their_row() -> None:
    with pytest.raises(NumericsError, match=r"rows \[1\]"):
        Attribution(torch.tensor([[0.0], [torch.nan]]))


def test_layers_without_names_are_refused() -> None:
    with pytest.raises(InputError, match="2 layers of scores with names for 1"):
        Attribution(torch.zeros(1, 3), torch.zeros(1, 2, 3), ("only",))


def test_joined_attributions_keep_rows_and_layers_in_order() -> None:
    parts = [Attribution(torch.full((1, 2), k), torch.full((1, 1, 2), k), ("h",)) for k in (1.0, 2.0)]
    joined = Attribution.join(parts)
    assert joined.scores.tolist() == [[1.0, 1.0], [2.0, 2.0]]
    assert joined.by_layer is not None
    assert joined[1:].by_layer is not None
    assert joined.layers == ("h",)


def test_unmaskable_tokens_rank_last_even_if_all_others_are_negative() -> None:
    scores = torch.tensor([[-1.0, 5.0, -2.0]])
    assert ranking(scores, torch.tensor([[True, False, True]])).tolist() == [[0, 2, 1]]


def test_rows_are_iterated_from_short_to_long_without_padding(batch: Batch) -> None:
    portions = [(rows.tolist(), part.tokens.tolist()) for rows, part in iter_by_length(batch, 1)]
    assert portions == [([1], [[8]]), ([0], [[5, 6, 7]])]


@pytest.mark.parametrize("rows_at_once", [1, 2, 9])
def test_results_by_length_are_in_the_order_of_the_batch(batch: Batch, rows_at_once: int) -> None:
    assert map_by_length(lambda part: part.tokens.sum(dim=1), batch, rows_at_once).tolist() == [18, 8]


def test_evenly_spaced_rows_include_the_first() -> None:
    tokens = torch.arange(10)[:, None]
    batch = Batch(tokens=tokens, present=tokens >= 0, maskable=tokens >= 0, target=tokens[:, 0])
    assert batch.spread(4).target.tolist() == [0, 2, 5, 7]
    assert batch.spread(10) is batch


def test_hidden_tokens_keep_their_position_and_deleted_ones_do_not(batch: Batch) -> None:
    first = torch.tensor([[True, False, False, False], [False, False, False, False]])
    hidden, deleted = hide_tokens(batch, first), delete_tokens(batch, first)
    assert hidden.tokens.tolist() == batch.tokens.tolist() and hidden.present.tolist()[0] == [False, True, True, False]
    assert deleted.tokens[deleted.present].tolist() == [6, 7, 8]
    assert deleted.trim().token_inputs["segment"].tolist() == [[0, 1], [1, 0]]


def test_empty_batches_and_rows_are_refused(batch: Batch) -> None:
    with pytest.raises(InputError, match="no rows"):
        require_tokens(batch[:0])
    with pytest.raises(InputError, match="row 1 has no tokens"):
        require_tokens(hide_tokens(batch, torch.tensor([[False] * 4, [True] * 4])))


def test_ties_and_equal_lengths_keep_their_order_in_long_rows() -> None:
    scores, maskable = torch.zeros(1, 300), torch.ones(1, 300, dtype=torch.bool)
    assert ranking(scores, maskable)[0].tolist() == list(range(300))
    batch = batch_of([[1, 2], [1]] * 150)
    assert order_by_length(batch).tolist() == [*range(1, 300, 2), *range(0, 300, 2)]
    long = batch_of([[1] * 300])
    gone = torch.zeros_like(long.present)
    gone[0, 5] = True
    tokens = replace(long, tokens=torch.arange(300)[None])
    assert delete_tokens(tokens, gone).tokens[0].tolist() == [0, 1, 2, 3, 4, *range(6, 300), 5]


def test_hidden_tokens_are_neither_present_nor_maskable() -> None:
    batch = batch_of([[1, 2, 3]])
    hidden = hide_tokens(batch, torch.tensor([[False, True, False]]))
    assert hidden.present.tolist() == hidden.maskable.tolist() == [[True, False, True]]


def test_inputs_with_several_numbers_per_token_are_padded_and_zero_is_the_default_token() -> None:
    batch = replace(batch_of([[1, 2]]), token_inputs={"box": torch.ones(1, 2, 4)})
    padded = batch.pad(3)
    assert padded.tokens.tolist() == [[1, 2, 0]]
    assert padded.token_inputs["box"].shape == (1, 3, 4) and padded.token_inputs["box"][0, 2].tolist() == [0.0] * 4


def test_a_row_needs_one_token_and_not_all() -> None:
    batch = batch_of([[1, 2, 3], [1]])
    require_tokens(batch)  # no error
    assert batch.maskable.any(dim=1).all() and not batch.maskable.all()


def test_an_attribution_counts_joins_and_names_the_rows_that_are_not_finite() -> None:
    first = Attribution(torch.zeros(2, 3), torch.zeros(2, 1, 3), ("a",))
    second = Attribution(torch.ones(1, 3), torch.ones(1, 1, 3), ("a",))
    joined = Attribution.join([first, second])
    assert len(first) == 2 and len(joined) == 3 and joined.layers == ("a",)
    assert joined.by_layer is not None and joined.by_layer[2].tolist() == [[1.0, 1.0, 1.0]]
    scores = torch.zeros(3, 2)
    scores[1, 0] = torch.nan
    with pytest.raises(NumericsError, match=r"scores of rows \[1\] are not finite"):
        Attribution(scores)


def test_indices_of_a_sequence_as_long_as_asked_for_are_all_of_them() -> None:
    assert spread_indices(3, 3) == [0, 1, 2] and spread_indices(4, 2) == [0, 2]
