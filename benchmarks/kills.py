"""Twenty kills: workers and drivers of a dask cluster and of a real Slurm die, and the numbers must not notice.

A grid of the toy task is run once by one process that is left alone, then by each engine while workers at their work
and drivers are killed with SIGKILL; a killed driver is started again. Exits with an error unless every artefact that
was there at a kill is there unchanged in the end, and every tensor and number equals that of the run left alone.

    python benchmarks/kills.py                    # ten kills each on dask and on Slurm
    python benchmarks/kills.py --kills 4 --engine dask
"""

import argparse
import os
import random
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from support import slurm
from support.kills import Killed, artefacts, command_for, grid, numbers, run_alone, run_with_kills

SLURM = "--engine slurm --queue main --memory 2GB --jobs 2 --walltime 01:00:00 --interface lo"
OPTIONS = {"dask": "--engine dask --workers 2", "slurm": SLURM, "processes": "--engine processes --workers 2"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", action="append", choices=OPTIONS, help="which; dask and slurm")
    parser.add_argument("--kills", type=int, default=10, help="kills of each engine")
    parser.add_argument("--seeds", type=int, default=8, help="seeds of the grid")
    parser.add_argument("--seed", type=int, default=0, help="of when and who")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kills-") as name:
        home = Path(name)
        experiment = grid(home / "grid.yaml", chosen.seeds)
        start = time.monotonic()
        run_alone(experiment, home / "alone")
        print(f"left alone: {len(numbers(home / 'alone'))} numbers in {time.monotonic() - start:.0f} s", flush=True)
        good = [
            killing(engine, experiment, home, chosen.kills, chosen.seed)
            for engine in chosen.engine or ["dask", "slurm"]
        ]
    if not all(good):
        raise SystemExit("results were lost, or are other than those of the run left alone")


def killing(engine: str, experiment: Path, home: Path, kills: int, seed: int) -> bool:
    """One engine's kills; whether nothing came of them."""
    source, folder = random.Random(f"{engine} {seed}"), home / engine
    victims = source.sample(["worker"] * (kills - kills // 3) + ["driver"] * (kills // 3), kills)
    start = time.monotonic()
    with cluster(engine, home / "slurm") as environment:
        command = [*command_for(experiment, folder), *OPTIONS[engine].split()]
        apart = len(artefacts(home / "alone" / "store")) // (kills + 2)
        killed = run_with_kills(command, folder, victims, seed, environment, apart)
    return show(engine, killed, folder, home / "alone", time.monotonic() - start)


@contextmanager
def cluster(engine: str, home: Path) -> Iterator[Mapping[str, str]]:
    if engine != "slurm":
        yield os.environ
        return
    if reason := slurm.missing():
        raise SystemExit(reason)
    with slurm.slurm(home) as environment:
        yield environment


def show(engine: str, killed: Killed, folder: Path, alone: Path, seconds: float) -> bool:
    mine, theirs = artefacts(folder / "store"), artefacts(alone / "store")
    wrong = {name for name in theirs if mine.get(name) != theirs[name]}
    same = numbers(folder) == numbers(alone)
    print(f"\n{engine}: {len(killed.kills)} kills, {killed.starts} drivers, {seconds:.0f} s")
    table([("kill", "victim", "while making", "artefacts there")])
    table([(str(at), kill.victim, kill.work, str(kill.kept)) for at, kill in enumerate(killed.kills, 1)])
    table(
        [
            ("results lost", str(len(killed.lost))),
            ("artefacts other than alone", f"{len(wrong)} of {len(theirs)}"),
            ("numbers identical", f"{'yes' if same else 'NO'}, {len(numbers(folder))}"),
        ]
    )
    sys.stdout.flush()
    return same and not wrong and not killed.lost


def table(rows: Sequence[Sequence[str]]) -> None:
    for row in rows:
        print("  ".join(f"{cell:<28}" for cell in row))


if __name__ == "__main__":
    main()
