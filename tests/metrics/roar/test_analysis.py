"""Analyses of a ROAR curve on a real BiLSTM of a few stories."""

import csv
import inspect
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from diffmask.cli import app
from diffmask.cli.roar import analyse_command
from diffmask.core.store import Store
from diffmask.errors import InputError, TaskError
from diffmask.metrics.roar.analysis import ANALYSES, SHARES, RoarAnalysis
from diffmask.metrics.roar.roar_metric import roar_method
from diffmask.metrics.roar.step import RoarStep
from diffmask.metrics.roar.synthetic import falls_after
from diffmask.report.result_tables import ResultTable
from diffmask.tasks.bilstm.bilstm_config import BiLSTMConfig
from diffmask.workspace.workspace import Workspace
from support.transformer import TransformerTask

SMALL = BiLSTMConfig(data="babi-1", rows=80, epochs=1)
METHODS = (roar_method("attention"), roar_method("times-input-gradient"))


@pytest.fixture(scope="module")
def analysis(tmp_path_factory: pytest.TempPathFactory) -> RoarAnalysis:
    return RoarAnalysis(Workspace(Store(tmp_path_factory.mktemp("store")), SMALL, seed=0), METHODS, rows=30)


def test_the_data_are_counted_and_the_model_is_scored(analysis: RoarAnalysis) -> None:
    table = analysis.data()
    facts = dict(zip(table.column("babi-1"), table.column("value"), strict=True))
    task = analysis.task()
    assert facts["train rows"] == 80 and facts["words in the vocabulary"] == len(task.vocabulary)
    assert facts["test accuracy"] == task.score(task.data["test"])


def test_more_tokens_hold_a_larger_share_of_the_scores(analysis: RoarAnalysis) -> None:
    table = analysis.sparsity()
    assert table.headings == ("% of tokens", "Attention", "Input times gradient")
    assert table.column("% of tokens") == list(SHARES)
    for heading in table.headings[1:]:
        held = table.column(heading)
        assert held == sorted(held) and held[0] > 0.1 and held[-1] <= 1.0


def test_the_more_is_masked_the_more_answers_are_gone(analysis: RoarAnalysis) -> None:
    table = analysis.answers()
    assert table.headings == ("% of tokens", "Attention", "Input times gradient")
    for heading in table.headings[1:]:
        gone = table.column(heading)
        assert gone == sorted(gone) and gone[0] < gone[-1]


def test_an_answer_is_gone_when_its_own_word_is_masked(analysis: RoarAnalysis, monkeypatch: pytest.MonkeyPatch) -> None:
    task = analysis.task()
    test = task.data["test"]
    place = [task.vocabulary.words.index(task.names[target]) for target in test.target.tolist()]
    evidence = test.token_inputs["evidence"].bool()
    its_own = torch.stack([row == word for row, word in zip(test.tokens, place, strict=True)]) & evidence
    monkeypatch.setattr(RoarStep, "masks", lambda _: {"test": its_own})
    assert set(analysis.answers().column("Attention")) == {1.0}
    monkeypatch.setattr(RoarStep, "masks", lambda _: {"test": ~its_own})
    assert set(analysis.answers().column("Attention")) == {0.0}


def test_ranks_converge_with_more_points(analysis: RoarAnalysis) -> None:
    moved = analysis.riemann().column("moved")
    assert moved[0] > moved[-1] >= 0


def test_fully_masked_texts_are_compared_with_the_most_frequent_class(analysis: RoarAnalysis) -> None:
    target = analysis.task().data["train"].target
    likeliest = target.bincount().argmax()
    share = float((analysis.task().data["test"].target == likeliest).double().mean())
    assert analysis.lengths().column("score")[1] == pytest.approx(share)


def test_leaks_are_measured_for_every_method(analysis: RoarAnalysis) -> None:
    table = replace(analysis, k=50).leaks()
    assert table.column("method") == ["Attention", "Input times gradient"]
    for heading in table.headings[1:]:
        assert all(0 <= value <= 1 for value in table.column(heading))


def test_the_example_masks_more_and_more(analysis: RoarAnalysis) -> None:
    none, some, more = (line.count("[MASK]") for line in analysis.example().splitlines()[1:-1])
    assert none == 0 < some < more


def test_the_synthetic_table_counts_the_features_before_each_curve_falls(analysis: RoarAnalysis) -> None:
    table = analysis.synthetic()
    assert "recursive roar 4" in table.title and falls_after(table.column("roar")) == 10


def test_only_the_requested_analyses_run_cheapest_first(analysis: RoarAnalysis) -> None:
    assert [table.name for table in analysis.tables(["sparsity", "data"])] == ["data", "sparsity"]
    with pytest.raises(InputError, match=r"no analysis 'sparcity'.*sparsity"):
        list(analysis.tables(["sparcity"]))


def test_the_command_finds_out_all_there_is() -> None:
    given = inspect.signature(analyse_command).parameters["findings"].default
    assert tuple(given.split(",")) == ANALYSES


def test_a_task_of_another_kind_is_refused(tmp_path: Path) -> None:
    torch.manual_seed(0)
    other = Workspace.over(Store(tmp_path), TransformerTask(), seed=0)
    with pytest.raises(TaskError, match="not a BiLSTM task"):
        RoarAnalysis(other, METHODS).data()


def test_a_table_is_written_with_every_digit_and_drawn(tmp_path: Path) -> None:
    table = ResultTable(name="f", title="t", headings=("x", "y_1"), rows=((1, 1 / 3), (2, 0.5)), curves=("y_1",))
    files = table.write(tmp_path)
    assert [file.name for file in files] == ["f.csv", "f.tex", "f.png", "f.pdf"]
    with files[0].open() as lines:
        assert list(csv.reader(lines)) == [["x", "y_1"], ["1", str(1 / 3)], ["2", "0.5"]]
    assert r"1 & 0.333 \\" in files[1].read_text() and r"y\_1" in files[1].read_text()
    assert all(file.stat().st_size > 1000 for file in files[2:])


def test_the_command_prints_and_writes_every_table(tmp_path: Path) -> None:
    given = [
        "analyse",
        "--importance-measures",
        "attention",
        "--rows",
        "20",
        "--out",
        str(tmp_path),
        "rows=60",
        "epochs=1",
    ]
    shown = CliRunner().invoke(app, given, catch_exceptions=False)
    assert shown.exit_code == 0 and "Leakage of labels through the masks of 20 %" in shown.output
    names = {file.name for file in (tmp_path / "analyses").iterdir()}
    assert {
        "data.csv",
        "synthetic.png",
        "sparsity.pdf",
        "answers.csv",
        "riemann.tex",
        "lengths.csv",
        "leaks.csv",
        "example.tex",
    } <= names
