"""Properties whose loss no other test noticed when the code was changed at random (`make mutants`)."""

import math
import os
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from diffmask.core.batch import Batch, require_tokens, spread_indices
from diffmask.core.hooks import edit_argument, on_gradient, skip_modules
from diffmask.core.store import Artefact, Store, values_checksum
from diffmask.errors import InputError, StoreError
from diffmask.explanation.text_units import word_spans
from diffmask.methods.diffmask.hard_concrete import HardConcrete
from diffmask.results.comparison import estimate, paired_differences
from diffmask.results.racu import CurveAreas, areas_between
from support.linear import batch_of


def test_only_remains_older_than_a_day_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, now, day = Store(tmp_path), 1_700_000_000.0, 24 * 3600.0
    ages = {"now": 0.0, "half a minute": 30.0, "a day": day, "more": day + 1}
    for kind in ("writing", "removing"):
        for name, age in ages.items():
            aside = tmp_path / "fit" / f".{kind}-{name}"
            aside.mkdir(parents=True)
            os.utime(aside, (now - age, now - age))
    odd = tmp_path / "fit" / ".writing-file"  # nobody writes files there; one that cannot be removed is left
    odd.write_text("")
    os.utime(odd, (0, 0))
    monkeypatch.setattr(time, "time", lambda: now)
    store.remove_partial_writes()
    left = {aside.name for aside in (tmp_path / "fit").iterdir() if aside.is_dir()}
    assert left == {f".{kind}-{name}" for kind in ("writing", "removing") for name in ("now", "half a minute", "a day")}


def test_an_artefact_can_be_read_by_others_and_does_not_depend_on_the_order_of_its_values(tmp_path: Path) -> None:
    Store(tmp_path).get_or_make("fit", "abc", lambda: Artefact({}, {"a": 1}))
    assert (tmp_path / "fit" / "abc").stat().st_mode & 0o777 == 0o755
    assert values_checksum({"a": 1, "b": 2}) == values_checksum({"b": 2, "a": 1}) != values_checksum({"a": 1, "b": 3})
    assert Artefact({}, {"a": 1}, "digest") == Artefact({}, {"a": 1}, "other") != Artefact({}, {"a": 2}, "digest")


def test_a_file_in_place_of_an_artefact_is_replaced(tmp_path: Path) -> None:
    store = Store(tmp_path)
    (tmp_path / "fit").mkdir()
    (tmp_path / "fit" / "abc").write_text("not a folder")
    made = store.get_or_make("fit", "abc", lambda: Artefact({"x": torch.ones(2)}, {"a": 1}))
    assert made.values == {"a": 1} and store.has("fit", "abc")


def test_a_missing_part_of_an_artefact_is_named_with_its_folder(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.get_or_make("fit", "abc", lambda: Artefact({"x": torch.ones(2)}, {"a": 1}))
    again = store.get_or_make("fit", "abc", lambda: pytest.fail("made twice"))
    with pytest.raises(StoreError, match=r"abc is damaged: 'y' is missing"):
        again.tensors["y"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("don't stop", ["don't", "stop"]),
        ("rock-and-roll", ["rock-and-roll"]),
        ("the 'best' film", ["the", "'", "best", "'", "film"]),
        ("dogs' home", ["dogs", "'", "home"]),
        ("-5 points", ["-", "5", "points"]),
        ("well- done", ["well", "-", "done"]),
        ("a--b", ["a", "-", "-", "b"]),
        ("'", ["'"]),
        ("x'", ["x", "'"]),
        ("'x", ["'", "x"]),
        ("e\u0301t\u00e9", ["e\u0301t\u00e9"]),
        ("\u4e00\u4e01", ["\u4e00", "\u4e01"]),
        ("a\u200db", ["a\u200db"]),
    ],
)
def test_apostrophes_and_hyphens_join_words_only_between_letters(text: str, words: list[str]) -> None:
    assert [text[first:last] for first, last in word_spans(text)] == words


def test_methods_with_infinite_values_are_not_compared_but_nan_rows_are_left_out() -> None:
    plain = np.array([[1.0, 2.0, 3.0]])
    assert paired_differences(plain, np.array([[1.0, math.inf, 0.0]])) is None
    assert paired_differences(np.array([[-math.inf, 2.0, 3.0]]), plain) is None
    found = paired_differences(plain, np.array([[0.5, math.nan, 1.0]]))
    assert found is not None and found.tolist() == [[0.5, 2.0]]
    assert paired_differences(plain, np.array([[0.5, math.nan, math.nan]])) is None
    assert paired_differences(plain, np.array([[1.0, 2.0]])) is None


def test_an_infinite_value_makes_the_mean_infinite_without_an_interval() -> None:
    found = estimate(np.array([[1.0, math.inf, 2.0]]))
    assert (found.mean, found.low, found.high, found.rows) == (math.inf, math.inf, math.inf, 3)
    assert math.isnan(estimate(np.array([[math.nan, math.nan]])).mean)
    assert estimate(np.array([[math.nan, 3.0]])).mean == 3.0


def test_racu_is_clipped_on_both_sides_and_nowhere_else() -> None:
    def clipped(absolute: float) -> float:
        return CurveAreas(absolute=absolute, denominator=2.0).clipped

    assert [clipped(value) for value in (-5.0, -1.0, 0.0, 1.5, 5.0)] == [-1.0, -0.5, 0.0, 0.75, 1.0]
    assert math.isnan(CurveAreas(absolute=1.0, denominator=0.0).relative)
    with pytest.raises(InputError, match="two or more positions"):
        areas_between(measure=[1.0], random=[1.0])


def test_the_mean_of_a_gate_is_that_of_many_samples() -> None:
    logits = torch.tensor([-3.0, -0.5, 0.0, 1.0, 4.0], dtype=torch.float64)
    uniform = (torch.arange(200_000, dtype=torch.float64) + 0.5) / 200_000
    for temperature in (0.2, 0.67, 1.0):
        gate = HardConcrete(logits, temperature)
        sampled = torch.stack([HardConcrete(logit, temperature).from_uniform(uniform).mean() for logit in logits])
        torch.testing.assert_close(gate.mean(), sampled, atol=2e-3, rtol=0)


@pytest.mark.parametrize(
    "change",
    [
        {"tokens": [[1, 2]]},
        {"tokens": torch.ones(3)},
        {"tokens": torch.ones(2, 3)},
        {"present": torch.ones(2, 4).bool()},
        {"maskable": torch.ones(1, 3).bool()},
        {"maskable": torch.ones(2, 3)},
        {"target": torch.tensor(1.0)},
        {"target": torch.ones(3)},
    ],
)
def test_a_batch_of_tensors_that_do_not_belong_together_is_refused(change: dict[str, object]) -> None:
    whole = vars(batch_of([[1, 2, 3], [3, 1, 0]]))
    with pytest.raises(Exception, match=r"Batch|Type-check"):
        Batch(**{**whole, **change})


def test_an_empty_row_is_named_and_indices_are_spread_evenly() -> None:
    batch = batch_of([[1, 2], [1, 2]])
    batch.present[1] = False
    with pytest.raises(InputError, match="row 1 has no tokens"):
        require_tokens(batch)
    assert spread_indices(5, 5) == [0, 1, 2, 3, 4] and spread_indices(4, 9) == [0, 1, 2, 3]
    assert spread_indices(7, 3) == [0, 2, 4]


def test_a_gradient_is_watched_only_where_there_is_one() -> None:
    state, seen = torch.ones(2, requires_grad=True), list[list[float]]()
    on_gradient(state, lambda gradient: seen.append(gradient.tolist()))
    (3 * state).sum().backward()
    on_gradient(torch.ones(2), lambda gradient: seen.append([]))  # a constant has none: nothing to watch, no error
    assert seen == [[3.0, 3.0]]


class Doubler(nn.Module):
    def forward(self, hidden_states: torch.Tensor, scale: float = 1.0) -> tuple[torch.Tensor, float, None]:
        return 2 * scale * hidden_states, scale, None


def test_a_skipped_module_returns_its_input_as_a_tuple_of_the_right_length() -> None:
    model, state = nn.ModuleDict({"block": Doubler()}), torch.ones(1, 2, 3)
    with skip_modules(model, ["block"], members=3):
        assert [value is state for value in model["block"](state)] == [True, False, False]
        first, *rest = model["block"](hidden_states=state)
        assert first is state and rest == [None, None]
    with skip_modules(model, ["block"], members=0):
        assert model["block"](state, scale=4.0) is state


@pytest.mark.parametrize("by_name", [True, False])
def test_an_argument_is_edited_however_it_is_passed(by_name: bool) -> None:
    model, state = nn.ModuleDict({"block": Doubler()}), torch.ones(1, 1, 1)
    with edit_argument(model, ["block"], "scale", lambda scale: scale + 1):
        output = model["block"](state, scale=2.0) if by_name else model["block"](state, 2.0)
    assert output[0].item() == 6.0 and output[1:] == (3.0, None)


def test_padding_extends_every_tensor_of_a_batch_and_a_batch_without_tokens_keeps_one_column() -> None:
    batch = replace(batch_of([[1, 2]]), token_inputs={"part": torch.tensor([[5, 6]])})
    padded = batch.pad(4, token=9)
    assert padded.tokens.tolist() == [[1, 2, 9, 9]] and padded.token_inputs["part"].tolist() == [[5, 6, 0, 0]]
    assert padded.present.tolist() == padded.maskable.tolist() == [[True, True, False, False]]
    assert batch.pad(2).tokens.tolist() == [[1, 2]]
    empty = replace(batch, present=torch.zeros(1, 2, dtype=torch.bool), maskable=torch.zeros(1, 2, dtype=torch.bool))
    assert empty.trim().tokens.shape == (1, 1)
