"""Long work says how far it is, in a terminal and in a log, and Ctrl-C keeps what was learned."""

import logging
import os
import subprocess
import sys
import termios
import time

import pytest

from diffmask.core import progress as module
from diffmask.core.explainer import Explainer
from diffmask.core.progress import (
    hidden_progress,
    keep_if_interrupted,
    progress_bar,
    silent_stage,
    stage,
    stop_at_interrupt,
)
from diffmask.errors import ConfigError
from diffmask.methods.diffmask.surrogate import SurrogateMask
from diffmask.methods.diffmask.surrogate_training import MaskedCopies
from diffmask.tasks.classification import TextClassification
from support.tiny_models import tiny_model, word_pieces


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "INTERVAL", 0.1)
    monkeypatch.setattr(module, "FORECAST_AFTER", 0.02)
    monkeypatch.setattr(module, "WORTH_FORECAST", 0.1)


@pytest.mark.usefixtures("quick")
def test_a_log_has_a_forecast_and_a_line_even_during_one_long_item(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    for index in progress_bar(range(4), "fit"):
        time.sleep(0.4 if index == 1 else 0.05)
    lines = [record.getMessage() for record in caplog.records]
    assert any("to go" in line for line in lines)
    during = [line for line in lines if line.startswith("fit: 1 of 4, ")]
    assert during and "left" in during[0]


@pytest.mark.usefixtures("quick")
def test_only_the_innermost_work_speaks_and_short_work_is_silent(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    for _ in progress_bar(range(2), "short"):
        pass
    assert not caplog.records
    with progress_bar((), "outer", 3), progress_bar((), "inner", 3):
        time.sleep(0.4)
    lines = [record.getMessage() for record in caplog.records]
    assert lines and all(line.startswith("inner: 0 of 3") for line in lines)


def test_without_logging_lines_go_to_standard_error_and_a_terminal_gets_a_bar() -> None:
    script = (
        "import time, diffmask.core.progress as p; p.INTERVAL = 0.1\n"
        "for _ in p.progress_bar(range(3), 'fit'): time.sleep(0.2)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, env=environment)
    assert "fit: 1 of 3, " in run.stderr and not run.stdout


@pytest.mark.usefixtures("quick")
def test_a_stage_says_its_name_unless_it_is_hidden_or_silent(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with stage("load the model"):
        time.sleep(0.35)
        assert [record.getMessage() for record in caplog.records][:1] == ["load the model: 0 s so far"]
        caplog.clear()
        with silent_stage():
            time.sleep(0.3)
        with hidden_progress():
            time.sleep(0.3)
        assert not caplog.records


@pytest.mark.parametrize(("options", "speaks"), [([], True), (["--quiet"], False)])
def test_a_command_speaks_before_its_first_line_also_while_it_imports(options: list[str], speaks: bool) -> None:
    script = (
        "import sys, time, diffmask.cli as cli, diffmask.core.progress as p\n"
        "p.INTERVAL, cli.app = 0.1, lambda: time.sleep(0.5)\n"
        f"sys.argv = ['diffmask', 'fit', *{options}]; cli.main()"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, env=environment)
    assert ("diffmask fit: 0 s so far" in run.stderr) == speaks


def test_the_clock_of_a_bar_moves_during_one_long_item() -> None:
    script = (
        "import time, diffmask.core.progress as p; p.INTERVAL = 0.2\n"
        "for _ in p.progress_bar(range(1), 'fit'): time.sleep(2.5)"
    )
    reader, writer = os.openpty()
    termios.tcsetwinsize(writer, (24, 80))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", script], stderr=writer, check=True, env=environment)
    shown = os.read(reader, 65_536).decode()
    os.close(writer)
    os.close(reader)
    assert "fit:   0%" in shown and "00:02<" in shown


def test_an_interrupt_ends_a_loop_only_where_that_is_wanted(caplog: pytest.LogCaptureFixture) -> None:
    with keep_if_interrupted(), stop_at_interrupt("fit", lambda: "step 3 of 9"):
        raise KeyboardInterrupt
    assert "fit: stopped at step 3 of 9. What was learned is kept" in caplog.text
    with pytest.raises(KeyboardInterrupt), stop_at_interrupt("fit", lambda: ""):
        raise KeyboardInterrupt


ROWS = [("the film is good", 1), ("a very dull mess , but it was fun !", 2), ("enjoyable", 0)] * 8


def fit(**options: object) -> Explainer:
    task = TextClassification(tiny_model("bert"), word_pieces(), train=ROWS)
    return SurrogateMask(batch_size=8, **options).fit(task)  # type: ignore[arg-type]


@pytest.mark.filterwarnings("ignore::diffmask.errors.FitWarning")
def test_an_interrupted_fit_can_explain(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    query, calls = MaskedCopies.query_model, []

    def interrupted(self: MaskedCopies, batch: object) -> object:
        calls.append(batch)
        if len(calls) == 8:
            raise KeyboardInterrupt
        return query(self, batch)  # type: ignore[arg-type]

    monkeypatch.setattr(MaskedCopies, "query_model", interrupted)
    found = fit(steps=500)("the film is good")
    assert found.verified is not None
    assert "surrogate-mask" in caplog.text and "What was learned is kept" in caplog.text
    assert len(calls) == 8


@pytest.mark.filterwarnings("ignore::diffmask.errors.FitWarning")
def test_a_time_budget_bounds_the_fit() -> None:
    start = time.monotonic()
    fit(budget="2s")
    assert time.monotonic() - start < 20  # 500 steps would be a minute; the machine may be busy
    with pytest.raises(ConfigError, match="'soon' is no budget; write '5min'"):
        SurrogateMask(budget="soon")
