"""Commands as forks of a process that has loaded everything: real signals and file systems, in a second each."""

import contextlib
import importlib
import os
import pkgutil
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import diffmask as dm
from diffmask.cli import main
from fuzz.home import make_home
from support.kills import numbers

WORDS = ("good", "great", "fun", "bad", "dull", "mess", "not", "very", "film", "plot")
LONGEST = 120.0
"""Seconds after which a command counts as hung."""


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int
    """Exit code; negative for a signal."""
    errors: str
    """Its standard error."""

    def problem(self) -> str | None:
        """Return what is wrong with the end: a traceback, or a failure that is not one line."""
        if "Traceback" in self.errors:
            return f"traceback: {self.errors.strip().splitlines()[-1][:200]}"
        lines = [line for line in self.errors.splitlines() if line.startswith("diffmask: ")]
        if self.code > 0 and len(lines) != 1:
            return f"exit {self.code} with {len(lines)} lines: {self.errors[-200:]!r}"
        return None


@dataclass
class Child:
    """A running command."""

    process: int
    log: Path

    def wait(self) -> Ended:
        """Wait for the end; a command that hangs is killed."""
        deadline = time.monotonic() + LONGEST
        while time.monotonic() < deadline:
            done, status = os.waitpid(self.process, os.WNOHANG)
            if done:
                return Ended(os.waitstatus_to_exitcode(status), self.log.read_text(errors="replace"))
            time.sleep(0.002)
        os.kill(self.process, signal.SIGKILL)
        os.waitpid(self.process, 0)
        return Ended(1, f"hung for {LONGEST:.0f} s")

    def send(self, number: int) -> None:
        """Send a signal. The child is not yet waited for, so its number is still its own."""
        os.kill(self.process, number)


@dataclass
class Terminal:
    """Starts commands, each with its own standard error."""

    logs: Path
    started: int = field(default=0)

    def start(self, words: list[str], prepare: Callable[[], Any] = lambda: None) -> Child:
        """Start a command in a fork; `prepare` is called in the child first."""
        self.started += 1
        log = self.logs / f"{self.started}.log"
        child = os.fork()
        if child == 0:
            _become(words, log, prepare)
        return Child(child, log)

    def run(self, words: list[str], prepare: Callable[[], Any] = lambda: None) -> Ended:
        """Run a command to its end."""
        return self.start(words, prepare).wait()


def _become(words: list[str], log: Path, prepare: Callable[[], Any]) -> None:
    """Be the command until it ends."""
    code = 1
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
        prepare()
        sys.argv = ["diffmask", *words]
        main()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


@dataclass(frozen=True)
class Verb:
    """A command that writes to `out`, its result there, and the arguments that start it again after a fault."""

    name: str
    words: str
    """The command line; OUT is its folder."""
    result: Callable[[Path], Any]
    """Everything in `out` that must be the same after a fault as without one."""
    kept: Callable[[Path], None] = lambda out: None
    """Check something that was there before the command and must survive it."""

    def command(self, out: Path) -> list[str]:
        """Return the words of the command."""
        return [word.replace("OUT", str(out)) for word in self.words.split()]


def prepare_home(folder: Path) -> None:
    """Make models, explainers and tables in a child, so that this process stays without threads of torch; go there."""
    child = os.fork()
    if child == 0:
        try:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            make_home(folder)
            _more(folder)
        except BaseException:
            os._exit(1)
        os._exit(0)
    if os.waitpid(child, 0)[1]:
        raise RuntimeError("the home of the trials could not be made")
    os.chdir(folder)
    os.environ |= {"DIFFMASK_CACHE": str(folder / "cache"), "COLUMNS": "120"}
    _preload()


def _preload() -> None:
    """Import everything that a command would import, so that the time of a trial is the time of its work."""
    for module in pkgutil.walk_packages(dm.__path__, "diffmask."):
        if not module.name.endswith("__main__"):  # which would run a command
            with contextlib.suppress(ImportError):  # parts that need an extra
                importlib.import_module(module.name)
    for name in ("transformers.models.bert.modeling_bert", "matplotlib.pyplot", "pyarrow.parquet"):
        importlib.import_module(name)


def _more(home: Path) -> None:
    lines = [f"{WORDS[n % 10]} {WORDS[n // 10 % 10]} {WORDS[n // 100 % 10]}" for n in range(1200)]
    (home / "table.csv").write_text("text\n" + "".join(f"{line}\n" for line in lines))
    task = dm.TextClassification("clf", train=lines[:64])
    for seed in (0, 1):
        dm.SurrogateMask(steps=2, batch_size=8).fit(task, seed).save_pretrained(f"seed{seed}")


def _explainer(out: Path) -> Any:
    """The tensors of an explainer; reading it verifies its checksums."""
    loaded = dm.load_explainer(out / "explainer", "clf")
    return {name: value.tolist() for name, value in loaded.state_dict().items()}


REVIEWS = "--model clf --data reviews.csv --quiet"
VERBS = (
    Verb(
        "explain",
        "explain gradient --data table.csv --out OUT/scores.jsonl --quiet",
        lambda out: (out / "scores.jsonl").read_bytes(),
    ),
    Verb(
        "fit",
        f"fit {REVIEWS} --method surrogate-mask --out OUT/explainer --force steps=6 batch_size=8",
        _explainer,
        lambda out: _explainer(out) and None,
    ),
    Verb(
        "train",
        "train --model encoder --data reviews.csv --out OUT/clf --force --quiet epochs=2",
        lambda out: (out / "clf" / "model.safetensors").read_bytes(),
    ),
    Verb("run", "run small.yaml --out OUT/run --quiet", lambda out: numbers(out / "run")),
    Verb(
        "benchmark",
        f"benchmark {REVIEWS} --methods gradient,random --metrics comprehensiveness --out OUT/board --texts=8",
        lambda out: numbers(out / "board"),
    ),
)


def start_folder(verb: Verb, out: Path) -> None:
    """Make the folder of a trial, with an older explainer that `fit` replaces."""
    out.mkdir(parents=True, exist_ok=True)
    if verb.name == "fit":
        shutil.copytree("explainer", out / "explainer")


def mounted(folder: Path, size: str) -> bool:
    """Mount a small file system in memory at a folder; return whether this machine allows it."""
    folder.mkdir(parents=True, exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "trial", str(folder)]
    return shutil.which("mount") is not None and subprocess.run(command, capture_output=True).returncode == 0


def unmount(folder: Path) -> None:
    """Unmount it."""
    subprocess.run(["umount", str(folder)], check=True, capture_output=True)
