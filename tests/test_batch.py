"""Batches are cut, copied, padded and joined without losing what belongs together."""

import pytest
import torch

from diffmask.core.batch import Attribution, Batch, ranking
from diffmask.errors import InputError, NumericsError


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


def test_rows_are_selected_in_every_part(batch: Batch) -> None:
    second = batch[torch.tensor([1])]
    assert len(second) == 1
    assert second.tokens.tolist() == [[8, 0, 0, 0]]
    assert second.inputs["query"].tolist() == [[3, 4]]
    assert second.token_inputs["segment"].tolist() == [[1, 0, 0, 0]]


def test_copies_of_a_row_stand_side_by_side(batch: Batch) -> None:
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
