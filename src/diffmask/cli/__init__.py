"""The command `diffmask`: one thin module per verb. Heavy packages are imported when a verb runs."""

import os
import signal
import sys
import threading
from contextlib import AbstractContextManager
from inspect import cleandoc
from typing import Annotated, Any, NoReturn

import typer

from diffmask import __version__
from diffmask.cli import aggregate, benchmark, compare, demo, explain, fit, needs, report, roar, run, train
from diffmask.core.progress import hidden_progress, stage
from diffmask.errors import DiffMaskError

app = typer.Typer(
    name="diffmask",
    help="Explain NLP models, and measure which explanations can be believed.",
    no_args_is_help=True,
    add_completion=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("demo")(demo.demo_command)
app.command("train")(train.train_command)
app.command("fit")(fit.fit_command)
app.command("explain")(explain.explain_command)
app.command("aggregate")(aggregate.aggregate_command)
app.command("needs")(needs.needs_command)
app.command("benchmark")(benchmark.benchmark_command)
app.command("compare")(compare.compare_command)
app.command("run")(run.run_command)
app.command("roar")(roar.roar_command)
app.command("analyse")(roar.analyse_command)
app.command("report")(report.report_command)
app.command("list")(report.list_command)

for _command in app.registered_commands:
    # The terminal wraps the lines of a paragraph, not the source code.
    _paragraphs = cleandoc(getattr(_command.callback, "__doc__", None) or "").split("\n\n")
    _command.help = "\n\n".join(" ".join(paragraph.split()) for paragraph in _paragraphs)


def _version(wanted: bool | None) -> None:
    if wanted:
        print(f"diffmask {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool | None, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = None,
) -> None:
    """Explain NLP models, and measure which explanations can be believed.

    Example: diffmask run experiments/toy.yaml --out runs/toy
    """


EXTRAS = {
    "transformers": "text",
    "huggingface_hub": "text",
    "pyarrow": "text",
    "datasets": "hub",
    "captum": "captum",
    "matplotlib": "plot",
    "distributed": "cluster",
    "dask_jobqueue": "cluster",
    "gguf": "lm",
    "spacy": "tags",
}
"""Optional package by the extra that installs it."""


STOPPED = "stopped; start the same command again to go on from what is finished"
INTERRUPTED, TERMINATED = 130, 143
"""Exit codes after Ctrl-C and SIGTERM, as of a shell."""


def main() -> None:
    """Run a command; an error of ours, of a file or of a missing package is one line on standard error."""
    handler, hook = signal.signal(signal.SIGTERM, _terminate), sys.unraisablehook
    sys.unraisablehook = _send_again
    try:
        with _heartbeat():
            app()
    except ModuleNotFoundError as error:
        extra = EXTRAS.get((error.name or "").partition(".")[0])
        if extra is None:
            raise
        _exit(f"this command needs {error.name}: pip install 'diffmask[{extra}]'")
    except (DiffMaskError, OSError) as error:
        _exit(str(error))
    except (KeyboardInterrupt, typer.Abort):
        _exit(STOPPED, INTERRUPTED)
    except SystemExit as end:
        if end.code in (INTERRUPTED, TERMINATED):  # typer has caught Ctrl-C, and says nothing
            _exit(STOPPED, end.code)
        raise
    finally:
        sys.unraisablehook = hook
        signal.signal(signal.SIGTERM, handler)


def _heartbeat() -> AbstractContextManager[object]:
    """Return a stage around the whole command: imports and loading are no silence either."""
    words = sys.argv[1:]
    if {"-q", "--quiet"} & set(words):
        return hidden_progress()
    command = next((word for word in words if not word.startswith("-")), "")
    return stage(f"diffmask {command}".strip())


def _terminate(number: int, frame: object) -> NoReturn:
    """End on SIGTERM as on Ctrl-C, with locks released and temporary files removed; a fit is not kept."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a second one ends the process at once
    raise SystemExit(TERMINATED)  # `main` prints: here, standard error may be redirected or half written


def _send_again(unraisable: Any) -> None:
    """Send a signal again whose exception Python has dropped, as it does in a destructor: the command would go on."""
    if not isinstance(unraisable.exc_value, KeyboardInterrupt | SystemExit):
        sys.__unraisablehook__(unraisable)
        return
    number = signal.SIGINT
    if isinstance(unraisable.exc_value, SystemExit):
        number = signal.SIGTERM
        signal.signal(number, _terminate)
    # Later, because an exception that is raised within this hook is dropped too.
    threading.Timer(0.02, os.kill, (os.getpid(), number)).start()


def _exit(message: str, code: int = 2) -> NoReturn:
    print(f"diffmask: {' '.join(message.splitlines())}", file=sys.stderr)
    raise SystemExit(code)
