"""A run whose workers and drivers are killed on the way, and what is left of it, beside a run that was left alone."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from diffmask.results.records import read_jsonl

Files = Mapping[str, bytes]
PATIENCE = 600.0
"""Seconds that anything waited for may take."""


@dataclass(frozen=True)
class Kill:
    """One kill, and what it left."""

    victim: str
    work: str
    """The artefact that was being made."""
    kept: int
    """Artefacts that were there."""


@dataclass
class Killed:
    """A run with kills."""

    kills: list[Kill] = field(default_factory=list)
    lost: set[str] = field(default_factory=set)
    """Artefacts that were there at a kill and were gone or other in the end."""
    starts: int = 0
    """How often a driver was started."""


def run_with_kills(
    command: Sequence[str],
    folder: Path,
    victims: Sequence[str],
    seed: int,
    environment: Mapping[str, str],
    apart: int = 0,
) -> Killed:
    """Start the command, kill a worker at its work or the driver as often as asked, and let it come to its end.

    `apart`: artefacts that are made between one kill and the next, so that there is something to lose.
    """
    source, found, seen = random.Random(seed), Killed(), dict[str, bytes]()
    driver = _start(command, folder, environment, found)
    done: set[str] = set()
    try:
        for number, victim in enumerate(victims):
            _wait_for(number * apart, folder / "store", driver)
            process, work, token = _at_work(folder / "store" / "locks", driver, done)
            time.sleep(source.uniform(0, 0.5))
            done.add(token)
            kept = artefacts(folder / "store")
            seen |= kept
            _kill(driver.pid if victim == "driver" else process)
            found.kills.append(Kill(victim, work, len(kept)))
            if victim == "driver":
                driver.wait()
                driver = _start(command, folder, environment, found)
        code = driver.wait(timeout=PATIENCE)
        if code:
            raise RuntimeError(f"the run ended with {code}:\n{(folder / 'driver.log').read_text()[-3000:]}")
    finally:
        driver.kill()
        driver.wait()
    after = artefacts(folder / "store")
    found.lost = {name for name, content in seen.items() if after.get(name) != content}
    return found


def _wait_for(number: int, store: Path, driver: subprocess.Popen[bytes]) -> None:
    """Wait until so many artefacts are there."""
    while driver.poll() is None and sum(1 for _ in store.glob("*/*/artefact.json")) < number:
        time.sleep(0.1)


def run_alone(experiment: Path, folder: Path) -> None:
    """The same, one node after the other, left alone."""
    subprocess.run([*command_for(experiment, folder), "--quiet"], check=True, capture_output=True)


def command_for(experiment: Path, folder: Path) -> list[str]:
    """The command that runs the experiment."""
    return [sys.executable, "-m", "diffmask", "run", str(experiment), "--out", str(folder)]


def grid(file: Path, seeds: int) -> Path:
    """A grid of nodes that take about half a second each, written to a file."""
    experiment: dict[str, Any] = {
        "name": "grid",
        "seeds": list(range(seeds)),
        "tasks": [{"name": "toy", "rows": 1000, "epochs": 2}],
        "methods": [
            {"name": "surrogate-mask", "mask": "states", "steps": 20, "batch_size": 64},
            {"name": "integrated-gradients", "site": "hidden", "n_steps": 20},
        ],
        "metrics": ["divergence-to-truth", "fidelity"],
    }
    file.write_text(yaml.safe_dump(experiment))
    return file


def numbers(folder: Path) -> list[tuple[str, str, str, str, float, int]]:
    """Every number of a run with what it is, in order; what it cost differs from run to run."""
    found = read_jsonl(folder / "records.jsonl")
    return [(each.task, each.method, each.site, each.metric, each.value, each.seed) for each in found]


def artefacts(store: Path) -> dict[str, bytes]:
    """Every artefact's tensors as they are on disk, by kind and digest."""
    return {
        str(file.parent.relative_to(store)): file.read_bytes() for file in store.glob("*/[!.]*/tensors.safetensors")
    }


def _start(
    command: Sequence[str], folder: Path, environment: Mapping[str, str], found: Killed
) -> "subprocess.Popen[bytes]":
    folder.mkdir(parents=True, exist_ok=True)
    found.starts += 1
    with (folder / "driver.log").open("ab") as log:
        return subprocess.Popen(command, env=dict(environment), stdout=log, stderr=log)


def _at_work(locks: Path, driver: "subprocess.Popen[bytes]", done: set[str]) -> tuple[int, str, str]:
    """Somebody who makes an artefact now, has not been killed for it before, and is not the driver."""

    def look() -> tuple[int, str, str] | None:
        for file in locks.glob("[!.]*"):
            try:
                _, process, token = file.read_text().split()
            except (OSError, ValueError):
                continue
            if token not in done and int(process) != driver.pid and _lives(int(process)):
                return int(process), file.name, token
        if driver.poll() is not None:
            raise RuntimeError("the run was over before the last kill: the grid is too small for so many")
        return None

    return _until(look)


def _until(look: Callable[[], tuple[int, str, str] | None]) -> tuple[int, str, str]:
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        if (found := look()) is not None:
            return found
        time.sleep(0.02)
    raise TimeoutError(f"nobody was at work for {PATIENCE} s")


def _lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def _kill(process: int) -> None:
    try:
        os.kill(process, signal.SIGKILL)
    except ProcessLookupError:
        return
