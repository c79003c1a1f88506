"""Run the fuzzer: `python -m fuzz --commands 1000 --calls 2000 --artefacts 500 --seed 0`."""

import argparse
import contextlib
import io
import os
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from hypothesis import HealthCheck, Phase, Verbosity, given, seed, settings
from hypothesis import strategies as st

from fuzz.outcome import Failure


def explore(
    strategy: st.SearchStrategy[Any], run: Callable[[Any], Failure | None], count: int, random_seed: int
) -> tuple[int, list[Failure]]:
    """Run `count` different examples of a strategy; return how many were run, and the failures."""
    seen: set[str] = set()
    failures: list[Failure] = []

    @seed(random_seed)
    @settings(
        # Some examples are drawn twice: they are run once.
        max_examples=3 * count,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        verbosity=Verbosity.quiet,
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def check(example: Any) -> None:
        if len(seen) >= count or str(example) in seen:
            return
        seen.add(str(example))
        failure = run(example)
        if failure is not None:
            failures.append(failure)

    check()
    return len(seen), failures


def show(title: str, count: int, failures: list[Failure], seconds: float) -> None:
    """Print how many failed, and one example of each place."""
    print(f"{title}: {len(failures)} of {count} failed, {seconds:.0f} s", flush=True)
    places: dict[tuple[str, str], list[Failure]] = defaultdict(list)
    for failure in failures:
        places[failure.place, failure.why[:40]].append(failure)
    for (place, _), group in sorted(places.items(), key=lambda item: -len(item[1])):
        print(f"  {len(group)} x {place}\n    {group[0].why}\n    {group[0].given}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    for name, count in (("commands", 1000), ("calls", 2000), ("artefacts", 500), ("seed", 0)):
        parser.add_argument(f"--{name}", type=int, default=count)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    os.environ["HF_HUB_OFFLINE"] = "1"  # read when the library is imported, below
    failed = 0
    with TemporaryDirectory() as folder:
        from fuzz import calls, commands, damage
        from fuzz.home import make_home

        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            make_home(Path(folder) / "home")
        for title, strategy, run, count in (
            ("command lines", commands.command_lines(), commands.run_command, chosen.commands),
            ("calls", calls.calls(), calls.run_call, chosen.calls),
            ("damaged artefacts", damage.damages(), damage.read_damaged, chosen.artefacts),
        ):
            if count:
                start = time.perf_counter()
                number, failures = explore(strategy, run, count, chosen.seed)
                show(title, number, failures, time.perf_counter() - start)
                failed += len(failures)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
