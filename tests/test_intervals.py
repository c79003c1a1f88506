"""Intervals against SciPy; summaries against arithmetic."""

import math
from pathlib import Path

import pytest
from scipy import stats

from diffmask.results.intervals import t_interval
from diffmask.results.records import Record, read_jsonl, summarise, write_jsonl


def record(value: float, seed: int = 0, **more: object) -> Record:
    fields = {"task": "t", "method": "m", "site": "s", "metric": "x", "value": value, "seed": seed, **more}
    return Record(**fields)  # type: ignore[arg-type]


@pytest.mark.parametrize("count", [2, 3, 10, 17, 40])
def test_the_interval_is_student_s(count: int) -> None:
    values = [math.sin(k) for k in range(count)]
    low, high = stats.t.interval(0.95, count - 1, loc=sum(values) / count, scale=stats.sem(values))
    assert t_interval(values) == pytest.approx((low, high), abs=0.02 if count > 17 else 1e-3)


def test_several_seeds_are_one_entry_with_their_interval() -> None:
    (entry,) = summarise([record(1.0, 0), record(2.0, 1), record(3.0, 2)])
    assert (entry["mean"], entry["seeds"], entry["median"], entry["worst"]) == (2.0, 3, 2.0, 3.0)
    assert entry["interval"] == pytest.approx([2 - 4.303 / math.sqrt(3), 2 + 4.303 / math.sqrt(3)], abs=1e-3)
    assert entry["interval_over"] == "seeds"


def test_one_seed_has_its_interval_over_rows() -> None:
    (entry,) = summarise([record(1.0, rows=100, deviation=2.0)])
    assert entry["interval"] == pytest.approx([1 - 0.392, 1 + 0.392])
    assert entry["interval_over"] == "rows"


def test_an_infinite_value_stays_one_and_survives_the_file(tmp_path: Path) -> None:
    (entry,) = summarise([record(math.inf), record(math.inf, 1)])
    assert entry["mean"] == math.inf
    write_jsonl(tmp_path / "r.jsonl", [record(math.inf), record(0.5)])
    assert '"value": "inf"' in (tmp_path / "r.jsonl").read_text()
    assert [found.value for found in read_jsonl(tmp_path / "r.jsonl")] == [math.inf, 0.5]
