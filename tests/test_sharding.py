"""A table is explained shard by shard: whole, in order, resumable, in memory that does not grow."""

import gc
import json
import sys
import threading
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

import diffmask.workspace.sharding
from diffmask.core.explainer import Explainer
from diffmask.datasets.tables import Columns
from diffmask.errors import ExtraError, InputError
from diffmask.methods.baselines import Random
from diffmask.methods.diffmask.surrogate import SurrogateMask
from diffmask.tasks.classification import TextClassification
from diffmask.workspace.sharding import explain_table
from support.tiny_models import tiny_model, word_pieces

pytestmark = pytest.mark.filterwarnings("ignore::diffmask.errors.FitWarning")

TEXTS = ["the film is good", "", "a very dull mess, but it was fun!", "enjoyable", "🙂 good"] * 5


@pytest.fixture(scope="module")
def explainer() -> Explainer:
    task = TextClassification(tiny_model("bert"), word_pieces(), train=[("good film", 1), ("bad plot", 0)] * 4)
    return SurrogateMask(steps=3, batch_size=4).fit(task)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    file = tmp_path / "texts.jsonl"
    file.write_text("".join(json.dumps({"review": text, "label": 1}) + "\n" for text in TEXTS))
    return file


COLUMNS = Columns(text_column="review")


@pytest.mark.parametrize("suffix", [".parquet", ".jsonl"])
def test_every_row_is_what_the_explainer_says_of_its_text(
    explainer: Explainer, table: Path, tmp_path: Path, suffix: str
) -> None:
    out = tmp_path / f"scores{suffix}"
    assert explain_table(explainer, table, out, COLUMNS, shard_size=4) == len(TEXTS)
    found = read(out)
    assert [row["row"] for row in found] == list(range(len(TEXTS)))
    assert [row["text"] for row in found] == TEXTS
    for row, alone in zip(found[:5], explainer(TEXTS[:5]), strict=True):
        assert row["words"] == list(alone.words)
        assert row["scores"] == pytest.approx(alone.scores.tolist(), abs=1e-5)
        assert row["prediction"] == alone.prediction.label
        assert [row["text"][start:end] for start, end in zip(row["starts"], row["ends"], strict=True)] == row["words"]
        assert alone.by_layer is not None
        assert row["needed"] == (alone.by_layer[-1] > 0.5).tolist()
    assert not list(tmp_path.glob("*.parts"))


@pytest.mark.parametrize("suffix", [".parquet", ".jsonl"])
def test_a_verified_table_has_what_was_measured_on_each_text(
    explainer: Explainer, table: Path, tmp_path: Path, suffix: str
) -> None:
    plain, verified = tmp_path / f"plain{suffix}", tmp_path / f"verified{suffix}"
    explain_table(explainer, table, plain, COLUMNS)
    explain_table(explainer, table, verified, COLUMNS, shard_size=4, verify=True)
    assert "kl" not in read(plain)[0]
    for row, alone in zip(read(verified)[:5], explainer(TEXTS[:5]), strict=True):
        assert row["enough"] == list(alone.verified.kept)
        assert row["kl"] == pytest.approx(alone.verified.kl, abs=1e-5) and row["kl"] <= explainer.config.margin  # type: ignore[union-attr]
        assert row["same_prediction"] and row["minimal"] == alone.verified.minimal


def test_a_table_begun_without_verification_is_not_continued_with_it(
    explainer: Explainer, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    out = tmp_path / "scores.jsonl"
    with monkeypatch.context() as patch:
        patch.setattr(diffmask.workspace.sharding, "explain_rows", stop)
        with pytest.raises(KeyboardInterrupt):
            explain_table(explainer, table, out, COLUMNS)
    with pytest.raises(InputError, match="another verification"):
        explain_table(explainer, table, out, COLUMNS, verify=True)


def read(file: Path) -> list[dict[str, Any]]:
    if file.suffix == ".jsonl":
        return [json.loads(line) for line in file.read_text().splitlines()]
    from pyarrow.parquet import read_table

    return read_table(file).to_pylist()


def test_a_run_that_was_killed_goes_on_where_it_was(
    explainer: Explainer, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "scores.jsonl"
    explain_table(explainer, table, tmp_path / "whole.jsonl", COLUMNS, shard_size=4)
    original, calls = diffmask.workspace.sharding.explain_rows, []

    def dies(*arguments, **named):  # type: ignore[no-untyped-def]
        calls.append(arguments[2])
        if len(calls) == 4:
            raise KeyboardInterrupt
        return original(*arguments, **named)

    monkeypatch.setattr(diffmask.workspace.sharding, "explain_rows", dies)
    with pytest.raises(KeyboardInterrupt):
        explain_table(explainer, table, out, COLUMNS, shard_size=4)
    assert not out.exists()
    explain_table(explainer, table, out, COLUMNS, shard_size=4)
    assert calls == [0, 4, 8, 12, 12, 16, 20, 24]
    assert out.read_bytes() == (tmp_path / "whole.jsonl").read_bytes()


def test_the_parts_of_another_job_are_not_mixed_in(
    explainer: Explainer, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "scores.jsonl"
    monkeypatch.setattr(
        diffmask.workspace.sharding, "explain_rows", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt)
    )
    with pytest.raises(KeyboardInterrupt):
        explain_table(explainer, table, out, COLUMNS, shard_size=4)
    other = Random().fit(explainer.task)
    with pytest.raises(InputError, match="was begun with another method"):
        explain_table(other, table, out, COLUMNS, shard_size=4)


def interrupted(explainer: Explainer, table: Path, out: Path, monkeypatch: pytest.MonkeyPatch, after: int = 2) -> None:
    """Leave a run with some finished shards of four rows."""
    original, calls = diffmask.workspace.sharding.explain_rows, []

    def dies(*arguments: Any, **named: Any) -> Any:
        calls.append(arguments[2])
        if len(calls) > after:
            raise KeyboardInterrupt
        return original(*arguments, **named)

    with monkeypatch.context() as patch:
        patch.setattr(diffmask.workspace.sharding, "explain_rows", dies)
        with pytest.raises(KeyboardInterrupt):
            explain_table(explainer, table, out, COLUMNS, shard_size=4)


def test_a_run_does_not_resume_with_other_weights_of_the_same_method(
    explainer: Explainer, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "scores.jsonl"
    interrupted(explainer, table, out, monkeypatch)
    assert explainer.config is not None
    other = explainer.config.fit(explainer.task, seed=1)
    with pytest.raises(InputError, match=r"was begun with another explainer weights; .* --force"):
        explain_table(other, table, out, COLUMNS, shard_size=4)
    explain_table(other, table, out, COLUMNS, shard_size=4, force=True)
    explain_table(other, table, tmp_path / "whole.jsonl", COLUMNS, shard_size=4)
    assert out.read_bytes() == (tmp_path / "whole.jsonl").read_bytes()


def test_a_run_does_not_resume_with_an_edited_table_of_the_same_size(
    explainer: Explainer, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "scores.jsonl"
    interrupted(explainer, table, out, monkeypatch)
    table.write_text(table.read_text().replace("good", "evil", 1))
    with pytest.raises(InputError, match="was begun with another table"):
        explain_table(explainer, table, out, COLUMNS, shard_size=4)


def test_a_damaged_shard_is_never_merged(
    explainer: Explainer, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "scores.jsonl"
    explain_table(explainer, table, tmp_path / "whole.jsonl", COLUMNS, shard_size=4)
    interrupted(explainer, table, out, monkeypatch)
    shard, *_ = sorted((tmp_path / "scores.jsonl.parts" / "shard").glob("*/tensors.safetensors"))
    content = bytearray(shard.read_bytes())
    content[-20] ^= 1
    shard.write_bytes(bytes(content))
    explain_table(explainer, table, out, COLUMNS, shard_size=4)
    assert out.read_bytes() == (tmp_path / "whole.jsonl").read_bytes(), "the shard was explained again"


@pytest.mark.parametrize("content", ["", "{", "[1]"])
def test_a_damaged_job_file_is_refused_with_its_remedy(
    explainer: Explainer, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str
) -> None:
    out = tmp_path / "scores.jsonl"
    interrupted(explainer, table, out, monkeypatch)
    (tmp_path / "scores.jsonl.parts" / "job.json").write_text(content)
    with pytest.raises(InputError, match=r"job\.json is damaged.*--force"):
        explain_table(explainer, table, out, COLUMNS, shard_size=4)
    assert explain_table(explainer, table, out, COLUMNS, shard_size=4, force=True) == len(TEXTS)


def test_a_finished_table_is_not_overwritten_unless_forced(explainer: Explainer, table: Path, tmp_path: Path) -> None:
    out = tmp_path / "scores.jsonl"
    explain_table(explainer, table, out, COLUMNS)
    before = out.stat().st_mtime_ns
    with pytest.raises(InputError, match=r"exists already.*--force"):
        explain_table(explainer, table, out, COLUMNS)
    assert out.stat().st_mtime_ns == before
    explain_table(explainer, table, out, COLUMNS, force=True)
    assert out.stat().st_mtime_ns != before


def test_of_two_runs_on_one_table_the_second_waits(
    explainer: Explainer, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "scores.jsonl"
    original, refused = diffmask.workspace.sharding.explain_rows, list[str]()

    def second() -> None:
        try:
            explain_table(explainer, table, out, COLUMNS, shard_size=4)
        except InputError as error:
            refused.append(str(error))

    thread = threading.Thread(target=second)

    def starts_another(*arguments: Any, **named: Any) -> Any:
        if not thread.ident:
            thread.start()
        return original(*arguments, **named)

    monkeypatch.setattr(diffmask.workspace.sharding, "explain_rows", starts_another)
    assert explain_table(explainer, table, out, COLUMNS, shard_size=4) == len(TEXTS)
    thread.join()
    assert len(read(out)) == len(TEXTS)
    assert len(refused) == 1 and "exists already" in refused[0]


def test_a_table_repaired_after_a_row_could_not_be_read_is_explained(explainer: Explainer, tmp_path: Path) -> None:
    table, out = tmp_path / "texts.jsonl", tmp_path / "scores.jsonl"
    table.write_text('{"review": "good"}\n{"text": "good"}\n')
    with pytest.raises(InputError, match="row 1"):
        explain_table(explainer, table, out, COLUMNS, shard_size=1)
    table.write_text('{"review": "good"}\n{"review": "good"}\n')
    assert explain_table(explainer, table, out, COLUMNS, shard_size=1) == 2


def test_a_suffix_that_is_not_written_is_refused_before_anything_is_done(
    explainer: Explainer, table: Path, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=r"written as \.parquet or \.jsonl"):
        explain_table(explainer, table, tmp_path / "scores.xlsx", COLUMNS)


def test_what_writes_the_table_is_loaded_before_anything_is_done(
    explainer: Explainer, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(ExtraError, match="pip install pyarrow"):
        explain_table(explainer, table, tmp_path / "scores.parquet", COLUMNS)
    assert not list(tmp_path.glob("*.parts"))


def test_a_row_that_cannot_be_read_is_named(explainer: Explainer, tmp_path: Path) -> None:
    table = tmp_path / "bad.jsonl"
    table.write_text('{"review": "good"}\n{"text": "good"}\n')
    with pytest.raises(InputError, match="row 1: there is no column 'review'"):
        explain_table(explainer, table, tmp_path / "scores.jsonl", COLUMNS)


def peak_bytes(explainer: Explainer, rows: int, folder: Path) -> int:
    """Most memory that Python held while it explained `rows` texts of 30 words, whoever took it: ask more than once."""
    table = folder / f"{rows}.jsonl"
    table.write_text((json.dumps({"review": "good film , " * 10}) + "\n") * rows)
    gc.collect()
    tracemalloc.start()
    explain_table(explainer, table, folder / f"{rows}.out.jsonl", COLUMNS, shard_size=10, force=True)
    found = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return found


def test_memory_does_not_grow_with_the_table(explainer: Explainer, tmp_path: Path) -> None:
    peak_bytes(explainer, 10, tmp_path)
    few, many = (min(peak_bytes(explainer, rows, tmp_path) for _ in range(3)) for rows in (20, 120))
    kept = 100 * len(json.dumps(read(tmp_path / "20.out.jsonl")[0]))
    assert many - few < kept / 3, "the scores of a hundred more texts are not in memory"


def test_labels_are_copied_to_the_table_and_need_not_be_those_of_the_model(
    explainer: Explainer, tmp_path: Path
) -> None:
    table, out = tmp_path / "texts.jsonl", tmp_path / "scores.jsonl"
    labels = ["another label", 17, None, "1"]
    table.write_text("".join(json.dumps({"review": "good film", "label": label}) + "\n" for label in labels))
    assert explain_table(explainer, table, out, COLUMNS) == 4
    found = read(out)
    assert [row["label"] for row in found] == ["another label", "17", None, "1"]
    assert all(row["scores"] == found[0]["scores"] for row in found)


def test_a_text_that_was_decoded_wrongly_is_named_with_its_file_and_row(explainer: Explainer, tmp_path: Path) -> None:
    table = tmp_path / "texts.jsonl"
    table.write_text('{"review": "good"}\n' * 3 + '{"review": "good \\ud800 film"}\n')
    with pytest.raises(InputError, match=r"texts\.jsonl, row 3: the character at position 5 is half of a surrogate"):
        explain_table(explainer, table, tmp_path / "scores.jsonl", COLUMNS, shard_size=2)
