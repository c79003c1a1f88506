"""A real Slurm of one node on this machine, for the length of a block: its own folder, keys and ports."""

import getpass
import os
import secrets
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from diffmask.experiments.executors.local import cores

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "scancel", "sinfo")
SYSTEM_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
CONFIG = """
ClusterName=local
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmdPort={node_port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={home}/munge.socket
StateSaveLocation={home}/state
SlurmdSpoolDir={home}/spool
SlurmctldPidFile={home}/slurmctld.pid
SlurmdPidFile={home}/slurmd.pid
SlurmctldLogFile={home}/slurmctld.log
SlurmdLogFile={home}/slurmd.log
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SlurmdParameters=config_overrides
DefMemPerCPU=512
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
ReturnToService=2
MpiDefault=none
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} RealMemory=16000 State=UNKNOWN
PartitionName=main Nodes={host} Default=YES MaxTime=INFINITE State=UP
"""


def missing() -> str:
    """Why there can be no Slurm here; empty where there can."""
    absent = [program for program in PROGRAMS if shutil.which(program, path=SYSTEM_PATH) is None]
    if absent:
        return f"Slurm is not installed: no {', '.join(absent)}"
    return "" if os.geteuid() == 0 else "Slurm's daemons are started as root only"


@contextmanager
def slurm(home: Path) -> Iterator[Mapping[str, str]]:
    """Daemons in the foreground of this process; the environment in which sbatch finds them. All end with the block."""
    for folder in ("state", "spool"):
        (home / folder).mkdir(parents=True)
    home.chmod(0o755)
    key = home / "munge.key"
    key.write_bytes(secrets.token_bytes(128))
    key.chmod(0o400)
    host = socket.gethostname().split(".")[0]
    ports = {"controller_port": free_port(), "node_port": free_port()}
    config = home / "slurm.conf"
    config.write_text(CONFIG.format(home=home, host=host, user=getpass.getuser(), cpus=max(2, cores()), **ports))
    environment = {**os.environ, "PATH": SYSTEM_PATH, "SLURM_CONF": str(config)}
    munged = ["munged", "--foreground", "--force", f"--key-file={key}", f"--socket={home / 'munge.socket'}"]
    munged += [f"--{name}-file={home / f'munged.{name}'}" for name in ("pid", "log", "seed")]
    with ExitStack() as stack:
        stack.enter_context(_daemon(munged, home, environment))
        _until(lambda: (home / "munge.socket").exists(), "munged listens", home)
        stack.enter_context(_daemon(["slurmctld", "-D", "-c"], home, environment))
        stack.enter_context(_daemon(["slurmd", "-D", "-c", "-N", host], home, environment))
        _until(lambda: "idle" in _ask(["sinfo", "-h", "-o", "%t"], environment), "the node is idle", home)
        try:
            yield environment
        finally:
            _ask(["scancel", "--user", getpass.getuser()], environment)
            _until(lambda: not _ask(["squeue", "-h"], environment).strip(), "the queue is empty", home)


def free_port() -> int:
    """A port that nobody listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def _daemon(command: list[str], home: Path, environment: Mapping[str, str]) -> Iterator[None]:
    with (home / f"{command[0]}.out").open("w") as out:
        process = subprocess.Popen(command, env=dict(environment), stdout=out, stderr=out, start_new_session=True)
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _ask(command: list[str], environment: Mapping[str, str]) -> str:
    asked = subprocess.run(command, env=dict(environment), capture_output=True, text=True, timeout=60)
    return asked.stdout


def _until(true: Callable[[], bool], what: str, home: Path, seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        if time.monotonic() > deadline:
            said = "\n".join(file.read_text()[-1000:] for file in [*home.glob("*.out"), *home.glob("*.log")])
            raise TimeoutError(f"{seconds} s passed before {what}:\n{said}")
        time.sleep(0.1)
