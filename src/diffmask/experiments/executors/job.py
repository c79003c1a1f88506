"""A job: one node as a worker runs it, with its log and its saved outcome."""

import json
import logging
import time
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import asdict, dataclass
from pathlib import Path

from diffmask.core.store import values_checksum
from diffmask.core.training import torch_threads
from diffmask.errors import ConfigError, DiffMaskError, ExtraError, InputError, SiteError, TaskError
from diffmask.results.records import Record, record_from, to_plain, write_json
from diffmask.workspace.node import Node


@dataclass(frozen=True)
class NodeOutcome:
    """Records of a finished node, and how long it took."""

    records: tuple[Record, ...]
    seconds: float | None
    """Duration; None if the artefact existed before."""
    warned: tuple[str, ...] = ()
    """Warnings, each once."""


@dataclass(frozen=True)
class NodeFailure:
    """Reason why an attempt at a node failed."""

    why: str
    lost: bool = False
    """Whether the worker died, which need not be the node's fault."""
    permanent: bool = False
    """Whether another attempt would fail alike, as for a method that the task does not support."""


@dataclass(frozen=True)
class Job:
    """A node and the folder of its run."""

    node: Node
    folder: Path

    @property
    def log(self) -> Path:
        """Path of the log, which holds the output of all attempts."""
        return self.folder / "logs" / f"{'-'.join(self.node.address)}.log"

    @property
    def outcome_file(self) -> Path:
        """Path of the saved outcome."""
        return self.folder / "outcomes" / f"{'-'.join(self.node.address)}.json"

    def outcome(self) -> NodeOutcome | None:
        """Return the saved outcome if it is intact and the artefact still exists, else None."""
        try:
            saved = json.loads(self.outcome_file.read_text())
            if saved.pop("checksum") != values_checksum(saved):
                return None
            outcome = NodeOutcome(tuple(map(record_from, saved["records"])), saved["seconds"], tuple(saved["warned"]))
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return None
        return outcome if self.node.is_done() else None


PERMANENT = (ConfigError, InputError, TaskError, SiteError, ExtraError)
"""Errors that another attempt cannot cure."""


def run_job(job: Job, threads: int = 1) -> NodeOutcome | NodeFailure:
    """Run a node and save its outcome; an error is written to the log and returned, not raised.

    Workers use one thread: sums over several threads round differently, and one seed must give the same bits on every
    executor.
    """
    with torch_threads(threads), _logged(job) as warned:
        try:
            was_done, start = job.node.is_done(), time.perf_counter()
            records = tuple(job.node.run())
            seconds = None if was_done else time.perf_counter() - start
        except Exception as error:
            traceback.print_exc()
            return NodeFailure(_first_line(error), permanent=isinstance(error, PERMANENT))
        messages = tuple(dict.fromkeys(f"{warning.category.__name__}: {warning.message}" for warning in warned))
    outcome = NodeOutcome(records, seconds, messages)
    saved = to_plain(asdict(outcome))
    write_json(job.outcome_file, {**saved, "checksum": values_checksum(saved)})
    return outcome


def _first_line(error: Exception) -> str:
    """Return the first line of an error; an error of another package is named with its type."""
    line = (str(error).strip().splitlines() or ["(no message)"])[0]
    return line if isinstance(error, DiffMaskError) else f"{type(error).__name__}: {line}"


@contextmanager
def _logged(job: Job) -> Iterator[list[warnings.WarningMessage]]:
    """Write everything that is logged or printed within this block to the job's log, and record warnings."""
    job.log.parent.mkdir(parents=True, exist_ok=True)
    root = logging.getLogger()
    with (
        job.log.open("a", buffering=1, encoding="utf-8") as stream,
        redirect_stdout(stream),
        redirect_stderr(stream),
        warnings.catch_warnings(record=True) as warned,
    ):
        warnings.simplefilter("always")
        handler = logging.StreamHandler(stream)
        handler.setFormatter(logging.Formatter("%(asctime)s %(name)s: %(message)s"))
        root.addHandler(handler)
        before = root.level
        root.setLevel(logging.INFO)
        try:
            print(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {job.node.label}")
            yield warned
        finally:
            for warning in warned:
                print(f"{warning.category.__name__}: {warning.message}")
            root.setLevel(before)
            root.removeHandler(handler)
