"""Recursive ROAR next to the published figures.

    python benchmarks/roar_published.py --data sst runs/roar_sst
    python benchmarks/roar_published.py --data sst benchmarks/records/roar_sst.jsonl

Several folders of runs, or files of records, are read together: seeds may have been run apart. With `--save FILE` their
records are written to one file.
"""

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from diffmask.report.roar_curves import RoarRun, read_roar
from diffmask.results.records import Record, read_jsonl, write_jsonl


@dataclass(frozen=True)
class Published:
    """Madsen et al. 2022, five seeds, in percent: the score at 10 to 90 % masked, RACU and its interval."""

    curve: tuple[float, ...]
    racu: float | None = None
    low: float = 0.0
    high: float = 100.0


BABI_1 = {
    "Random": Published((86.8, 73.7, 65.1, 54.8, 45.1, 38.6, 35.0, 29.5, 23.7)),
    "Attention": Published((50.5, 26.1, 22.2, 21.5, 20.7, 20.0, 18.4, 18.5, 17.4), 66.5, 57.3, 75.7),
    "Gradient": Published((45.4, 25.8, 23.0, 22.4, 21.2, 20.5, 19.5, 19.3, 19.7), 66.1, 59.6, 72.0),
    "Input times gradient": Published((35.5, 24.0, 21.3, 21.1, 20.6, 18.0, 19.6, 19.2, 19.8), 71.2, 67.0, 75.2),
    "Integrated gradient": Published((31.1, 26.2, 24.2, 27.8, 28.5, 28.5, 25.6, 25.7, 24.2), 59.1, 51.7, 65.9),
}
SST = {
    "Random": Published((81.2, 79.6, 77.6, 75.7, 73.3, 70.9, 68.0, 63.8, 59.6)),
    "Attention": Published((76.6, 73.0, 70.2, 67.7, 66.7, 64.2, 60.2, 57.7, 54.4), 15.7, 13.3, 18.1),
    "Gradient": Published((78.4, 74.4, 72.2, 70.7, 69.5, 67.4, 65.2, 63.5, 59.9), 7.6, 5.6, 9.9),
    "Input times gradient": Published((76.7, 68.5, 65.1, 62.9, 59.3, 56.1, 56.2, 48.9, 51.0), 28.0, 23.6, 33.6),
    "Integrated gradient": Published((76.8, 67.9, 64.6, 60.2, 52.8, 48.7, 51.3, 45.5, 40.4), 37.8, 32.5, 42.4),
}
BABI_2 = {
    "Attention": Published((), 75.4, 67.3, 80.3),
    "Gradient": Published((), 66.3, 61.2, 70.5),
    "Input times gradient": Published((), 66.7, 54.3, 74.7),
    "Integrated gradient": Published((), 34.6, 19.8, 48.0),
}
BABI_3 = {
    "Attention": Published((), 77.7, 69.6, 87.3),
    "Gradient": Published((), 73.0, 65.4, 82.1),
    "Input times gradient": Published((), 53.9, 29.8, 64.6),
    "Integrated gradient": Published((), 25.9, 16.8, 34.4),
}
PUBLISHED = {"babi-1": BABI_1, "sst": SST, "babi-2": BABI_2, "babi-3": BABI_3}
"""By data set. The curves of bABI-2 and bABI-3 are not published, only the areas."""


def read_records(paths: Sequence[Path]) -> list[Record]:
    """Return the records of folders of runs or of files; a record that several of them hold counts once."""
    records = [record for path in paths for record in (read_roar(path).records if path.is_dir() else read_jsonl(path))]
    return list({json.dumps(asdict(record)): record for record in records}.values())


def summary_rows(run: RoarRun, published: Mapping[str, Published]) -> Iterator[tuple[str, ...]]:
    """Yield figure, published value, measured value, and whether the measured one agrees."""
    quality = [record.value for record in run.records if record.metric == "quality"]
    if quality:
        yield "nothing masked, worst seed", "", f"{100 * min(quality):.1f}", ""
    random, measured = published.get("Random"), mean_curve(run, "Random")
    if random and measured:
        largest = max(abs(ours - theirs) for ours, theirs in zip(measured, random.curve, strict=False))
        yield "random curve", format_curve(random.curve), format_curve(measured), yes_or_no(largest <= 3)
    for area in run.areas:
        known = published.get(area.title)
        if known is None or area.variant != "recursive_roar":
            continue
        seeds = ", ".join(f"{100 * seed:.1f}" for seed in area.seeds)
        inside = known.low <= 100 * area.racu.mean <= known.high
        interval = f"{known.racu} ({known.low} to {known.high})"
        yield f"RACU, {area.title}", interval, f"{100 * area.racu.mean:.1f} ({seeds})", yes_or_no(inside)


def curve_rows(run: RoarRun, published: Mapping[str, Published]) -> Iterator[tuple[str, ...]]:
    """Yield each measure's curve, and the published one below it."""
    for name, known in published.items():
        yield name, *(f"{value:.1f}" for value in mean_curve(run, name))
        if known.curve:
            yield "*published*", *(f"{value:.1f}" for value in known.curve)


def mean_curve(run: RoarRun, name: str) -> list[float]:
    """Return the mean over seeds at 10 to 90 %, in percent; empty if it was not measured recursively."""
    roar_curve = next(
        (series for series in run.curves if series.title == name and series.variant == "recursive_roar"), None
    )
    return [100 * point.mean for point in roar_curve.points[1:-1]] if roar_curve else []


def format_curve(values: Sequence[float]) -> str:
    return " ".join(f"{value:.1f}" for value in values)


def yes_or_no(agrees: bool) -> str:
    return "yes" if agrees else "NO"


def print_table(headings: Sequence[str], rows: Iterator[tuple[str, ...]]) -> None:
    """Print a table in Markdown."""
    print(f"| {' | '.join(headings)} |\n|{'---|' * len(headings)}")
    for row in rows:
        print(f"| {' | '.join(row)} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, help="folders of runs, or files of records")
    parser.add_argument("--data", default="babi-1", choices=PUBLISHED)
    parser.add_argument("--save", type=Path, help="file for the records of all runs")
    arguments = parser.parse_args()
    records = read_records(arguments.runs)
    if arguments.save:
        write_jsonl(arguments.save, records)
    run, published = RoarRun(records, {}), PUBLISHED[arguments.data]
    print_table(("figure", "published", "measured", "agrees"), summary_rows(run, published))
    print()
    print_table(("% masked", *map(str, range(10, 100, 10))), curve_rows(run, published))


if __name__ == "__main__":
    main()
