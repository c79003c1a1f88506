"""The toy task: its generator, its truth, and a model that learns it."""

from dataclasses import replace

import pytest
import torch

from diffmask.core.batch import Batch
from diffmask.core.distributions import logits
from diffmask.errors import InputError, SiteError
from diffmask.tasks import toy
from diffmask.tasks.toy import CountingTask, ToyTaskConfig


@pytest.fixture(scope="module")
def rows() -> Batch:
    return toy.sample_digits(20_000, 10, seed=0)


def by_hand(digits: list[list[int]], query: list[list[int]], lengths: list[int]) -> Batch:
    present = torch.arange(len(digits[0])) < torch.tensor(lengths)[:, None]
    return toy.digits_batch(torch.tensor(digits), torch.tensor(query), present)


# The published example, a tie, a row that says nothing, and one whose evidence lies in the padding.
PUBLISHED = by_hand(
    [[8, 8, 3, 1, 3, 9], [8, 1, 3, 3, 3, 3], [5, 5, 5, 5, 5, 5], [1, 3, 8, 8, 8, 8]],
    [[8, 1], [8, 1], [8, 1], [8, 1]],
    [6, 6, 6, 2],
)


def test_the_target_is_whether_the_first_digit_wins_and_ties_are_lost() -> None:
    assert PUBLISHED.target.tolist() == [1.0, 0.0, 0.0, 0.0]


def test_the_truth_is_every_digit_that_is_counted_and_no_padding() -> None:
    truth = toy.query_digits(PUBLISHED)
    assert truth[0].tolist() == [1, 1, 0, 1, 0, 0]
    assert truth[2].sum() == 0
    assert truth[3].tolist() == [1, 0, 0, 0, 0, 0]


def test_the_smallest_evidence_is_the_first_winning_digit() -> None:
    evidence = toy.first_winning_digit(PUBLISHED)
    assert evidence[0].tolist() == [1, 0, 0, 0, 0, 0]
    assert evidence[1].tolist() == [0, 1, 0, 0, 0, 0]


def test_query_digits_are_drawn_a_quarter_of_the_time_each(rows: Batch) -> None:
    for k in (0, 1):
        share = (rows.tokens == rows.inputs["query"][:, k : k + 1])[rows.present].float().mean()
        assert share.item() == pytest.approx(0.25, abs=0.006)


def test_lengths_are_uniform_and_query_digits_differ(rows: Batch) -> None:
    counts = torch.bincount(rows.present.sum(dim=1), minlength=11)[1:]
    assert counts.float().div(len(rows)).sub(0.1).abs().max() < 0.01
    assert (rows.inputs["query"][:, 0] != rows.inputs["query"][:, 1]).all()


def test_the_label_rate_is_the_published_one(rows: Batch) -> None:
    assert rows.target.mean().item() == pytest.approx(0.364, abs=0.01)


def test_the_same_seed_draws_the_same_rows() -> None:
    assert torch.equal(toy.sample_digits(50, 10, seed=3).tokens, toy.sample_digits(50, 10, seed=3).tokens)
    assert not torch.equal(toy.sample_digits(50, 10, seed=3).tokens, toy.sample_digits(50, 10, seed=4).tokens)


def test_the_model_has_the_published_number_of_parameters(toy_task: CountingTask) -> None:
    assert sum(value.numel() for value in toy_task.model.parameters()) == 640 + 640 + 12_352 + 130 + 13_056 + 65


def test_the_answer_never_sees_the_padding(toy_task: CountingTask) -> None:
    batch = toy_task.data["test"][:20]
    noisy = batch.map(lambda value: value)
    noisy.tokens[~batch.present] = 7
    torch.testing.assert_close(toy_task.forward(noisy).logits, toy_task.forward(batch).logits)


def test_training_is_the_same_to_the_bit(toy_task: CountingTask) -> None:
    config = ToyTaskConfig(rows=200, epochs=1)
    first, second = config.load(5), config.load(5)
    assert first.fingerprint() == second.fingerprint()
    assert first.fingerprint() != config.load(6).fingerprint()


def test_training_leaves_the_global_generator_alone() -> None:
    torch.manual_seed(1)
    expected = torch.rand(1)
    torch.manual_seed(1)
    ToyTaskConfig(rows=100, epochs=1).load(0)
    assert torch.equal(torch.rand(1), expected)


def test_an_unedited_pass_and_an_identity_edit_agree(toy_task: CountingTask) -> None:
    batch = toy_task.data["test"][:10]
    edited = toy_task.predict(batch, {site: lambda state: state * 1.0 for site in toy_task.sites})
    torch.testing.assert_close(logits(edited), logits(toy_task.predict(batch)))


def test_replacing_every_state_by_another_row_s_gives_that_row_s_answer(toy_task: CountingTask) -> None:
    batch = toy_task.data["test"]
    full = batch[batch.present.all(dim=1)][:2]
    _, states = toy_task.trace(full)
    swapped = toy_task.predict(full, {"hidden": lambda _: states["hidden"].flip(0)})
    torch.testing.assert_close(logits(swapped), logits(toy_task.predict(full)).flip(0))


def test_an_unknown_site_is_named_with_the_nearest(toy_task: CountingTask) -> None:
    with pytest.raises(SiteError, match=r"'hiden' is not a site of CountingTask; nearest: 'hidden'"):
        toy_task.predict(toy_task.data["test"][:2], {"hiden": lambda state: state})


def test_a_row_without_tokens_is_refused_with_its_number(toy_task: CountingTask) -> None:
    batch = toy_task.data["test"][:3]
    batch = replace(batch, present=batch.present & torch.tensor([[True], [False], [True]]))
    with pytest.raises(InputError, match="row 1 has no tokens"):
        toy_task.predict(batch)


def test_retraining_gives_a_fresh_model(toy_task: CountingTask) -> None:
    small = {name: rows[:100] for name, rows in toy_task.data.items()}
    assert toy_task.retrain(small, seed=1).fingerprint() != toy_task.fingerprint()
