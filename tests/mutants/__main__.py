"""Change the core at many places, one at a time, and count the changes that its tests notice.

`python -m mutants --each 16 --seed 0`; `--each 0` tries every mutant. Each mutant runs in a fork of a process that has
loaded every module its tests import, except the mutant and the modules that import it.
"""

import argparse
import ast
import doctest
import importlib
import json
import os
import random
import signal
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_loader
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any

import pytest

from mutants.dependents import dependents
from mutants.operators import Mutant, mutants
from mutants.targets import EQUIVALENT, TARGETS

TESTS = Path(__file__).parent.parent
SOURCE = TESTS.parent / "src" / "diffmask"
PRELOADED = ("torch", "numpy", "scipy.stats", "safetensors.torch", "pydantic", "hypothesis", "jaxtyping")


class MutantImporter(MetaPathFinder, Loader):
    """Imports one module from a changed tree."""

    def __init__(self, name: str, tree: ast.Module) -> None:
        self.name, self.tree = name, tree

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Answer for the changed module only."""
        if fullname != self.name:
            return None
        return spec_from_loader(fullname, self, origin=str(SOURCE.parent / f"{fullname.replace('.', '/')}.py"))

    def exec_module(self, module: ModuleType) -> None:
        """Run the changed code."""
        exec(compile(ast.fix_missing_locations(self.tree), str(module.__spec__), "exec"), module.__dict__)


class Imported:
    """A plugin of pytest that writes down which modules the tests import."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def pytest_sessionfinish(self) -> None:
        """Write the names when the tests end."""
        self.file.write_text(json.dumps(sorted(sys.modules)))


def run_tests(module: str, tree: ast.Module, tests: Sequence[str], seconds: float, plugins: Sequence[Any] = ()) -> bool:
    """Return whether the tests fail or do not end, in a fork of this process, with one module changed."""
    child = os.fork()
    if child == 0:
        os.setsid()  # processes that the tests start end with the child
        signal.alarm(int(seconds) + 1)
        os._exit(_run_in_child(module, tree, tests, plugins))
    failed = os.waitpid(child, 0)[1] != 0
    with suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    return failed


def _run_in_child(module: str, tree: ast.Module, tests: Sequence[str], plugins: Sequence[Any]) -> int:
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    os.dup2(silence, 2)
    name = f"diffmask.{module.replace('/', '.')}"
    sys.meta_path.insert(0, MutantImporter(name, tree))
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    if doctest.testmod(importlib.import_module(name), optionflags=flags).failed:
        return 1
    # Without the shape checks, which take most of the time and notice no wrong value.
    options = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-o", "addopts=--import-mode=importlib"]
    options += ["-W", "ignore::pytest.PytestAssertRewriteWarning", "--rootdir", str(TESTS.parent)]
    return int(pytest.main([*options, *(str(TESTS / test) for test in tests)], list(plugins)))


@contextmanager
def _forked() -> Iterator[bool]:
    """Run a block in a fork of this process, which waits for it; yields whether this is the fork."""
    child = os.fork()
    if child == 0:
        try:
            yield True
            os._exit(0)
        except BaseException:
            import traceback

            traceback.print_exc()
        os._exit(1)
    if os.waitpid(child, 0)[1]:
        raise RuntimeError("a part of the mutants could not be tested")
    yield False


def preload(names: Iterable[str], changed: str) -> None:
    """Import modules that the tests import, except tests, the changed module and those that import it."""
    stale = dependents(SOURCE, f"diffmask.{changed.replace('/', '.')}")
    for name in names:
        top = name.partition(".")[0]
        if name in stale or top in ("conftest", "support", "tests", "__main__") or (TESTS / f"{top}.py").exists():
            continue
        with suppress(BaseException):  # parts of libraries that are not imported by that name
            importlib.import_module(name)


def sample(module: str, count: int, seed: int) -> list[Mutant]:
    """Return `count` mutants of a module, or all if 0, evenly drawn, without those that change nothing."""
    found = [
        mutant
        for mutant in mutants((SOURCE / f"{module}.py").read_text())
        if not any(line in mutant.code and change in mutant.change for line, change, _ in EQUIVALENT.get(module, ()))
    ]
    return random.Random(f"{module}{seed}").sample(found, min(count or len(found), len(found)))


def try_module(module: str, drawn: Sequence[Mutant], results: Path) -> None:
    """Run the tests of one module with each mutant; write the indices of the survivors."""
    start, names = time.perf_counter(), results.with_name("imported.json")
    whole, tests = ast.parse((SOURCE / f"{module}.py").read_text()), TARGETS[module]
    if run_tests(module, whole, tests, 600, [Imported(names)]):
        raise RuntimeError(f"{module}: its tests fail without any change")
    seconds = 3 * (time.perf_counter() - start) + 10
    preload(json.loads(names.read_text()), module)
    survivors = []
    for index, mutant in enumerate(drawn):
        if not run_tests(module, mutant.tree, tests, seconds):
            survivors.append(index)
            print(f"  line {mutant.line}: {mutant.change[:160]}", flush=True)
    results.write_text(json.dumps(survivors))
    killed = len(drawn) - len(survivors)
    print(f"{module}: {killed} of {len(drawn)}, {time.perf_counter() - start:.0f} s", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--each", type=int, default=16, help="Mutants per module; 0 tries all.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--modules", nargs="*", default=list(TARGETS))
    parser.add_argument("--lowest", type=float, default=0.9, help="Share of mutants that must be noticed.")
    chosen = parser.parse_args()
    for name in PRELOADED:
        importlib.import_module(name)
    importlib.import_module("torch").set_num_threads(1)
    killed = total = 0
    with TemporaryDirectory() as folder:
        results = Path(folder) / "survivors.json"
        for module in chosen.modules:
            drawn = sample(module, chosen.each, chosen.seed)
            with _forked() as fork:
                if fork:
                    try_module(module, drawn, results)
            total += len(drawn)
            killed += len(drawn) - len(json.loads(results.read_text()))
    print(f"noticed: {killed} of {total} ({killed / max(total, 1):.1%})")
    return int(killed < chosen.lowest * total)


if __name__ == "__main__":
    sys.exit(main())
