"""Options that several commands share, checks of output paths, and logging."""

import json
import logging
import tempfile
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields, is_dataclass
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from diffmask.errors import ConfigError, InputError

if TYPE_CHECKING:
    from diffmask.experiments.executors.executor import Executor
    from diffmask.experiments.executors.progress_view import ProgressView

CLUSTER = "Clusters"
TRAINING_DATA = (
    "Name of a data set ('rotten-tomatoes', 'short-reviews', 'imdb-reviews', sst2:FOLDER, sst5:FOLDER, snli:FOLDER, "
    "squad:FOLDER, mind:FOLDER, hub:OWNER/NAME) or path of a table."
)

Model = Annotated[str, typer.Option(help="Folder or hub id of the model.")]
TaskName = Annotated[
    str | None,
    typer.Option(
        "--task",
        help="text-classification, question-answering, token-classification, text-generation or recommender; by "
        "default recognised from the model.",
    ),
]
Data = Annotated[str, typer.Option(help=TRAINING_DATA)]
TextColumn = Annotated[str | None, typer.Option(help="Column of the texts; by default 'text'.")]
PairColumn = Annotated[str | None, typer.Option(help="Column of the second texts of pairs; by default none.")]
LabelColumn = Annotated[str | None, typer.Option(help="Column of the labels; by default 'label'.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print the result only.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Print debug messages of the package too.")]
Device = Annotated[str | None, typer.Option(help="Device of the model, such as cuda; by default the CPU.")]
Force = Annotated[bool, typer.Option("--force", help="Replace a finished output, or start an unfinished one again.")]
TrustRemoteCode = Annotated[
    bool,
    typer.Option("--trust-remote-code", help="Run Python code of the model's repository."),
]
Seed = Annotated[int, typer.Option(min=0, help="Random seed.")]
EngineName = Annotated[str, typer.Option(help="Executor of the work: serial, processes, dask or slurm.")]
Workers = Annotated[
    int | None, typer.Option(min=1, help="Number of worker processes on this machine; by default one per core.")
]
SchedulerAddress = Annotated[
    str | None, typer.Option(help="dask: address of a running scheduler, tcp://HOST:PORT.", rich_help_panel=CLUSTER)
]
Queue = Annotated[str | None, typer.Option(help="slurm: partition.", rich_help_panel=CLUSTER)]
JobMemory = Annotated[str | None, typer.Option(help="slurm: memory per job, such as 8GB.", rich_help_panel=CLUSTER)]
JobCount = Annotated[
    int | None, typer.Option(min=1, help="slurm: number of simultaneous jobs.", rich_help_panel=CLUSTER)
]
Walltime = Annotated[str | None, typer.Option(help="slurm: time limit per job, HH:MM:SS.", rich_help_panel=CLUSTER)]
Interface = Annotated[
    str | None, typer.Option(help="slurm: network interface of the scheduler, such as ib0.", rich_help_panel=CLUSTER)
]


def overrides(help_text: str) -> Any:
    """Return the argument that takes `key=value` overrides."""
    return typer.Argument(metavar="[KEY=VALUE]...", help=help_text)


@dataclass(frozen=True)
class TextColumns:
    """Columns of the texts of a table."""

    text_column: TextColumn = None
    pair_column: PairColumn = None

    def with_overrides(self, choices: list[str] | None) -> list[str]:
        """Return the overrides together with the columns that were given as options.

        >>> TextColumns(text_column="review").with_overrides(["rows=9"])
        ['rows=9', 'text_column="review"']
        """
        given = [f"{name}={json.dumps(column)}" for name, column in asdict(self).items() if column is not None]
        return [*(choices or []), *given]


@dataclass(frozen=True)
class LabelledColumns(TextColumns):
    """Columns of the texts and labels of a table."""

    label_column: LabelColumn = None


@dataclass(frozen=True)
class ExecutorOptions:
    """Executor of the work and the options of a cluster."""

    engine: EngineName = "serial"
    workers: Workers = None
    address: SchedulerAddress = None
    queue: Queue = None
    memory: JobMemory = None
    jobs: JobCount = None
    walltime: Walltime = None
    interface: Interface = None

    def executor(self) -> "Executor":
        """Return the executor of that name with the options that were given."""
        from diffmask.experiments.executors.local import make_executor

        options = asdict(self)
        return make_executor(options.pop("engine"), options)


def expand_groups(command: Callable[..., None]) -> Callable[..., None]:
    """Return the command with one option per field in place of each parameter that is a group of options.

    >>> def explain(text: str, *, columns: TextColumns) -> None:
    ...     print(text, columns)
    >>> list(signature(expand_groups(explain)).parameters)
    ['text', 'text_column', 'pair_column']
    >>> expand_groups(explain)(text="fine", pair_column="hypothesis")
    fine TextColumns(text_column=None, pair_column='hypothesis')
    """
    parameters, groups = [], {}
    for name, parameter in signature(command).parameters.items():
        group = parameter.annotation
        if not (isinstance(group, type) and is_dataclass(group)):
            parameters.append(parameter.replace(kind=Parameter.KEYWORD_ONLY))
            continue
        groups[name] = group
        for field in fields(group):
            parameters.append(
                Parameter(field.name, Parameter.KEYWORD_ONLY, default=field.default, annotation=field.type)
            )

    @wraps(command)
    def expanded(**given: Any) -> None:
        chosen = {
            name: group(**{field.name: given.pop(field.name) for field in fields(group) if field.name in given})
            for name, group in groups.items()
        }
        command(**given, **chosen)

    expanded.__signature__ = Signature(parameters)  # type: ignore[attr-defined]  # `inspect.signature` reads it
    expanded.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return expanded


def progress_view(quiet: bool) -> "ProgressView":
    """Return a live table for a terminal, else log lines, and configure logging to match."""
    from diffmask.experiments.executors.progress_view import LiveView, LogView, default_view

    view = LogView() if quiet else default_view()
    configure_logging(quiet=quiet or isinstance(view, LiveView))
    return view


def configure_logging(quiet: bool, verbose: bool = False) -> None:
    """Log progress as plain lines to standard error; print warnings without their source code."""
    handler = logging.StreamHandler()
    handler.setLevel(logging.WARNING if quiet else logging.DEBUG if verbose else logging.INFO)
    logging.basicConfig(level=logging.INFO, format="%(message)s", handlers=[handler])
    if verbose:
        logging.getLogger("diffmask").setLevel(logging.DEBUG)
    warnings.formatwarning = lambda message, category, *_: f"{category.__name__}: {message}\n"


def parse_seeds(text: str) -> list[int]:
    """Parse seeds separated by commas.

    >>> parse_seeds("0, 1")
    [0, 1]
    """
    seeds = [seed.strip() for seed in text.split(",") if seed.strip()]
    if not seeds or not all(seed.isdecimal() for seed in seeds):
        raise ConfigError(f"--seeds '{text}': write whole numbers from 0 with commas between, for example 0,1,2")
    return [int(seed) for seed in seeds]


def require_folder(out: Path, finished: Sequence[str], force: bool) -> None:
    """Refuse, before any work, an output folder that cannot be written or that holds a finished output.

    `finished` are the names of files by which a finished output is known. `force` allows to replace it.
    """
    existing = next(folder for folder in (out.absolute(), *out.absolute().parents) if folder.exists())
    if not existing.is_dir():
        raise InputError(f"--out {out}: {existing} is a file; give a folder")
    try:
        # Permissions do not say whether a folder can be written: a folder of the system, or a full disk.
        Path(tempfile.mkdtemp(prefix=".writing-", dir=existing)).rmdir()
    except OSError as error:
        raise InputError(f"--out {out}: {existing} is not writable ({error.strerror}); give another folder") from None
    for name in finished:
        if (out / name).exists() and not force:
            raise InputError(
                f"--out {out} holds a finished output ({name}); give another folder, or --force to replace it"
            )
