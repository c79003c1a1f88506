"""Change the core at many places, one at a time, and count the changes that its tests notice.

`python -m mutants --each 16 --seed 0`. Each mutant runs in a fork of one process that has loaded torch and pytest, so
that a mutant takes about as long as its tests.
"""

import argparse
import ast
import importlib
import os
import random
import signal
import sys
import time
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_loader
from pathlib import Path
from types import ModuleType
from typing import Any

from mutants.operators import Mutant, mutants
from mutants.targets import EQUIVALENT, TARGETS

TESTS = Path(__file__).parent.parent
SOURCE = TESTS.parent / "src" / "diffmask"
PRELOADED = (
    "torch",
    "numpy",
    "pytest",
    "scipy.stats",
    "safetensors.torch",
    "pydantic",
    "hypothesis",
    "jaxtyping",
    "jinja2",
)
SECONDS = 600
"""A mutant that takes longer has been noticed: it does not end."""


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


def run_tests(module: str, tree: ast.Module, tests: Sequence[str]) -> bool:
    """Return whether the tests fail, in a fork of this process, with one module changed."""
    child = os.fork()
    if child == 0:
        os._exit(_run_in_child(module, tree, tests))
    return os.waitpid(child, 0)[1] != 0


def _run_in_child(module: str, tree: ast.Module, tests: Sequence[str]) -> int:
    import pytest

    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    os.dup2(silence, 2)
    signal.alarm(SECONDS)
    sys.meta_path.insert(0, MutantImporter("diffmask." + module.replace("/", "."), tree))
    # Without the shape checks, which take most of the time and notice no wrong value.
    options = [
        "-x",
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
        "-W",
        "ignore::pytest.PytestAssertRewriteWarning",
        "-o",
        "addopts=--import-mode=importlib",
    ]
    return int(pytest.main([*options, "--rootdir", str(TESTS.parent), *(str(TESTS / test) for test in tests)]))


def sample(module: str, count: int, seed: int) -> list[Mutant]:
    """Return `count` mutants of a module, evenly drawn, without those that change nothing."""
    found = [
        mutant
        for mutant in mutants((SOURCE / f"{module}.py").read_text())
        if not any(part in mutant.change for part in EQUIVALENT.get(module, ()))
    ]
    return random.Random(f"{module}{seed}").sample(found, min(count, len(found)))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--each", type=int, default=16, help="Mutants per module.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--modules", nargs="*", default=list(TARGETS))
    parser.add_argument("--lowest", type=float, default=0.9, help="Share of mutants that must be noticed.")
    chosen = parser.parse_args()
    for name in PRELOADED:
        importlib.import_module(name)
    importlib.import_module("torch").set_num_threads(1)
    killed = total = 0
    for module in chosen.modules:
        tests = [test for test in TARGETS[module] if (TESTS / test).is_file()]
        start = time.perf_counter()
        if run_tests(module, ast.parse((SOURCE / f"{module}.py").read_text()), tests):
            print(f"{module}: its tests fail without any change", flush=True)
            return 2
        drawn = sample(module, chosen.each, chosen.seed)
        survivors = [mutant for mutant in drawn if not run_tests(module, mutant.tree, tests)]
        killed, total = killed + len(drawn) - len(survivors), total + len(drawn)
        print(
            f"{module}: {len(drawn) - len(survivors)} of {len(drawn)}, {time.perf_counter() - start:.0f} s", flush=True
        )
        for mutant in survivors:
            print(f"  line {mutant.line}: {mutant.change[:160]}", flush=True)
    print(f"noticed: {killed} of {total} ({killed / max(total, 1):.0%})")
    return int(killed < chosen.lowest * total)


if __name__ == "__main__":
    sys.exit(main())
