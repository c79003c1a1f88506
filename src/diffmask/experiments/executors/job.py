"""A job: one node as a worker does it, whoever the worker is."""

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
from diffmask.core.training import single_threaded
from diffmask.results.records import Record, record_from, to_plain, write_json
from diffmask.workspace.node import Node


@dataclass(frozen=True)
class NodeOutcome:
    """What a finished node leaves: its numbers, and how long it took."""

    records: tuple[Record, ...]
    seconds: float | None
    """Time the work took; none where its artefact was there before."""
    warned: tuple[str, ...] = ()
    """What was warned of on the way, each thing once."""


@dataclass(frozen=True)
class NodeFailure:
    """Why a node was not finished."""

    why: str
    lost: bool = False
    """Whether the worker died, of which the node may be innocent."""


@dataclass(frozen=True)
class Job:
    """A node, and the folder of the run it belongs to."""

    node: Node
    folder: Path

    @property
    def log(self) -> Path:
        """Everything said while it was done, all attempts one after the other."""
        return self.folder / "logs" / f"{'-'.join(self.node.address)}.log"

    @property
    def outcome_file(self) -> Path:
        """Where its outcome is kept."""
        return self.folder / "outcomes" / f"{'-'.join(self.node.address)}.json"

    def outcome(self) -> NodeOutcome | None:
        """The outcome, if the node is done and what it made is still there."""
        try:
            saved = json.loads(self.outcome_file.read_text())
            if saved.pop("checksum") != values_checksum(saved):
                return None
            found = NodeOutcome(tuple(map(record_from, saved["records"])), saved["seconds"], tuple(saved["warned"]))
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None
        return found if self.node.is_done() else None


def run_job(job: Job) -> NodeOutcome | NodeFailure:
    """Do the job on one thread and keep its outcome; an error is written to its log and told, not raised.

    One thread for all engines: sums on two round otherwise than on one, and the same seed must give the same bits.
    """
    with single_threaded(), _logged(job) as warned:
        try:
            was_there, start = job.node.is_done(), time.perf_counter()
            records = tuple(job.node.run())
            seconds = None if was_there else time.perf_counter() - start
        except Exception as error:
            traceback.print_exc()
            said = str(error).strip().splitlines() or ["(nothing said)"]
            return NodeFailure(f"{type(error).__name__}: {said[0]}")
        told = tuple(dict.fromkeys(f"{warning.category.__name__}: {warning.message}" for warning in warned))
    outcome = NodeOutcome(records, seconds, told)
    saved = to_plain(asdict(outcome))
    write_json(job.outcome_file, {**saved, "checksum": values_checksum(saved)})
    return outcome


@contextmanager
def _logged(job: Job) -> Iterator[list[warnings.WarningMessage]]:
    """Within this block all that is logged or printed goes to the job's log; what is warned of is kept, too."""
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
