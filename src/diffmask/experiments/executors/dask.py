"""Executors on a dask cluster: a running cluster, one on this machine, or workers that are Slurm jobs."""

import logging
import subprocess
import time
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from diffmask.errors import EngineError, ExtraError
from diffmask.experiments.executors.executor import Executor, Workers
from diffmask.experiments.executors.job import Job, NodeFailure, NodeOutcome, run_job
from diffmask.experiments.executors.local import cores, one_thread_for_children
from diffmask.workspace.node import Address

MOMENT = 0.1
"""Seconds between two checks for finished jobs."""


class _Cluster(Workers):
    """Workers of a dask scheduler.

    One job per worker is sent, so that the schedule here knows which nodes run and keeps their order.
    """

    def __init__(self, client: Any) -> None:
        self._client = client
        self._futures: dict[Address, Any] = {}
        self._attempts = 0

    def count(self) -> int:
        return len(self._client.nthreads())

    def start(self, job: Job) -> None:
        self._attempts += 1
        # Each attempt has its own key: dask would otherwise return the result of the failed one.
        key = f"{'-'.join(job.node.address)}-{self._attempts}"
        self._futures[job.node.address] = self._client.submit(run_job, job, key=key, pure=False)

    def ended(self) -> list[tuple[Address, NodeOutcome | NodeFailure]]:
        if self._client.status != "running":
            raise EngineError("the dask scheduler is gone; start the run again to resume")
        finished_futures = [(address, future) for address, future in self._futures.items() if future.done()]
        if not finished_futures:
            time.sleep(MOMENT)
        for address, _ in finished_futures:
            del self._futures[address]
        return [(address, _result(future)) for address, future in finished_futures]


def _result(future: Any) -> NodeOutcome | NodeFailure:
    """Return a job's result. `run_job` raises nothing, so an error is dask's own: a worker died or cannot unpickle."""
    from distributed import KilledWorker

    if future.status == "finished":
        return future.result()
    error = future.exception() if future.status == "error" else None
    if isinstance(error, KilledWorker):
        return NodeFailure(f"the worker at {error.last_worker.address} died", lost=True)
    if error is None:
        return NodeFailure(f"dask lost the job ({future.status})", lost=True)
    return NodeFailure(f"not started: {type(error).__name__}: {error}")


@dataclass(frozen=True, kw_only=True)
class DaskExecutorBase(Executor):
    """Executor on the workers of a dask scheduler."""

    @contextmanager
    def working(self, folder: Path, jobs: int) -> Iterator[Workers]:
        """Use the scheduler's workers; a cluster that was started for this run ends with the block."""
        try:
            import dask
            from distributed import Client
        except ImportError:
            raise ExtraError("this engine needs dask.distributed: pip install 'diffmask[cluster]'") from None
        settings = {
            "distributed.scheduler.allowed-failures": 0,  # the schedule counts attempts
            "distributed.worker.daemon": False,  # a node may start processes
        }
        with (
            dask.config.set(settings),
            one_thread_for_children(),
            _log_of_dask(folder / "logs" / "dask.log"),
            self._scheduler(folder, jobs) as scheduler,
        ):
            try:
                client = Client(scheduler, timeout="60s")
            except OSError as error:
                raise EngineError(f"no dask scheduler answers at {scheduler}: {error}") from None
            with client:
                yield _Cluster(client)

    @abstractmethod
    @contextmanager
    def _scheduler(self, folder: Path, jobs: int) -> Iterator[Any]:
        """Yield the address of a scheduler, or a cluster that ends with the block."""
        yield


@contextmanager
def _log_of_dask(file: Path) -> Iterator[None]:
    """Write dask's own messages to a file within this block; the view shows the important ones."""
    file.parent.mkdir(parents=True, exist_ok=True)
    logger, handler = logging.getLogger("distributed"), logging.FileHandler(file)
    handler.setFormatter(logging.Formatter("%(asctime)s %(name)s: %(message)s"))
    before, logger.handlers, logger.propagate = (logger.handlers, logger.propagate), [handler], False
    try:
        yield
    finally:
        logger.handlers, logger.propagate = before
        handler.close()


@dataclass(frozen=True, kw_only=True)
class DaskExecutor(DaskExecutorBase):
    """Runs nodes on a dask cluster: a running one, or one on this machine."""

    address: str | None = None
    """Address of the scheduler, such as `tcp://10.0.0.1:8786`; None starts one on this machine."""
    workers: int = field(default_factory=cores)
    """Workers to start if no address is given."""

    @property
    def size(self) -> int:
        """Number of started workers; a guess for a running scheduler."""
        return self.workers

    @contextmanager
    def _scheduler(self, folder: Path, jobs: int) -> Iterator[Any]:
        if self.address is not None:
            yield self.address
            return
        from distributed import LocalCluster

        with LocalCluster(
            n_workers=min(self.workers, jobs),
            threads_per_worker=1,
            host="127.0.0.1",
            dashboard_address="127.0.0.1:0",
        ) as cluster:
            yield cluster


@dataclass(frozen=True, kw_only=True)
class SlurmExecutor(DaskExecutorBase):
    """Runs nodes on workers that are Slurm jobs, which dask-jobqueue submits; a job that ends early is replaced."""

    queue: str | None = None
    """Partition; None is Slurm's default."""
    memory: str = "8GB"
    """Memory per job."""
    jobs: int = 4
    """Simultaneous jobs, each with one core and one worker."""
    walltime: str = "04:00:00"
    """Time limit per job; every node must fit into it."""
    interface: str | None = None
    """Network interface by which workers reach this machine, such as `ib0`."""

    @property
    def size(self) -> int:
        """One worker per job."""
        return self.jobs

    @contextmanager
    def _scheduler(self, folder: Path, jobs: int) -> Iterator[Any]:
        try:
            from dask_jobqueue.slurm import SLURMCluster
        except ImportError:
            raise ExtraError("this engine needs dask-jobqueue: pip install 'diffmask[cluster]'") from None
        wanted = min(self.jobs, jobs)
        with SLURMCluster(
            queue=self.queue,
            cores=1,
            processes=1,
            memory=self.memory,
            walltime=self.walltime,
            interface=self.interface,
            job_name="diffmask",
            death_timeout=60,
            log_directory=str(folder / "logs" / "slurm"),
            job_script_prologue=["export OMP_NUM_THREADS=1"],
            scheduler_options={"dashboard_address": ":0"},
        ) as cluster:
            _require_accepted(cluster.job_script())
            cluster.adapt(minimum_jobs=wanted, maximum_jobs=wanted)
            yield cluster


def _require_accepted(script: str) -> None:
    """Ask Slurm whether it accepts the job: a wrong partition is an error now, not a worker that never starts."""
    try:
        asked = subprocess.run(["sbatch", "--test-only"], input=script, capture_output=True, text=True)
    except FileNotFoundError:
        raise EngineError("there is no sbatch here; start the run on a machine that may submit Slurm jobs") from None
    if asked.returncode:
        raise EngineError(f"Slurm refuses the job: {asked.stderr.strip()}")
