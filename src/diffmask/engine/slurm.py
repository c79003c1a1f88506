"""Nodes on Slurm: dask-jobqueue submits jobs that are dask workers."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diffmask.engine.cluster import OnDask
from diffmask.errors import EngineError, ExtraError


@dataclass(frozen=True, kw_only=True)
class Slurm(OnDask):
    """Nodes on workers that are Slurm jobs; a job that ends early is replaced."""

    queue: str | None = None
    """Slurm's partition; none is its default."""
    memory: str = "8GB"
    """Of each job."""
    jobs: int = 4
    """Slurm jobs at once, each of one core and one worker."""
    walltime: str = "04:00:00"
    """Of each job. A node must fit into it."""
    interface: str | None = None
    """Network interface that workers reach this machine by, such as `ib0`."""

    @property
    def size(self) -> int:
        """A worker a job."""
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
            _refuse_what_slurm_refuses(cluster.job_script())
            cluster.adapt(minimum_jobs=wanted, maximum_jobs=wanted)
            yield cluster


def _refuse_what_slurm_refuses(script: str) -> None:
    """Ask Slurm whether it would take the job: a wrong queue is an error now, not a worker that never comes."""
    try:
        asked = subprocess.run(["sbatch", "--test-only"], input=script, capture_output=True, text=True)
    except FileNotFoundError:
        raise EngineError("there is no sbatch here; start the run on a machine that may submit Slurm jobs") from None
    if asked.returncode:
        raise EngineError(f"Slurm refuses the job: {asked.stderr.strip()}")
