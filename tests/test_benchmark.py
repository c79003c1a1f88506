"""A benchmark of a small model, from its plan to its board."""

import json
import pickle
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path
from typing import cast

import pytest
import torch

import diffmask as dm
from diffmask.benchmarking.benchmark_config import BenchmarkConfig, sort_overrides
from diffmask.benchmarking.compare_methods import SHARD_SIZE
from diffmask.benchmarking.forecast import ModelCalls, fit_seconds, forecast, pilot_run, within_budget
from diffmask.core.store import Store
from diffmask.errors import ConfigError, InputError, StoreError
from diffmask.experiments.executors.local import ProcessExecutor, SerialExecutor
from diffmask.experiments.experiment import MeasureNode
from diffmask.experiments.result_builder import agreement_table, describe_metrics
from diffmask.methods.diffmask.gated import DiffMask
from diffmask.methods.diffmask.surrogate import SurrogateMask
from diffmask.metrics.faithfulness import Comprehensiveness
from diffmask.metrics.sanity_checks import RandomisedModel
from diffmask.metrics.shortcuts import PlantedShortcut
from diffmask.results.benchmark_result import BenchmarkResult
from diffmask.results.records import read_jsonl
from diffmask.tasks.classification import TextClassification
from diffmask.tasks.toy import CountingTask
from diffmask.workspace.workspace import InMemoryTaskConfig, Workspace
from support.tiny_models import tiny_model, word_pieces

torch.set_num_threads(1)
METHODS = [
    "gradient",
    {"name": "diffmask", "mask": "states", "steps": 3, "batch_size": 32},
    "leave-one-out",
]


def silent(text: str) -> None:
    """Nobody is told."""


@pytest.fixture(scope="module")
def task() -> CountingTask:
    """Smaller than the one that other tests share: nothing here depends on what it learned."""
    return cast(CountingTask, dm.ToyTaskConfig(rows=500, epochs=1).load(seed=0))


@pytest.fixture(scope="module")
def folder(task: CountingTask, tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("board")
    dm.benchmark(task, METHODS, texts=40, seeds=(0, 1), out=home, say=silent)
    return home


def test_the_board_has_every_method_and_a_random_order(folder: Path) -> None:
    board = BenchmarkResult.load(folder)
    assert [method.name for method in board.methods] == ["random", "gradient", "diffmask", "leave-one-out"]
    assert [metric.name for metric in board.metrics] == ["comprehensiveness", "sufficiency"]
    assert all(set(method.estimates) == {"comprehensiveness", "sufficiency"} for method in board.methods)
    assert all(method.estimates["sufficiency"].rows == 40 for method in board.methods)
    assert len(board.comparisons) == 12
    assert len(board.curves) == 8
    assert list(board.curves[0].x) == [0.05, 0.1, 0.2, 0.5]


def test_what_is_saved_is_what_is_loaded(folder: Path, tmp_path: Path) -> None:
    board = BenchmarkResult.load(folder)
    assert BenchmarkResult.load(board.save(tmp_path).parent) == board
    assert json.loads((folder / "results.json").read_text())[0]["title"] == board.title
    with pytest.raises(InputError, match=r"results\.json is missing"):
        BenchmarkResult.load(tmp_path / "nowhere")


def test_an_estimate_is_the_mean_of_its_records(folder: Path) -> None:
    records = read_jsonl(folder / "records.jsonl")
    wanted = [r for r in records if r.method == "leave-one-out" and r.metric == "sufficiency" and r.at is None]
    board = BenchmarkResult.load(folder)
    found = next(method for method in board.methods if method.name == "leave-one-out").estimates["sufficiency"]
    assert len(wanted) == found.seeds == 2
    assert found.mean == pytest.approx(sum(record.value for record in wanted) / 2, abs=1e-6)
    assert found.low < found.mean < found.high


def test_the_board_prints_as_a_table_with_its_verdict(folder: Path) -> None:
    shown = str(BenchmarkResult.load(folder))
    assert "Comprehensiveness" in shown and "leave-one-out" in shown
    assert "On 40 texts" in shown
    assert "Check of masked texts" in shown
    assert "the fit of diffmask is not sound" in shown


def test_the_cost_is_counted_a_text(folder: Path, task: CountingTask) -> None:
    costs = {method.name: method.cost for method in BenchmarkResult.load(folder).methods}
    # The model's own answer, then a pass forward and backward.
    assert (costs["gradient"]["forwards"], costs["gradient"]["backwards"]) == (2, 1)
    batch = BenchmarkConfig.of([], None, texts=40).held_out(task).data["test"]
    assert costs["leave-one-out"]["forwards"] == pytest.approx(2 + batch.maskable.sum().item() / 40)
    assert "break_even" in costs["diffmask"] and "break_even" not in costs["leave-one-out"]


def test_a_second_run_does_nothing_again(
    folder: Path, task: CountingTask, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    before = BenchmarkResult.load(folder)
    said: list[str] = []

    def refuse(*arguments: object) -> None:
        raise AssertionError("everything was there")

    monkeypatch.setattr("diffmask.core.store.write_artefact", refuse)
    again = dm.benchmark(task, METHODS, texts=40, seeds=(0, 1), out=folder, say=said.append)
    assert said == ["forecast: everything is finished already"]
    assert again.methods == before.methods
    assert again.comparisons == before.comparisons


def test_other_texts_do_not_need_another_fit(folder: Path, task: CountingTask) -> None:
    fits = {path.name: path.stat().st_mtime_ns for path in (folder / "store" / "fit").iterdir()}
    dm.benchmark(task, METHODS, texts=32, seeds=(0, 1), out=folder, say=silent)
    assert {path.name: path.stat().st_mtime_ns for path in (folder / "store" / "fit").iterdir()} == fits


def test_parts_explained_one_by_one_are_the_whole(task: CountingTask, tmp_path: Path) -> None:
    some = BenchmarkConfig.of([], None, texts=50).held_out(task)
    method = dm.LeaveOneOut()
    whole = Workspace.over(Store(tmp_path / "whole"), some).explained(method, "test")
    parts = Workspace.over(Store(tmp_path / "parts"), some, shard_size=7).explained(method, "test")
    assert torch.allclose(whole.attribution.scores, parts.attribution.scores, atol=1e-6)
    assert parts.cost.rows == whole.cost.rows
    assert len(list((tmp_path / "parts" / "shard").iterdir())) == 8


def test_the_forecast_leaves_out_what_is_there(task: CountingTask, tmp_path: Path) -> None:
    plan = BenchmarkConfig.of(["gradient", "leave-one-out"], None, texts=40)
    workspace = Workspace.over(Store(tmp_path), plan.held_out(task), 0, SHARD_SIZE)
    first = forecast(plan, [workspace])
    assert all(value > 0 for value in first.seconds_by_name.values())
    workspace.explained(plan.methods[2], "test")
    for metric in plan.metrics:
        MeasureNode(workspace, plan.methods[2], metric).run()
    second = forecast(plan, [Workspace.over(Store(tmp_path), plan.held_out(task), 0, SHARD_SIZE)])
    assert second.seconds_by_name["leave-one-out"] == 0
    assert second.seconds_by_name["gradient"] > 0


@pytest.mark.filterwarnings("ignore::diffmask.errors.FitWarning")
def test_the_forecast_borrows_a_fit_that_is_there(
    task: CountingTask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = BenchmarkConfig.of([cast(dict[str, object], METHODS[1])], None, texts=20)
    workspace = Workspace.over(Store(tmp_path), plan.held_out(task), 0, SHARD_SIZE)
    workspace.explainer(plan.methods[1])

    def refuse(*arguments: object) -> None:
        raise AssertionError("fitted again")

    monkeypatch.setattr(DiffMask, "train", refuse)
    assert forecast(plan, [workspace]).seconds_by_name["diffmask"] > 0


def test_an_explainer_that_is_live_is_not_built_again(
    task: CountingTask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace = Workspace.over(Store(tmp_path), task)
    first = workspace.explainer(dm.LeaveOneOut())
    assert workspace.explainer(dm.LeaveOneOut()) is first
    costs = [
        workspace.explained(dm.LeaveOneOut(), split).cost.rows / len(task.data[split]) for split in ("test", "valid")
    ]
    alone = dm.LeaveOneOut().fit(task)
    alone(task.data["valid"])
    assert costs[1] == alone.cost.rows / len(task.data["valid"]), "what another split took is not counted"


def test_the_forecast_counts_a_copy_once_and_a_long_training_by_a_short_one(
    text_task: TextClassification, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A clock that only trainings move: ten seconds each.
    trained: list[int] = []
    monkeypatch.setattr("diffmask.metrics.shortcuts.FineTuning.fine_tune", lambda *arguments: trained.append(1))
    monkeypatch.setattr("diffmask.benchmarking.forecast.timed", lambda work: 10.0 * _more(trained, work))
    plan = BenchmarkConfig.of(["gradient", "leave-one-out"], [PlantedShortcut(steps=80)], texts=20)
    workspace = Workspace.over(Store(tmp_path), plan.held_out(text_task))
    assert forecast(plan, [workspace]).seconds_by_name["planted-shortcut"] == 100.0
    plan.metrics[0].extra_workspaces(workspace)[0].task()
    assert forecast(plan, [workspace]).seconds_by_name["planted-shortcut"] == 0.0


def test_an_evaluation_that_cannot_be_made_does_not_stop_the_others(task: CountingTask) -> None:
    board = dm.benchmark(task, ["gradient"], ["planted-shortcut", "comprehensiveness"], texts=10, say=silent)
    assert [metric.name for metric in board.metrics] == ["comprehensiveness", "sufficiency"]
    assert any("three tokens that occur in no text" in warning for warning in board.warnings)


@pytest.mark.filterwarnings("ignore::diffmask.errors.FitWarning")
def test_the_forecast_knows_fits_on_a_copy(task: CountingTask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A clock that only fits move: seven seconds each.
    monkeypatch.setattr("diffmask.benchmarking.forecast.timed", lambda work: 0.0)
    monkeypatch.setattr("diffmask.benchmarking.forecast.fit_seconds", lambda method, workspace: 7.0)
    plan = BenchmarkConfig.of([cast(dict[str, object], METHODS[1])], [RandomisedModel()], texts=20)
    workspace, method = Workspace.over(Store(tmp_path), plan.held_out(task)), plan.methods[1]
    workspace.explained(method, plan.split)
    assert forecast(plan, [workspace]).seconds_by_name["diffmask"] == 7.0
    (shuffled,) = plan.metrics[0].extra_workspaces(workspace)
    shuffled.explainer(method)
    assert forecast(plan, [workspace]).seconds_by_name["diffmask"] == 0.0


def _more(counted: list[int], work: Callable[[], object]) -> int:
    """How many were counted during the work."""
    before = len(counted)
    work()
    return len(counted) - before


def test_the_duration_of_a_long_fit_is_estimated_from_two_short_ones(
    task: CountingTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A clock that only fits move: two seconds, and one for each step.
    monkeypatch.setattr("diffmask.benchmarking.forecast.timed", lambda work: 2.0 + work().config.steps)
    with pilot_run(task, "test", 0) as small:
        assert fit_seconds(DiffMask(mask="states", steps=1000, batch_size=16), small) == 1002.0


def test_a_budget_is_spent_and_not_exceeded(task: CountingTask) -> None:
    diffmask = SurrogateMask(mask="states", batch_size=16)
    plan = BenchmarkConfig.of(
        ["integrated-gradients", "gradient", "leave-one-out", diffmask], None, texts=40, budget=200
    )
    some = plan.held_out(task)
    found, said = within_budget(plan, some)
    assert not said
    with pilot_run(some, "test", 0) as small:
        spent = {method.name: ModelCalls.of(small.explained(method, "test")).per_text(40) for method in found.methods}
    assert 196 < spent["integrated-gradients"] <= 200
    assert 180 < spent["surrogate-mask"] <= 202
    assert spent["gradient"] == 3


def test_a_method_over_the_budget_is_left_out_and_named(task: CountingTask) -> None:
    board = dm.benchmark(task, ["leave-one-out", "gradient"], texts=30, budget=4, say=silent)
    assert [method.name for method in board.methods] == ["random", "gradient"]
    assert "leave-one-out is left out: each text costs more than 4 rows" in board.warnings


def test_what_a_method_cannot_do_does_not_stop_the_others(task: CountingTask) -> None:
    hidden = {"name": "comprehensiveness", "mode": "attention-mask"}
    board = dm.benchmark(task, ["attention", "gradient"], ["comprehensiveness", hidden], texts=10, say=silent)
    assert [method.name for method in board.methods] == ["random", "gradient"]
    assert any(warning.startswith("attention is left out: ") for warning in board.warnings)
    assert sum("has no attention mask" in warning for warning in board.warnings) == 2
    assert board.verdict[0].startswith("No verdict: 10 texts are too few")
    assert [metric.name for metric in board.metrics] == ["comprehensiveness", "sufficiency"]


def test_two_evaluations_of_one_measure_are_told_apart() -> None:
    by_deletion = Comprehensiveness(mode="delete")
    names = describe_metrics([Comprehensiveness(), by_deletion])
    assert names[by_deletion, "sufficiency"].name == "sufficiency (mode=delete)"
    assert names[Comprehensiveness(), "sufficiency"].title == "Sufficiency"


def test_agreement_is_a_table_of_pairs() -> None:
    rising, everything = torch.arange(10.0)[None], torch.ones(1, 10, dtype=torch.bool)
    found = agreement_table([rising, -rising], everything)
    assert found["rank correlation"] == [[pytest.approx(1), pytest.approx(-1)], [pytest.approx(-1), pytest.approx(1)]]
    assert found["overlap of the highest fifth"] == [[1.0, 0.0], [0.0, 1.0]]


@pytest.fixture(scope="module")
def text_task() -> TextClassification:
    words = product(("good", "dull", "fun", "bad"), ("enjoyable", "mess", "fast"), ("loved", "hated", "enjoyed"))
    texts = [(f"The film is {one}, not {other} - I {verb} it!", n % 3) for n, (one, other, verb) in enumerate(words)]
    return TextClassification(tiny_model("bert"), word_pieces(), train=texts, valid=texts[:9], test=texts)


@pytest.fixture(scope="module")
def text_board(text_task: TextClassification) -> BenchmarkResult:
    methods = ["gradient", {"name": "surrogate-mask", "steps": 2, "batch_size": 8}]
    return dm.benchmark(text_task, methods, texts=31, say=silent)


def test_texts_have_words_gaps_and_a_score_a_word(text_board: BenchmarkResult) -> None:
    assert len(text_board.texts) == 31
    text = text_board.texts[0]
    assert len(text.gaps) == len(text.words) + 1
    read = "".join(gap + word for gap, word in zip(text.gaps, [*text.words, ""], strict=True))
    assert read.startswith("The film is ") and read.endswith(" it!")
    assert "enjoyable" in {word for found in text_board.texts for word in found.words}
    assert {name: len(scores) for name, scores in text.scores.items()} == dict.fromkeys(
        ["random", "gradient", "surrogate-mask"], len(text.words)
    )
    assert len(text.by_layer["surrogate-mask"]) == len(text.layers["surrogate-mask"])
    assert text.gold in ("LABEL_0", "LABEL_1", "LABEL_2") and text.prediction.startswith("LABEL_")
    assert 1 / 3 <= text.probability <= 1


def test_the_report_is_written_where_it_can_be(text_board: BenchmarkResult, tmp_path: Path) -> None:
    assert text_board.to_html(tmp_path / "report.html").stat().st_size > 1000


def test_mistakes_stop_before_any_work(task: CountingTask) -> None:
    with pytest.raises(ConfigError, match="there is no method 'gradeint'; nearest: 'gradient'"):
        dm.benchmark(task, ["gradeint"])
    with pytest.raises(InputError, match="no split 'tset'; nearest: 'test'"):
        dm.benchmark(task, split="tset")
    with pytest.raises(ConfigError, match="texts is a whole number from 1; found 0"):
        dm.benchmark(task, texts=0)
    with pytest.raises(ConfigError, match="'diffmsak' is not compared here; nearest: 'diffmask'"):
        sort_overrides(["diffmsak.steps=3"], ["diffmask"], [])


TOY = dm.ToyTaskConfig(rows=500, epochs=1)


def measured(folder: Path) -> list[tuple[str, str, float | None, int, float, tuple[float, ...]]]:
    """Every number of a benchmark, without its cost."""
    records = read_jsonl(folder / "records.jsonl")
    return [(each.method, each.metric, each.at, each.seed, each.value, each.per_row) for each in records]


def test_processes_give_the_numbers_of_the_serial_engine_and_write_the_same_files(tmp_path: Path) -> None:
    methods = ["gradient", "leave-one-out"]
    for name, executor in (("serial", SerialExecutor()), ("processes", ProcessExecutor(workers=2))):
        dm.benchmark(TOY, methods, texts=40, seeds=(0, 1), out=tmp_path / name, executor=executor, say=silent)
    assert measured(tmp_path / "serial") == measured(tmp_path / "processes")
    for name in ("serial", "processes"):
        files = {path.name for path in (tmp_path / name).iterdir()}
        assert {
            "results.json",
            "records.jsonl",
            "summary.json",
            "manifest.json",
            "report.html",
            "logs",
            "outcomes",
        } <= files
    manifest = json.loads((tmp_path / "processes" / "manifest.json").read_text())
    assert manifest["texts"] == 40 and manifest["seeds"] == [0, 1]
    assert [method["name"] for method in manifest["experiment"]["methods"]] == ["random", *methods]
    assert BenchmarkResult.load(tmp_path / "processes").manifest == manifest


def test_a_task_in_memory_is_refused_by_executors_of_other_processes(task: CountingTask) -> None:
    with pytest.raises(ConfigError, match="cannot use a task in memory; give the task as a config"):
        dm.benchmark(task, ["gradient"], texts=10, executor=ProcessExecutor(workers=2), say=silent)


def test_a_function_that_raises_is_left_out_with_its_reason_and_the_rest_goes_on(task: CountingTask) -> None:
    def broken(model: object, batch: object) -> object:
        raise ArithmeticError("no such score")

    result = dm.benchmark(task, [dm.from_function(broken), "gradient"], texts=10, say=silent)
    assert [method.name for method in result.methods] == ["random", "gradient"]
    assert any("broken is left out: " in warning and "no such score" in warning for warning in result.warnings)


def test_a_worker_refuses_a_model_that_changed_since_the_run_began(tmp_path: Path) -> None:
    config = InMemoryTaskConfig.of(TOY.load(seed=0), source=partial(TOY.load, seed=1))
    sent = pickle.loads(pickle.dumps(Workspace(Store(tmp_path), config, 0)))
    with pytest.raises(StoreError, match="but the run began with"):
        sent.task()
