"""Every engine gives the same records, tries again, goes on without what fails, and survives its workers."""

import io
import logging
import pickle
from pathlib import Path

import pytest
from rich.console import Console

from diffmask.errors import ConfigError
from diffmask.experiments.executors.executor import Executor, RunResult
from diffmask.experiments.executors.local import ProcessExecutor, SerialExecutor, make_executor
from diffmask.experiments.executors.progress_view import LiveView, render_progress
from diffmask.experiments.executors.schedule import MAX_WORKER_DEATHS, NodeSchedule
from diffmask.workspace.node import Node
from support.nodes import Dies, DiesOnce, Meets, Number, Raises, RaisesOnce, made, workspace_in

ENGINES = [SerialExecutor(), ProcessExecutor(workers=2)]
every_engine = pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: type(engine).__name__)


def values(ran: RunResult) -> dict[str, float]:
    return {record.metric: record.value for record in ran.records}


def failures(ran: RunResult) -> dict[str, str]:
    return {failure.node.label: failure.why for failure in ran.failures}


def diamond(folder: Path, second: type[Number] = Number) -> list[Node]:
    """1 <- 2, 1 <- 3, (2, 3) <- 4, and 5 by itself; the second may make trouble."""
    workspace = workspace_in(folder)
    one = Number(workspace, 1)
    two, three = second(workspace, 2, (one,)), Number(workspace, 3, (one,))
    return [one, two, three, Number(workspace, 4, (two, three)), Number(workspace, 5)]


ALL = {"1": 1.0, "2": 3.0, "3": 4.0, "4": 11.0, "5": 5.0}


@every_engine
def test_every_node_is_run_once_and_records_come_in_the_order_of_the_graph(engine: Executor, tmp_path: Path) -> None:
    ran = engine.run(diamond(tmp_path), tmp_path)
    assert values(ran) == ALL
    assert [record.metric for record in ran.records] == list(ALL)
    assert made(tmp_path) == [1, 2, 3, 4, 5]


@every_engine
def test_a_second_run_runs_nothing(engine: Executor, tmp_path: Path) -> None:
    first = engine.run(diamond(tmp_path), tmp_path)
    assert engine.run(diamond(tmp_path), tmp_path) == first
    assert made(tmp_path) == [1, 2, 3, 4, 5]


@every_engine
def test_what_fails_once_is_tried_again(engine: Executor, tmp_path: Path) -> None:
    ran = engine.run(diamond(tmp_path, RaisesOnce), tmp_path)
    assert values(ran) == ALL and not ran.failures


@every_engine
def test_what_keeps_failing_is_left_out_with_its_log_and_the_rest_goes_on(
    engine: Executor, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    nodes = diamond(tmp_path, Raises)
    with caplog.at_level(logging.INFO):
        ran = engine.run(nodes, tmp_path)
    assert values(ran) == {name: ALL[name] for name in ("1", "3", "5")}
    assert failures(ran)["number 2, seed 0"] == "ArithmeticError: cannot count that far"
    assert "builds on what failed: number 2" in failures(ran)["number 4, seed 0"]
    log = tmp_path / "logs" / f"{'-'.join(nodes[1].address)}.log"
    assert log.read_text().count("Traceback") == log.read_text().count("about to fail") == 3
    assert str(log) in caplog.text and "tried again" in caplog.text and "given up" in caplog.text


def test_what_failed_is_tried_anew_by_the_next_run(tmp_path: Path) -> None:
    ran = SerialExecutor().run(diamond(tmp_path, Raises), tmp_path)
    assert ran.failures
    again = SerialExecutor().run(diamond(tmp_path, Raises), tmp_path)
    assert failures(again) == failures(ran)
    assert made(tmp_path) == [1, 3, 5]


def test_a_changed_digit_in_an_outcome_is_not_reported(tmp_path: Path) -> None:
    first = SerialExecutor().run(diamond(tmp_path), tmp_path)
    (file,) = [file for file in (tmp_path / "outcomes").iterdir() if '"value": 11.0' in file.read_text()]
    file.write_text(file.read_text().replace('"value": 11.0', '"value": 17.0'))
    assert SerialExecutor().run(diamond(tmp_path), tmp_path).records == first.records


def test_the_job_of_a_worker_that_was_killed_is_done_by_another(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ran = ProcessExecutor(workers=2).run(diamond(tmp_path, DiesOnce), tmp_path)
    assert values(ran) == ALL and not ran.failures
    assert made(tmp_path) == [1, 2, 3, 4, 5]
    assert "the worker died (by SIGKILL); tried again" in caplog.text


def test_a_node_that_kills_its_workers_is_left_out_and_the_rest_goes_on(tmp_path: Path) -> None:
    ran = ProcessExecutor(workers=2).run(diamond(tmp_path, Dies), tmp_path)
    assert values(ran) == {name: ALL[name] for name in ("1", "3", "5")}
    assert failures(ran)["number 2, seed 0"] == "the worker died (by SIGKILL)"
    log = next(file for file in (tmp_path / "logs").iterdir() if "number 2" in file.read_text())
    assert log.read_text().count("number 2") == MAX_WORKER_DEATHS


def test_nodes_that_need_nothing_of_each_other_run_at_the_same_time(tmp_path: Path) -> None:
    workspace = workspace_in(tmp_path)
    ran = ProcessExecutor(workers=2).run([Meets(workspace, 1, other=2), Meets(workspace, 2, other=1)], tmp_path)
    assert values(ran) == {"1": 1.0, "2": 2.0}


def test_a_node_that_cannot_travel_fails_alone(tmp_path: Path) -> None:
    class Local(Number):
        pass

    ran = ProcessExecutor(workers=2).run(
        [Local(workspace_in(tmp_path), 1), Number(workspace_in(tmp_path), 2)], tmp_path
    )
    assert values(ran) == {"2": 2.0}
    assert "cannot be sent to a worker" in failures(ran)["number 1, seed 0"]


def test_a_bench_travels_without_what_is_live_and_arrives_as_the_one_before(tmp_path: Path) -> None:
    workspace = workspace_in(tmp_path)
    workspace.task()
    sent = pickle.dumps(workspace)
    assert len(sent) < 1000
    arrived = pickle.loads(sent)
    assert arrived == workspace and not arrived._live
    assert pickle.loads(sent) is arrived


def test_the_drawing_shows_what_runs_what_waits_and_what_failed_and_why(tmp_path: Path) -> None:
    stream = io.StringIO()
    console = Console(file=stream, width=120)
    view = LiveView(console)
    SerialExecutor().run(diamond(tmp_path, Raises), tmp_path, view)
    assert "cannot count that far" in stream.getvalue() and "given up" in stream.getvalue()
    schedule = NodeSchedule(diamond(tmp_path))
    schedule.start(schedule.nodes[0])
    console.print(render_progress(schedule, 1))
    shown = stream.getvalue()
    assert "0 of 5 done, 1 run, 4 wait, 0 failed" in shown
    assert "runs   number 1" in shown and "waits  number 2" in shown


@pytest.mark.parametrize(
    ("name", "choices", "message"),
    [
        ("process", {}, "there is no engine 'process'; nearest: 'processes'"),
        ("serial", {"workers": 2}, "the engine 'serial' has no option 'workers'"),
        ("slurm", {"address": "tcp://x"}, "the engine 'slurm' has no option 'address'"),
    ],
)
def test_a_wrong_engine_or_option_is_refused(name: str, choices: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_executor(name, choices)


def test_options_that_are_not_given_keep_their_defaults() -> None:
    assert make_executor("processes", {"workers": 3, "queue": None}) == ProcessExecutor(workers=3)
