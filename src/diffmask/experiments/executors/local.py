"""Executors on this machine: one node after the other in this process, or nodes in parallel processes."""

import multiprocessing
import os
import pickle
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.context import BaseContext
from pathlib import Path
from typing import Any, ClassVar

from diffmask.errors import ConfigError, nearest
from diffmask.experiments.executors.executor import Executor, Workers
from diffmask.experiments.executors.job import Job, NodeFailure, NodeOutcome, run_job
from diffmask.workspace.node import Address


class _InProcess(Workers):
    """This process as the only worker: a started job has ended at the next call of `ended`."""

    def __init__(self, threads: int) -> None:
        self._started: list[Job] = []
        self._threads = threads

    def count(self) -> int:
        return 1

    def start(self, job: Job) -> None:
        self._started.append(job)

    def ended(self) -> list[tuple[Address, NodeOutcome | NodeFailure]]:
        job = self._started.pop()
        return [(job.node.address, run_job(job, self._threads))]


@dataclass(frozen=True, kw_only=True)
class SerialExecutor(Executor):
    """Runs one node after the other in this process."""

    in_process: ClassVar[bool] = True

    threads: int = 1
    """Threads of torch. More than one is faster, but rounds differently than the other executors."""

    @property
    def size(self) -> int:
        """One node at a time."""
        return 1

    @contextmanager
    def working(self, folder: Path, jobs: int) -> Iterator[Workers]:
        """Use this process."""
        yield _InProcess(self.threads)


MOMENT = 0.5
"""Seconds to wait for a worker's result."""

GRACE = 5.0
"""Seconds that an idle worker has to exit."""


def cores() -> int:
    """Return the number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _work(connection: Connection) -> None:
    """Run jobs from the connection until it is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the driver handles Ctrl-C and ends its workers
    threading.Thread(target=_end_with_the_driver, daemon=True).start()
    while True:
        try:
            job = connection.recv()
        except EOFError:
            return
        except Exception as error:
            connection.send(NodeFailure(f"the worker cannot read the job: {type(error).__name__}: {error}"))
        else:
            connection.send(run_job(job))


def _end_with_the_driver() -> None:
    driver = multiprocessing.parent_process()
    if driver is not None:
        driver.join()
        os._exit(1)


class _Worker:
    """Worker process and its current job."""

    def __init__(self, context: BaseContext) -> None:
        self.connection, theirs = context.Pipe()
        self.process: Any = context.Process(target=_work, args=(theirs,), daemon=True)  # type: ignore[attr-defined]
        self.process.start()
        theirs.close()
        self.job: Job | None = None

    def result(self) -> NodeOutcome | NodeFailure:
        """Return the result that the worker sends, or a failure if it died."""
        try:
            return self.connection.recv()
        except (EOFError, ConnectionError):
            self.process.join()
            return NodeFailure(f"the worker died ({_death(self.process.exitcode)})", lost=True)

    def end(self) -> None:
        """End the process; an idle one may exit by itself first."""
        self.connection.close()
        if self.job is None:
            self.process.join(GRACE)
        self.process.kill()
        self.process.join()


class _Pool(Workers):
    """Worker processes; a dead worker is replaced."""

    def __init__(self, context: BaseContext, size: int) -> None:
        self._context = context
        self._workers = [_Worker(context) for _ in range(size)]
        self._refused: list[tuple[Address, NodeOutcome | NodeFailure]] = []

    def count(self) -> int:
        return len(self._workers)

    def start(self, job: Job) -> None:
        worker = next(worker for worker in self._workers if worker.job is None)
        worker.job = job
        try:
            worker.connection.send(job)
        except ConnectionError:
            return  # it died while idle; `ended` notices
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            worker.job = None
            self._refused.append((job.node.address, NodeFailure(f"cannot be sent to a worker: {error}")))

    def ended(self) -> list[tuple[Address, NodeOutcome | NodeFailure]]:
        outcomes, self._refused = self._refused, []
        busy = {worker.connection: worker for worker in self._workers if worker.job is not None}
        for connection in wait(list(busy), timeout=0 if outcomes else MOMENT):
            worker = busy[connection]  # type: ignore[index]
            result = worker.result()
            assert worker.job is not None
            outcomes.append((worker.job.node.address, result))
            worker.job = None
            if not worker.process.is_alive():
                worker.end()
                self._workers[self._workers.index(worker)] = _Worker(self._context)
        return outcomes

    def end(self) -> None:
        """End all workers."""
        for worker in self._workers:
            worker.end()


@dataclass(frozen=True, kw_only=True)
class ProcessExecutor(Executor):
    """Runs nodes in parallel processes on this machine, each with one thread."""

    workers: int = field(default_factory=cores)
    """Number of worker processes."""

    @property
    def size(self) -> int:
        """Number of workers."""
        return self.workers

    @contextmanager
    def working(self, folder: Path, jobs: int) -> Iterator[Workers]:
        """Start at most one process per job. They end with the block, or with this process if it is killed."""
        with one_thread_for_children():
            pool = _Pool(_context(), min(self.workers, jobs))
            try:
                yield pool
            finally:
                pool.end()


@contextmanager
def one_thread_for_children() -> Iterator[None]:
    """Let processes that are started within this block use one thread."""
    before = os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = "1"
    try:
        yield
    finally:
        del os.environ["OMP_NUM_THREADS"]
        if before is not None:
            os.environ["OMP_NUM_THREADS"] = before


def _context() -> BaseContext:
    """Return the context that starts workers: forks of a process that has only imported torch, if the system can."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["diffmask.experiments.executors.job"])
    return context


def _death(code: int) -> str:
    return f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"


def make_executor(name: str, options: Mapping[str, Any]) -> Executor:
    """Return the executor of that name; options that are None keep their defaults, unknown options are refused."""
    from dataclasses import fields

    from diffmask.experiments.executors.dask import DaskExecutor, SlurmExecutor

    engines: dict[str, type[Executor]] = {
        "serial": SerialExecutor,
        "processes": ProcessExecutor,
        "dask": DaskExecutor,
        "slurm": SlurmExecutor,
    }
    if name not in engines:
        raise ConfigError(f"there is no engine '{name}'; {nearest(name, engines)}")
    given = {key: value for key, value in options.items() if value is not None}
    known = {field.name for field in fields(engines[name])}
    for key in given:
        if key not in known:
            raise ConfigError(f"the engine '{name}' has no option '{key}'; {nearest(key, known)}")
    return engines[name](**given)
