"""Verified sets hold the margin, keep the prediction and are 1-minimal; each claim is checked by plain loops."""

from itertools import combinations

import pytest
import torch
from torch import Tensor
from torch.distributions import Bernoulli, Categorical, Independent, Normal

from diffmask.core.batch import Batch
from diffmask.core.distributions import divergence
from diffmask.core.explainer import Explainer
from diffmask.core.verification.masks import (
    TextUnits,
    VerifiedMasks,
    _measurements,
    run_searches,
    select_rows,
    verify,
)
from diffmask.core.verification.search import (
    Kept,
    Measurement,
    SearchConfig,
    SearchResult,
    log_odds_bounds,
    prefix_batches,
    search_minimal_set,
)
from diffmask.errors import InputError, TaskError
from diffmask.methods.baselines import Random
from support.linear import VALUES, LinearTask
from support.lookup import LookupTask, either

MARGIN = 0.1


def tokens_of(batch: Batch) -> list[TextUnits]:
    """Every maskable token is a unit, every row a text."""
    return [
        TextUnits.of_row(number, [[column] for column in row.nonzero().flatten().tolist()])
        for number, row in enumerate(batch.maskable)
    ]


def verified(
    task: LinearTask, scores: Tensor, units: list[list[int]] | None = None, margin: float = MARGIN
) -> VerifiedMasks:
    batch = task.data["test"]
    explainer = Random().fit(task)
    return verify(
        lambda rows, kept: explainer.predict_kept(rows, kept, None),
        batch,
        task.predict(batch),
        scores,
        [TextUnits.of_row(0, units)] if units else tokens_of(batch),
        margin,
    )


def holds(task: LinearTask, row: int, kept: set[int], margin: float = MARGIN) -> bool:
    """Ask the model about one row, one set, without any code of the search."""
    batch = task.data["test"][row : row + 1]
    tokens = batch.tokens.clone()
    for column in batch.maskable[0].nonzero().flatten().tolist():
        if column not in kept:
            tokens[0, column] = task.mask_token
    before, after = task.model(batch.tokens, batch.present), task.model(tokens, batch.present)
    p, q = torch.sigmoid(before.double()), torch.sigmoid(after.double())
    distance = p * (p / q).log() + (1 - p) * ((1 - p) / (1 - q)).log()
    return bool(distance <= margin) and bool((before > 0) == (after > 0))


def assert_sufficient_and_minimal(task: LinearTask, found: VerifiedMasks) -> None:
    for row in range(len(found)):
        kept = set(found.kept[row].nonzero().flatten().tolist())
        assert holds(task, row, kept)
        for column in kept:
            assert not holds(task, row, kept - {column}), "this token can be dropped"
    assert found.minimal.all()
    assert found.same_prediction.all()
    assert bool((found.divergence <= MARGIN).all())


def test_the_pair_that_decides_is_found_from_the_best_order() -> None:
    task = LookupTask(8, either(8, (2, 5)))
    scores = torch.tensor([[0.1, 0.2, 0.9, 0.0, 0.3, 0.8, 0.1, 0.2]])
    found = verified(task, scores)
    assert found.units == ((2, 5),)
    assert found.kept[0].nonzero().flatten().tolist() == [2, 5]
    assert_sufficient_and_minimal(task, found)


@pytest.mark.parametrize("seed", range(5))
def test_the_pair_that_decides_is_found_from_any_order(seed: int) -> None:
    task = LookupTask(8, either(8, (2, 5)))
    found = verified(task, torch.rand(1, 8, generator=torch.Generator().manual_seed(seed)))
    assert found.units == ((2, 5),)


@pytest.mark.parametrize("seed", range(10))
def test_with_two_sufficient_pairs_the_result_is_one_of_them(seed: int) -> None:
    task = LookupTask(7, either(7, (0, 1), (3, 4)))
    found = verified(task, torch.rand(1, 7, generator=torch.Generator().manual_seed(seed)))
    assert found.units[0] in ((0, 1), (3, 4))
    assert_sufficient_and_minimal(task, found)


def test_a_model_that_ignores_the_text_needs_nothing_and_that_is_flagged() -> None:
    task = LookupTask(5, {}, default=-1.0)
    found = verified(task, torch.rand(1, 5))
    assert found.units == ((),)
    assert found.holds_empty.all()
    assert not found.kept.any()
    assert found.minimal.all()


def test_a_text_of_one_token_keeps_it_if_it_decides() -> None:
    task = LookupTask(1, {frozenset({0}): 2.0}, default=-2.0)
    found = verified(task, torch.zeros(1, 1))
    assert found.units == ((0,),)
    assert not found.holds_empty.any()
    assert_sufficient_and_minimal(task, found)


def test_a_row_without_maskable_tokens_has_an_empty_set() -> None:
    task = LookupTask(2, {}, default=1.0)
    batch = task.data["test"]
    task.data["test"] = Batch(
        tokens=batch.tokens, present=batch.present, maskable=torch.zeros_like(batch.maskable), target=batch.target
    )
    found = verified(task, torch.zeros(1, 2))
    assert found.units == ((),)
    assert found.rows_used.tolist() == [0]


def test_a_prediction_that_flips_within_the_margin_does_not_hold() -> None:
    # KL(.52 || .48) = .003, far below the margin, but the model says no.
    task = LookupTask(3, {frozenset({0, 1, 2}): 0.08, frozenset({1}): 0.05}, default=-0.08)
    found = verified(task, torch.tensor([[3.0, 2.0, 1.0]]))
    assert found.units == ((1,),)
    assert_sufficient_and_minimal(task, found)


def test_prefixes_that_hold_break_and_hold_again_still_give_a_minimal_set() -> None:
    # Along the order 0, 1, 2, ... the prefixes of 0 and 1 tokens break, 2 holds, 4 breaks, 6 holds.
    table = {frozenset(range(size)): 2.0 for size in (2, 6)} | {frozenset({1}): 2.0}
    task = LookupTask(6, table, default=-2.0)
    found = verified(task, torch.arange(6, 0, -1.0)[None])
    assert found.units == ((1,),)
    assert_sufficient_and_minimal(task, found)


@pytest.mark.parametrize("seed", range(40))
def test_on_random_tables_the_set_is_minimal_and_close_to_the_smallest(seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    tokens = int(torch.randint(2, 9, (1,), generator=draw))
    effects = torch.randn(tokens, generator=draw)
    sets = [frozenset(kept) for size in range(tokens + 1) for kept in combinations(range(tokens), size)]
    table = {kept: float(effects[list(kept)].sum() + 0.3 * torch.randn(1, generator=draw)) for kept in sets}
    task = LookupTask(tokens, table)
    sign = 1 if table[frozenset(range(tokens))] > 0 else -1
    found = verified(task, sign * effects[None])
    assert_sufficient_and_minimal(task, found)
    smallest = min(len(kept) for kept in sets if holds(task, 0, set(kept)))
    assert len(found.units[0]) <= smallest + 1


def test_over_many_random_tables_few_sets_are_larger_than_the_smallest() -> None:
    larger = 0
    for seed in range(40):
        draw = torch.Generator().manual_seed(seed)
        effects = torch.randn(8, generator=draw)
        sets = [frozenset(kept) for size in range(9) for kept in combinations(range(8), size)]
        table = {kept: float(effects[list(kept)].sum() + 0.3 * torch.randn(1, generator=draw)) for kept in sets}
        task = LookupTask(8, table)
        sign = 1 if table[frozenset(range(8))] > 0 else -1
        found = verified(task, sign * effects[None])
        larger += len(found.units[0]) > min(len(kept) for kept in sets if holds(task, 0, set(kept)))
    assert larger <= 4


def test_a_unit_of_several_tokens_stays_or_goes_whole() -> None:
    task = LookupTask(6, either(6, (1, 4)))
    found = verified(task, torch.zeros(1, 6), [[0, 1], [2, 3], [4, 5]])
    assert found.units == ((0, 2),)
    assert found.kept[0].tolist() == [True, True, False, False, True, True]


def test_maskable_tokens_of_no_unit_stay() -> None:
    task = LookupTask(4, either(4, (0, 3)))
    found = verified(task, torch.zeros(1, 4), [[1], [2], [3]])
    assert found.units == ((2,),)
    assert found.kept[0].tolist() == [True, False, False, True]


ROWS = [[3, 1, 2], [1, 1, 2, 3, 4, 1, 2], [2, 2], [3], [4, 2, 1, 3, 3, 1, 2, 2, 4]]


def effects_of(task: LinearTask) -> Tensor:
    """What each token adds to the log-odds of the prediction."""
    batch = task.data["test"]
    added = torch.tensor(VALUES)[batch.tokens]
    sign = torch.where(task.model(batch.tokens, batch.present) > 0, 1.0, -1.0)
    return (added * sign[:, None]).detach()


def test_rows_of_many_lengths_are_each_sufficient_and_minimal() -> None:
    task = LinearTask(ROWS)
    assert_sufficient_and_minimal(task, verified(task, effects_of(task)))


def test_a_batch_gives_what_each_row_gives_alone() -> None:
    task = LinearTask(ROWS)
    together = verified(task, effects_of(task))
    for row, tokens in enumerate(ROWS):
        alone_task = LinearTask([tokens])
        alone = verified(alone_task, effects_of(alone_task))
        assert alone.units[0] == together.units[row]
        assert alone.rows_used[0] == together.rows_used[row]
        assert alone.divergence[0] == pytest.approx(float(together.divergence[row]), abs=1e-6)


def test_padding_changes_nothing() -> None:
    task = LinearTask(ROWS)
    found = verified(task, effects_of(task))
    wide = LinearTask(ROWS)
    wide.data["test"] = wide.data["test"].pad(20)
    padded = verified(wide, effects_of(wide))
    assert padded.units == found.units
    assert not padded.kept[:, 9:].any()
    assert torch.equal(padded.rows_used, found.rows_used)


def test_rows_used_are_the_rows_that_the_model_saw() -> None:
    task = LinearTask(ROWS)
    batch, seen = task.data["test"], 0
    explainer: Explainer = Random().fit(task)

    def masked(rows: Batch, kept: Tensor) -> Bernoulli:
        nonlocal seen
        seen += len(rows)
        answer = explainer.predict_kept(rows, kept, None)
        assert isinstance(answer, Bernoulli)
        return answer

    found = verify(masked, batch, task.predict(batch), effects_of(task), tokens_of(batch), MARGIN)
    assert int(found.rows_used.sum()) == seen


def test_a_margin_below_zero_is_refused() -> None:
    with pytest.raises(InputError, match="margin"):
        verified(LookupTask(2, {}), torch.zeros(1, 2), margin=-1.0)


def test_units_are_ordered_by_their_largest_token() -> None:
    units = TextUnits.of_row(0, [[0], [2], [3, 4], [1]])
    assert units.order(torch.tensor([[0.0, 5.0, 1.0, 2.0, 2.0]])) == [3, 2, 1, 0]


def test_a_text_in_two_rows_is_one_text() -> None:
    # Token 1 of the first row and token 0 of the second are the same piece of the text.
    task = LinearTask([[1, 3], [3, 2]])
    batch = task.data["test"]
    explainer = Random().fit(task)
    text = TextUnits((0, 1), (((0, 0),), ((0, 1), (1, 0)), ((1, 1),)))

    def mean_divergence(kept: set[int]) -> float:
        mask = torch.zeros(2, 2, dtype=torch.bool)
        for unit in kept:
            for row, column in text.tokens[unit]:
                mask[row, column] = True
        return float(divergence(task.predict(batch), explainer.predict_kept(batch, mask, None)).mean())

    found = verify(
        lambda rows, kept: explainer.predict_kept(rows, kept, None),
        batch, task.predict(batch), torch.tensor([[0.0, 2.0], [2.0, 1.0]]), [text], MARGIN,
    )  # fmt: skip
    assert len(found) == 1
    kept = set(found.units[0])
    assert found.kept.tolist() == [[0 in kept, 1 in kept], [1 in kept, 2 in kept]]
    assert float(found.divergence[0]) == pytest.approx(mean_divergence(kept), abs=1e-6)
    assert mean_divergence(kept) <= MARGIN
    assert found.rows_used.tolist()[0] % 2 == 0


@pytest.mark.parametrize("length", [0, 1, 2, 5, 8, 9, 25, 200])
def test_prefix_sizes_rise_from_the_empty_one_and_stay_below_the_whole(length: int) -> None:
    sizes = [size for batch in prefix_batches(length, ((0, 1), (2, 4))) for size in batch]
    assert sizes == sorted(set(sizes))
    assert not sizes or (sizes[0] == 0 and sizes[-1] < length <= max(2 * sizes[-1], 1))


@pytest.mark.parametrize("original", [-1.0, 0.1, 2.0, 6.0])
def test_log_odds_at_the_edges_cost_the_margin_or_flip(original: float) -> None:
    low, high = map(float, log_odds_bounds(original, MARGIN))
    before = Bernoulli(logits=torch.tensor([original]))
    for edge in (low, high):
        distance = float(divergence(before, Bernoulli(logits=torch.tensor([edge])))[0])
        flips = original > 0 and edge == 0
        assert flips or distance == pytest.approx(MARGIN, rel=1e-3) or edge > 60


def test_a_measurement_holds_within_the_margin_and_with_the_same_prediction_only() -> None:
    assert Measurement(0.1, True, 0.0).holds(0.1)
    assert not Measurement(0.11, True, 0.0).holds(0.1)
    assert not Measurement(0.0, False, 0.0).holds(0.1)


def test_rows_of_every_kind_of_answer_can_be_selected() -> None:
    rows = torch.tensor([1, 1, 0])
    values = torch.tensor([[0.0, 1.0], [2.0, 3.0]])
    picked = values[rows]
    assert torch.equal(select_rows(Bernoulli(logits=values), rows).logits, picked)  # type: ignore[attr-defined]
    chosen = select_rows(Categorical(logits=values), rows)
    assert torch.allclose(chosen.probs, picked.softmax(dim=-1))  # type: ignore[attr-defined]
    assert torch.equal(select_rows(Normal(values, 1.0), rows).mean, picked)
    both = select_rows(Independent(Bernoulli(logits=values), 1), rows)
    assert torch.allclose(both.mean, picked.sigmoid())
    with pytest.raises(TaskError, match="Uniform"):
        select_rows(torch.distributions.Uniform(values, values + 1), rows)


def test_a_search_that_may_measure_few_rows_holds_and_does_not_claim_to_be_minimal() -> None:
    task = LookupTask(10, either(10, (2, 5)))
    batch, explainer = task.data["test"], Random().fit(task)
    scores = torch.tensor([[0.9, 0.8, 0.0, 0.7, 0.6, 0.1, 0.5, 0.4, 0.3, 0.2]])
    for most in (1, 3, 7):
        found = verify(
            lambda rows, kept: explainer.predict_kept(rows, kept, None),
            batch,
            task.predict(batch),
            scores,
            tokens_of(batch),
            MARGIN,
            SearchConfig(most_rows=most),
        )
        assert found.rows_used.tolist() == [most]
        assert holds(task, 0, set(found.units[0]))
        assert not found.minimal.any()


def test_two_units_that_hold_only_without_the_others_between_are_found() -> None:
    # Six units together hold and none of them can be dropped, but the last two, each a little better, hold as well.
    everything, first = frozenset(range(8)), frozenset(range(6))
    table = {everything: 1.0, first: 1.0, frozenset({6, 7}): 1.0, frozenset({6}): -0.8, frozenset({7}): -0.8}
    found = verified(LookupTask(8, table), torch.arange(8.0, 0.0, -1.0)[None])
    assert found.units == ((6, 7),)


def test_punctuation_is_kept_only_where_it_is_needed() -> None:
    task = LookupTask(4, either(4, (0, 1), (0, 3)))
    batch, explainer = task.data["test"], Random().fit(task)

    def units(avoided: tuple[int, ...], scores: list[float]) -> tuple[int, ...]:
        texts = [TextUnits((0,), tuple(((0, column),) for column in range(4)), avoided)]
        predict = lambda rows, kept: explainer.predict_kept(rows, kept, None)  # noqa: E731
        return verify(predict, batch, task.predict(batch), torch.tensor([scores]), texts, MARGIN).units[0]

    assert units((), [0.9, 0.1, 0.2, 0.8]) == (0, 3)
    assert units((3,), [0.9, 0.1, 0.2, 0.8]) == (0, 1)
    assert units((1, 3), [0.9, 0.1, 0.2, 0.8]) == (0, 3)


def test_a_predicted_number_is_held_by_the_margin_alone() -> None:
    original = Normal(torch.tensor([1.0]), torch.ones(1))
    near = _measurements(original, Normal(torch.tensor([1.2]), torch.ones(1)))[0]
    far = _measurements(original, Normal(torch.tensor([2.0]), torch.ones(1)))[0]
    assert near.divergence == pytest.approx(0.02) and near.holds(MARGIN)
    assert far.divergence == pytest.approx(0.5) and not far.holds(MARGIN)


def search_of_a_long_text(seed: int, units: int = 200) -> SearchResult:
    """Search from a noisy order on log-odds to which every unit adds an effect of its own, a fifth of them negative."""
    source = torch.Generator().manual_seed(seed)
    effects = torch.randn(units, generator=source).abs().pow(2) * (1 - 1.5 * (torch.arange(units) % 5 == 0).float())
    effects = 12 * effects / effects.sum()
    order = (effects + 0.3 * torch.randn(units, generator=source)).argsort(descending=True).tolist()

    def measure(kept: Kept) -> Measurement:
        log_odds = -3 + effects[list(kept)].sum()
        answers = [Bernoulli(logits=value, validate_args=False) for value in (torch.tensor(9.0), log_odds)]
        return Measurement(float(divergence(*answers)), bool(log_odds > 0), float(log_odds))

    whole = measure(frozenset(order))
    search = search_minimal_set(order, whole, 0.002)
    return run_searches([search], lambda items: [measure(kept) for _, kept in items])[0]


def test_the_search_of_a_long_text_ends_with_a_minimal_set_within_few_rows() -> None:
    results = [search_of_a_long_text(seed) for seed in range(12)]
    assert all(result.minimal and result.measurement.holds(0.002) for result in results)
    assert sum(result.sets for result in results) <= 215 * len(results)
