"""The command line: it teaches, lists, runs, reports, and refuses in one line."""

import contextlib
import io
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from diffmask.cli import app, main
from diffmask.core.lock import locked
from support.small import SMALL

runner = CliRunner()
pytestmark = pytest.mark.filterwarnings("ignore::diffmask.errors.FitWarning")


@pytest.mark.parametrize("verb", ["run", "report", "list"])
def test_every_verb_shows_an_example(verb: str) -> None:
    shown = runner.invoke(app, [verb, "--help"])
    assert shown.exit_code == 0
    assert f"diffmask {verb}" in shown.output


def test_the_version_is_printed() -> None:
    assert runner.invoke(app, ["--version"]).output.startswith("diffmask 0.")


@pytest.mark.parametrize(("kind", "member"), [("methods", "diffmask"), ("tasks", "toy"), ("metrics", "fidelity")])
def test_the_listing_names_what_there_is(kind: str, member: str) -> None:
    assert member in runner.invoke(app, ["list", kind]).output
    listed = json.loads(runner.invoke(app, ["list", kind, "--json"]).output)
    assert member in [entry["name"] for entry in listed]
    assert all(entry["summary"] for entry in listed)


def test_the_listing_without_a_kind_lists_all() -> None:
    shown = runner.invoke(app, ["list"]).output
    assert all(word in shown for word in ("methods:", "tasks:", "metrics:", "leave-one-out", "toy", "fidelity"))


def test_a_run_writes_its_files_and_the_report_can_be_made_again(tmp_path: Path) -> None:
    file = tmp_path / "small.yaml"
    file.write_text(yaml.safe_dump(SMALL))
    out = tmp_path / "run"
    ran = runner.invoke(app, ["run", str(file), "--out", str(out), "seeds=[0]"])
    assert ran.exit_code == 0, ran.output
    assert "js to truth" in ran.output
    page = (out / "report.html").read_text()
    (out / "report.html").unlink()
    assert runner.invoke(app, ["report", str(out)]).exit_code == 0
    assert (out / "report.html").read_text() == page


def test_a_dry_run_prints_the_graph_and_does_nothing(tmp_path: Path) -> None:
    file = tmp_path / "small.yaml"
    file.write_text(yaml.safe_dump(SMALL))
    shown = runner.invoke(app, ["run", str(file), "--out", str(tmp_path / "run"), "--dry-run"])
    assert shown.exit_code == 0, shown.output
    assert shown.output.count("missing") == 26
    assert "done: 0 of 2 trainings, 0 of 8 fits, 0 of 16 measurements" in shown.output
    assert not (tmp_path / "run").exists()


def test_a_run_of_which_a_part_fails_ends_with_an_error_after_its_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object) -> None:
        raise ArithmeticError("no such erasure")

    monkeypatch.setattr("diffmask.methods.leave_one_out.ExactErasure.build", refuse)
    file = tmp_path / "small.yaml"
    file.write_text(yaml.safe_dump({**SMALL, "methods": ["random", "exact-erasure"]}))
    ran = runner.invoke(app, ["run", str(file), "--out", str(tmp_path / "run"), "seeds=[0]"])
    assert ran.exit_code == 1
    assert "js to truth" in ran.output
    assert "ArithmeticError: no such erasure" in ran.output


def test_a_mistake_is_one_line_on_standard_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["diffmask", "report", str(tmp_path)])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 2
    shown = capsys.readouterr()
    assert "results.json is missing" in shown.err
    assert shown.err.count("\n") == 1


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Python's own handler of Ctrl-C: a process that a shell starts in the background ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_stopped_command_says_in_one_line_how_to_go_on_and_releases_its_locks(
    number: int, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def work(*_: object, **__: object) -> None:
        with locked(tmp_path / "lock"):
            os.kill(os.getpid(), number)
            time.sleep(5)

    monkeypatch.setattr("diffmask.experiments.experiment.Experiment.read", work)
    monkeypatch.setattr("sys.argv", ["diffmask", "run", "small.yaml", "--out", str(tmp_path / "run")])
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == code
    assert capsys.readouterr().err.splitlines() == [
        "diffmask: stopped; start the same command again to go on from what is finished"
    ]
    assert not (tmp_path / "lock").exists()
    assert signal.getsignal(signal.SIGTERM) is before


class SlowToDelete:
    """Receives a signal in its destructor, where Python drops every exception."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __del__(self) -> None:
        os.kill(os.getpid(), self.number)
        time.sleep(0.01)


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_stops_a_command_also_in_a_destructor_and_while_its_errors_are_redirected(
    number: int, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def work(*_: object, **__: object) -> None:
        with contextlib.redirect_stderr(io.StringIO()):
            SlowToDelete(number)
            time.sleep(5)
            pytest.fail("the command went on")

    monkeypatch.setattr("diffmask.experiments.experiment.Experiment.read", work)
    monkeypatch.setattr("sys.argv", ["diffmask", "run", "small.yaml", "--out", "run"])
    hook = sys.unraisablehook
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == code and sys.unraisablehook is hook
    assert len(capsys.readouterr().err.splitlines()) == 1
