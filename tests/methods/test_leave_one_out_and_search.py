"""Leave-one-out, subset search and greedy search."""

from itertools import combinations

import pytest
import torch
from captum.attr import FeatureAblation

from diffmask.core.batch import Batch, delete_tokens
from diffmask.core.distributions import predicted_outcome, target_score
from diffmask.errors import ConfigError, TaskError
from diffmask.methods.leave_one_out import LeaveOneOut
from diffmask.methods.subset_search import (
    GreedySearch,
    MinimalSetSearch,
    SubsetSearch,
    SubsetSearchExplainer,
    TokenBeam,
)
from diffmask.tasks.toy import CountingTask
from support.linear import VALUES, LinearTask
from support.lookup import LookupTask, either
from support.transformer import MASK, TransformerTask


@pytest.fixture(scope="module")
def transformer() -> TransformerTask:
    return TransformerTask()


def test_the_drop_of_a_linear_model_is_the_tokens_distance_from_the_mask_token() -> None:
    task = LinearTask([[1, 2, 3], [3, 1]])
    batch = task.data["test"]
    scores = LeaveOneOut().fit(task)(batch, 1).scores
    torch.testing.assert_close(scores, (torch.tensor(VALUES)[batch.tokens] - VALUES[4]) * batch.present)


@pytest.mark.parametrize("mode", ["delete", "attention-mask"])
def test_a_token_that_is_gone_adds_nothing(mode: str) -> None:
    task = LinearTask([[1, 2, 3], [3, 1]])
    batch = task.data["test"]
    scores = LeaveOneOut.from_dict({"mode": mode}).fit(task)(batch, 1).scores
    torch.testing.assert_close(scores, torch.tensor(VALUES)[batch.tokens] * batch.present)


@pytest.mark.parametrize("mode", ["delete", "attention-mask"])
def test_the_only_token_is_replaced_where_it_cannot_go(mode: str) -> None:
    task = LinearTask([[3]])
    assert LeaveOneOut.from_dict({"mode": mode}).fit(task)(task.data["test"], 1).scores.item() == VALUES[3] - VALUES[4]


def test_the_drop_of_the_probability_is_in_units_of_probability() -> None:
    task = LinearTask([[1, 2, 3]])
    scores = LeaveOneOut(mode="delete", quantity="probability").fit(task)(task.data["test"], 1).scores
    logits = torch.tensor([[3.0, 3.0, 3.0], [2.0, 5.0, -1.0]])
    torch.testing.assert_close(scores[0], torch.sigmoid(logits[0]) - torch.sigmoid(logits[1]))


def test_deleting_moves_the_rest_of_the_row_up() -> None:
    batch = LinearTask([[1, 2, 3, 4], [2, 3]]).data["test"]
    marked = Batch(**{**vars(batch), "token_inputs": {"place": torch.arange(8).view(2, 4)}})
    shorter = delete_tokens(marked, torch.tensor([[False, True, False, False], [True, False, False, False]]))
    assert shorter.tokens.where(shorter.present, 0).tolist() == [[1, 3, 4, 0], [3, 0, 0, 0]]
    assert shorter.present.sum(dim=1).tolist() == [3, 1]
    assert shorter.token_inputs["place"].where(shorter.present, -1).tolist() == [[0, 2, 3, -1], [5, -1, -1, -1]]


def test_masking_is_reading_the_mask_token_instead(transformer: TransformerTask) -> None:
    batch = transformer.data["test"][:5].trim()
    scores = LeaveOneOut().fit(transformer)(batch).scores
    answer = transformer.predict(batch)
    for row, token in batch.maskable.nonzero().tolist():
        tokens = batch.tokens.clone()
        tokens[row, token] = MASK
        changed = transformer.predict(Batch(**{**vars(batch), "tokens": tokens}))
        drop = target_score(answer, predicted_outcome(answer), "log-odds") - target_score(
            changed, predicted_outcome(answer), "log-odds"
        )
        assert scores[row, token].item() == pytest.approx(drop[row].item())


def test_deleting_is_reading_the_shorter_text(transformer: TransformerTask) -> None:
    batch = transformer.data["test"][:5].trim()
    scores = LeaveOneOut(mode="delete", quantity="log-probability").fit(transformer)(batch).scores
    target = predicted_outcome(transformer.predict(batch))
    for row, token in batch.maskable.nonzero().tolist():
        text = batch.tokens[row][batch.present[row]].tolist()
        values = []
        for words in (text, text[:token] + text[token + 1 :]):
            real = torch.ones(1, len(words), dtype=torch.bool)
            alone = Batch(tokens=torch.tensor([words]), present=real, maskable=real, target=target[row : row + 1])
            values.append(transformer.predict(alone).log_prob(alone.target).item())
        assert scores[row, token].item() == pytest.approx(values[0] - values[1])


def test_leave_one_out_agrees_with_captum(transformer: TransformerTask) -> None:
    batch = transformer.data["test"][:12].trim()
    target = predicted_outcome(transformer.predict(batch))

    def f(tokens: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        return target_score(
            transformer.predict(Batch(**{**vars(batch[rows]), "tokens": tokens})), target[rows], "log-odds"
        )

    arguments = (torch.arange(len(batch)),)
    theirs = FeatureAblation(f).attribute(batch.tokens, baselines=MASK, additional_forward_args=arguments)
    ours = LeaveOneOut(internal_batch_size=16).fit(transformer)(batch).scores
    torch.testing.assert_close(ours, theirs.to(ours) * batch.maskable, rtol=1e-4, atol=1e-4)


def test_hiding_a_token_asks_for_an_attention_mask(toy_task: CountingTask) -> None:
    with pytest.raises(TaskError, match="has no attention mask; use mode 'mask' or 'delete'"):
        LeaveOneOut(mode="attention-mask").fit(toy_task)


def search(method: SubsetSearch, task: LookupTask) -> SubsetSearchExplainer:
    explainer = method.fit(task)
    assert isinstance(explainer, SubsetSearchExplainer)
    return explainer


def test_all_smallest_sets_are_found_and_shared_among_their_tokens() -> None:
    task = LookupTask(5, either(5, (0, 1), (1, 3)))
    explainer = search(SubsetSearch(), task)
    (result,) = explainer.search(task.data["test"])
    assert result.sets == ((0, 1), (1, 3))
    assert result.complete
    assert result.evaluated == 5 + 10
    torch.testing.assert_close(explainer(task.data["test"]).scores, torch.tensor([[0.5, 1.0, 0.0, 0.5, 0.0]]))


def test_the_empty_set_is_a_candidate_only_on_request() -> None:
    task = LookupTask(3, {frozenset(): 1.0, frozenset([0, 1, 2]): 1.0, frozenset([2]): 1.0})
    assert search(SubsetSearch(), task).search(task.data["test"])[0].sets == ((2,),)
    explainer = search(SubsetSearch(allow_empty=True), task)
    assert explainer.search(task.data["test"])[0].sets == ((),)
    assert (explainer(task.data["test"]).scores == 0).all()


def test_an_outcome_that_nothing_keeps_has_no_set() -> None:
    task = LookupTask(3, {frozenset([0, 1, 2]): 1.0, frozenset([0]): 1.0}, default=1.0)
    explainer = search(SubsetSearch(), task)
    result = explainer.search(task.data["test"], torch.zeros(1))
    assert result[0].sets == ()
    assert (explainer(task.data["test"], 0).scores == 0).all()


def test_beyond_the_budget_a_beam_follows_the_most_promising_sets() -> None:
    # Sets that hold 0 lean further towards yes, and only {0, 2, 4} decides.
    table = {frozenset(c): -0.5 for n in (1, 2) for c in combinations(range(6), n) if 0 in c}
    table |= {frozenset(c): 1.0 for n in (3, 6) for c in combinations(range(6), n) if {0, 2, 4} <= set(c)}
    task = LookupTask(6, table)
    (result,) = search(SubsetSearch(budget=7, beam=3), task).search(task.data["test"])
    assert result.sets == ((0, 2, 4),)
    assert not result.complete
    (whole,) = search(SubsetSearch(), task).search(task.data["test"])
    assert whole.complete
    assert whole.sets == result.sets
    assert result.evaluated < whole.evaluated


def test_a_search_over_nothing_ends() -> None:
    empty = MinimalSetSearch([], 1, 10, 2)
    assert empty.candidates() == [()]
    empty.record((), False, 0.0)
    empty.advance()
    assert empty.done
    assert empty.result().sets == ()


def test_counts_below_one_are_refused() -> None:
    with pytest.raises(ConfigError, match="at least 1"):
        SubsetSearch(beam=0)
    with pytest.raises(ConfigError, match="at least 1"):
        LeaveOneOut(internal_batch_size=0)


def test_a_beam_grows_sets_by_one_token_and_keeps_the_best() -> None:
    beam = TokenBeam([0, 1, 2], width=2)
    assert beam.expand() == {(0,): 0.0, (1,): 0.0, (2,): 0.0}
    beam.prune({(0,): 1.0, (1,): 3.0, (2,): 1.0})
    assert beam.values == {(1,): 3.0, (0,): 1.0}  # a tie goes to the smaller tuple
    assert beam.expand() == {(0, 1): 3.0, (1, 2): 3.0, (0, 2): 1.0}  # of two ways to a set, the better value
    beam.prune({(0, 1): 5.0, (1, 2): 4.0, (0, 2): 9.0}, priority={(0, 1): 2.0, (1, 2): 1.0, (0, 2): 0.0})
    assert beam.values == {(0, 1): 5.0, (1, 2): 4.0}


def test_an_ordered_beam_remembers_the_better_order_of_a_set() -> None:
    beam = TokenBeam([0, 1, 2], width=2, ordered=True)
    beam.prune({(0,): 1.0, (1,): 3.0, (2,): 0.0})
    assert beam.expand() == {(1, 0): 3.0, (1, 2): 3.0, (0, 2): 1.0}


def test_greedy_search_orders_tokens_by_the_gain_of_each_set() -> None:
    # Token 1 has the largest gain alone, token 0 adds to it, and token 2 does nothing.
    table = {frozenset(): -2.0, frozenset([1]): 0.5, frozenset([0, 1]): 3.0, frozenset([1, 2]): 0.5}
    table[frozenset([0, 1, 2])] = 3.0
    task = LookupTask(3, table, default=-2.0)
    batch = task.data["test"]
    scores = GreedySearch(share=1.0).fit(task)(batch, 1).scores
    torch.testing.assert_close(scores, torch.tensor([[2 / 3, 1.0, 1 / 3]]))
    torch.testing.assert_close(GreedySearch(share=1.0, beam=3).fit(task)(batch, 1).scores, scores)


def test_greedy_search_ranks_the_tokens_behind_the_searched_share_by_their_gain() -> None:
    task = LinearTask([[1, 2, 3]])
    # The logit is a sum over tokens, so the gains of the first step rank all of them.
    scores = GreedySearch(share=0.3, quantity="log-odds").fit(task)(task.data["test"], 1).scores[0]
    assert scores.argsort(descending=True).tolist() == torch.tensor(VALUES)[[1, 2, 3]].argsort(descending=True).tolist()
