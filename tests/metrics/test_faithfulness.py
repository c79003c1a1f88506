"""Comprehensiveness and sufficiency of a model that is a table, against arithmetic done by hand."""

from collections.abc import Callable
from itertools import permutations
from math import exp
from pathlib import Path

import pytest
import torch

from diffmask import from_function
from diffmask.core.batch import Batch
from diffmask.core.explainer import Method
from diffmask.core.store import Store
from diffmask.core.task import Task
from diffmask.errors import ConfigError, TaskError
from diffmask.metrics import erasure as erasing
from diffmask.metrics.erasure import Eraser, UnmaskedPrediction, tokens_to_erase
from diffmask.metrics.faithfulness import Comprehensiveness, search_bound
from diffmask.results.records import Record
from diffmask.workspace.workspace import Workspace
from support.linear import VALUES, LinearTask, batch_of
from support.lookup import LookupTask

TABLE = {frozenset({0, 1, 2, 3}): 2.0, frozenset({1, 2, 3}): 0.5, frozenset({2, 3}): -1.5}
TABLE |= {frozenset({0}): 1.0, frozenset({0, 1}): 1.2}


def sigmoid(logit: float) -> float:
    return 1 / (1 + exp(-logit))


def left_to_right() -> Method:
    """The first token scores highest."""
    return from_function(falling, name="left-to-right")


def falling(model: object, batch: Batch) -> torch.Tensor:
    return -torch.arange(batch.tokens.shape[1]).float().expand(batch.tokens.shape)


def measured(task: Task, folder: Path, **choices: object) -> dict[tuple[str, float | None], Record]:
    workspace = Workspace.over(Store(folder), task)
    found = Comprehensiveness(**choices).run(left_to_right(), workspace)  # type: ignore[arg-type]  # choices of any type
    return {(record.metric, record.at): record for record in found}


@pytest.mark.parametrize("mode", ["mask", "attention-mask"])
def test_both_values_equal_arithmetic_on_the_lookup_table(tmp_path: Path, mode: str) -> None:
    found = measured(LookupTask(4, TABLE), tmp_path, ratios=(0.25, 0.5), mode=mode)
    whole = sigmoid(2.0)
    one, two = whole - sigmoid(0.5), whole - sigmoid(-1.5)
    assert found["comprehensiveness", 0.25].value == pytest.approx(one, abs=1e-6)
    assert found["comprehensiveness", 0.5].value == pytest.approx(two, abs=1e-6)
    assert found["comprehensiveness", None].value == pytest.approx((one + two) / 2, abs=1e-6)
    assert found["comprehensiveness", None].per_row == pytest.approx(((one + two) / 2,), abs=1e-6)
    kept_one, kept_two = whole - sigmoid(1.0), whole - sigmoid(1.2)
    assert found["sufficiency", 0.25].value == pytest.approx(kept_one, abs=1e-6)
    assert found["sufficiency", None].value == pytest.approx((kept_one + kept_two) / 2, abs=1e-6)


def test_rows_of_different_length_keep_their_order_and_values(tmp_path: Path) -> None:
    rows = [[1], [3, 2, 1, 1], [2, 2], [3, 1, 2]]
    found = measured(LinearTask(rows), tmp_path, ratios=(0.5,), mode="delete")
    by_hand = []
    for row in rows:
        logit = sum(VALUES[token] for token in row)
        rest = row[-(-len(row) // 2) :]
        # Of a text without tokens nothing is left to ask about: its tokens are masked.
        after = sum(VALUES[token] for token in rest) if rest else VALUES[LinearTask.mask_token] * len(row)
        sign = 1 if logit > 0 else -1
        by_hand.append(sigmoid(sign * logit) - sigmoid(sign * after))
    assert found["comprehensiveness", None].per_row == pytest.approx(by_hand, abs=1e-6)


def test_the_probability_of_the_label_is_measured_with_target_gold(tmp_path: Path) -> None:
    task = LinearTask([[3, 2]])
    task.data["test"] = batch_of([[3, 2]], target=[0.0])
    found = measured(task, tmp_path, ratios=(0.5,), target="gold")
    after = sigmoid(-(VALUES[4] + VALUES[2]))
    assert found["comprehensiveness", None].value == pytest.approx(sigmoid(-2.0) - after, abs=1e-6)


def test_without_a_mask_token_the_mean_embedding_replaces_a_token(tmp_path: Path) -> None:
    task = LinearTask([[1, 3], [1, 2]])
    task.mask_token = None  # type: ignore[assignment]  # a vocabulary without one
    found = measured(task, tmp_path, ratios=(0.5,))
    mean = (VALUES[1] * 2 + VALUES[3] + VALUES[2]) / 4
    by_hand = [sigmoid(5.0) - sigmoid(mean + 4.0), sigmoid(1.0) - sigmoid(-(mean - 2.0))]
    assert found["comprehensiveness", None].per_row == pytest.approx(by_hand, abs=1e-6)


def test_minibatches_of_any_size_give_the_same_values(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [[1, 2, 3, 4][: 1 + n % 4] * (1 + n % 3) for n in range(30)]
    task = LinearTask(rows)
    batch = task.data["test"]
    gone = torch.rand(30, batch.tokens.shape[1], generator=torch.Generator().manual_seed(0)) < 0.4
    gone &= batch.maskable
    arguments = (batch, torch.ones(30), torch.arange(30), gone)
    together = Eraser(task, "delete").probability(*arguments)
    monkeypatch.setattr(erasing, "MAX_TOKENS", 7)
    monkeypatch.setattr(erasing, "MAX_ROWS", 2)
    assert torch.allclose(Eraser(task, "delete").probability(*arguments), together)


def test_minibatches_have_little_padding_and_every_copy_once() -> None:
    lengths = torch.arange(4, 60).repeat(20)
    runs = list(erasing._minibatches(lengths))
    assert torch.cat(runs).sort().values.tolist() == list(range(len(lengths)))
    padded = [len(run) * int(lengths[run].max()) for run in runs]
    assert sum(padded) < 1.1 * int(lengths.sum())
    assert all(size > erasing.MIN_TOKENS - 60 for size in padded[:-1]), "a run is not cut for a little padding"
    assert len(list(erasing._minibatches(torch.full((2000,), 10)))) == 2


def test_a_share_is_rounded_up_to_whole_tokens() -> None:
    maskable = torch.arange(40)[None] < torch.tensor([[0], [1], [9], [20], [30]])
    assert tokens_to_erase(maskable, (0.05, 0.1)).tolist() == [[0, 0], [1, 1], [1, 1], [1, 2], [2, 3]]


def test_an_impossible_mode_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="ratios are shares"):
        Comprehensiveness(ratios=(5.0, 10.0))
    task = LinearTask([[1, 2]])
    task.attention_masked = False
    with pytest.raises(TaskError, match="has no attention mask"):
        measured(task, tmp_path, mode="attention-mask")


def by_all_orders(table: Callable[[frozenset[int]], float], whole: float, sizes: list[int], keep: bool) -> list[float]:
    """The mean drop of every order of four tokens."""
    everything = frozenset(range(4))
    means = []
    for order in permutations(range(4)):
        firsts = [frozenset(order[:size]) for size in sizes]
        means.append(sum(whole - sigmoid(table(one if keep else everything - one)) for one in firsts) / len(sizes))
    return means


@pytest.mark.parametrize("keep", [False, True])
def test_a_wide_beam_finds_the_best_and_the_worst_order(keep: bool) -> None:
    source = torch.Generator().manual_seed(3)
    sets = [frozenset(i for i in range(4) if code >> i & 1) for code in range(16)]
    values = dict(zip(sets, torch.randn(16, generator=source).tolist(), strict=True))
    task = LookupTask(4, values)
    batch, whole = task.data["test"], sigmoid(values[frozenset(range(4))])
    said = UnmaskedPrediction(torch.ones(1), torch.tensor([whole]))
    means = by_all_orders(values.__getitem__, whole, [1, 1, 3], keep)
    for sign, bound in ((1, max(means)), (-1, min(means))):
        found = search_bound(Eraser(task), batch, said, torch.tensor([[1, 1, 3]]), keep=keep, sign=sign, width=16)
        assert float(found) == pytest.approx(bound, abs=1e-6)
        narrow = search_bound(Eraser(task), batch, said, torch.tensor([[1, 1, 3]]), keep=keep, sign=sign, width=1)
        assert sign * float(narrow) <= sign * bound + 1e-6


def test_a_normalised_mean_lies_between_the_bounds(tmp_path: Path) -> None:
    found = measured(LookupTask(4, TABLE), tmp_path, ratios=(0.25, 0.5), beam=16)
    means = by_all_orders(lambda kept: TABLE.get(kept, -1.0), sigmoid(2.0), [1, 2], False)
    by_hand = (found["comprehensiveness", None].value - min(means)) / (max(means) - min(means))
    assert found["normalised_comprehensiveness", None].value == pytest.approx(by_hand, abs=1e-5)
