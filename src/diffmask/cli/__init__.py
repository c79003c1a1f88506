"""The command `diffmask`: one thin module a verb; no logic here, and nothing heavy until a verb runs."""

import sys
from typing import Annotated

import typer

from diffmask import __version__
from diffmask.cli import benchmark, demo, explain, fit, report, roar, run, train
from diffmask.cli import report as listing
from diffmask.cli import roar as analyse
from diffmask.errors import DiffMaskError

app = typer.Typer(
    name="diffmask",
    help="What does a model need, and can the explanation be believed?",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("demo")(demo.demo)
app.command("train")(train.train)
app.command("fit")(fit.fit)
app.command("explain")(explain.explain)
app.command("benchmark")(benchmark.benchmark)
app.command("run")(run.run)
app.command("roar")(roar.roar)
app.command("analyse")(analyse.analyse)
app.command("report")(report.report)
app.command("list")(listing.listing)


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
    """What does a model need, and can the explanation be believed?

    Example: diffmask run experiments/toy.yaml --out runs/toy
    """


def main() -> None:
    """Run a verb; what the package refuses is one line, not a traceback."""
    try:
        app()
    except DiffMaskError as error:
        print(f"diffmask: {error}", file=sys.stderr)
        raise SystemExit(2) from None
