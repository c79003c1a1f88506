"""A hundred faults: kills, signals, full and read-only disks, a clock set back, two commands at once.

After each, the same command is started again without a fault, and its result must be that of a run left alone.
"""

import os
import random
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from trials.commands import VERBS, Ended, Terminal, Verb, mounted, prepare_home, start_folder, unmount
from trials.count import Count

Fault = Callable[["Trial"], list[Ended]]
DAY = 86_400.0


@dataclass
class Trial:
    """One command in its own folder, and the random numbers that choose the moment of its fault."""

    verb: Verb
    out: Path
    terminal: Terminal
    seconds: float
    """Duration of the command when it is left alone."""
    source: random.Random

    @property
    def words(self) -> list[str]:
        """The command."""
        return self.verb.command(self.out)


def signalled(number: int) -> Fault:
    """Send a signal at a random moment."""

    def fault(trial: Trial) -> list[Ended]:
        child = trial.terminal.start(trial.words)
        time.sleep(trial.source.uniform(0, trial.seconds))
        child.send(number)
        return [child.wait()]

    return fault


def full_disk(trial: Trial) -> list[Ended]:
    """Leave a random number of kilobytes free."""
    free = trial.source.choice([0, 4, 12, 40, 100, 200])
    filler = trial.out / "filler"
    space = os.statvfs(trial.out)
    with filler.open("wb") as stream:
        stream.write(bytes(max(0, space.f_bavail * space.f_frsize - 1024 * free)))
    ended = trial.terminal.run(trial.words)
    filler.unlink()
    return [ended]


def read_only_disk(trial: Trial) -> list[Ended]:
    """Make the disk read-only, before the command or while it runs."""
    child = None
    if trial.source.random() < 0.5:
        child = trial.terminal.start(trial.words)
        time.sleep(trial.source.uniform(0, trial.seconds))
    # While a file is open for writing the kernel refuses; then the command is left alone.
    remounted = subprocess.run(["mount", "-o", "remount,ro", str(trial.out)], capture_output=True).returncode == 0
    ended = (child or trial.terminal.start(trial.words)).wait()
    if remounted:
        subprocess.run(["mount", "-o", "remount,rw", str(trial.out)], check=True)
    return [ended]


def clock_back(trial: Trial) -> list[Ended]:
    """Kill the command, and let all that it has written be of tomorrow when it is started again."""
    ended = signalled(signal.SIGKILL)(trial)
    for file in trial.out.rglob("*"):
        os.utime(file, (time.time() + DAY, time.time() + DAY))
    return [*ended, trial.terminal.run(trial.words, _yesterday)]


def _yesterday() -> None:
    now = time.time
    time.time = lambda: now() - DAY


def two_at_once(trial: Trial) -> list[Ended]:
    """Start the command a second time while it runs."""
    first = trial.terminal.start(trial.words)
    time.sleep(trial.source.uniform(0, trial.seconds / 2))
    second = trial.terminal.start(trial.words)
    return [first.wait(), second.wait()]


FAULTS: dict[str, Fault] = {
    "kill -9": signalled(signal.SIGKILL),
    "SIGTERM": signalled(signal.SIGTERM),
    "Ctrl-C": signalled(signal.SIGINT),
    "disk full": full_disk,
    "read-only": read_only_disk,
    "clock back": clock_back,
    "two at once": two_at_once,
}
ON_A_SMALL_DISK = ("disk full", "read-only")


def run(seed: int, trials: int = 105) -> Count:
    """Give every command every fault in turn, at random moments."""
    count, source = (
        Count("kills, signals, full and read-only disks, clock set back, two at once"),
        random.Random(seed),
    )
    with TemporaryDirectory(prefix="trials-") as name:
        home = Path(name)
        prepare_home(home / "home")
        terminal = Terminal(home)
        alone = {verb.name: _left_alone(verb, home / "alone" / verb.name, terminal) for verb in VERBS}
        pairs = [(fault, verb) for verb in VERBS for fault in FAULTS]
        for number in range(trials):
            fault, verb = pairs[number % len(pairs)]
            expected, seconds = alone[verb.name]
            trial = Trial(verb, home / str(number), terminal, seconds, source)
            if fault in ON_A_SMALL_DISK and not mounted(trial.out, "4m"):
                count.notes.append(f"{fault}: this machine allows no mount")
                continue
            try:
                count.add(f"{fault}, {verb.name}, trial {number}", _judge(trial, FAULTS[fault], expected))
            finally:
                if fault in ON_A_SMALL_DISK:
                    unmount(trial.out)
    return count


def _left_alone(verb: Verb, out: Path, terminal: Terminal) -> tuple[Any, float]:
    """Run a command without a fault; return its result and duration."""
    start_folder(verb, out)
    start = time.monotonic()
    ended = terminal.run(verb.command(out))
    if ended.code or ended.problem():
        raise RuntimeError(f"{verb.name} fails without any fault: {ended}")
    return verb.result(out), time.monotonic() - start


def _judge(trial: Trial, fault: Fault, expected: Any) -> str | None:
    """Make the fault happen and start the command again; return what was lost, or which end was not one line."""
    start_folder(trial.verb, trial.out)
    for ended in fault(trial):
        if problem := ended.problem():
            return problem
    try:
        trial.verb.kept(trial.out)
    except Exception as error:
        return f"lost: {error}"
    again = trial.terminal.run(trial.words)
    if again.problem() or (again.code and "exists already" not in again.errors):
        return f"cannot be started again: {again.errors.strip()[-200:]}"
    return None if trial.verb.result(trial.out) == expected else "another result than without the fault"
