"""The bABI-1 grid beside what was published and what it must reach: `python benchmarks/roar_babi.py runs/roar_babi`."""

import sys
from collections.abc import Iterator
from pathlib import Path

from diffmask.record import Record, read_jsonl
from diffmask.report.roar_curves import roar_areas, roar_curves, title

RANDOM = (86.8, 73.7, 65.1, 54.8, 45.1, 38.6, 35.0, 29.5, 23.7)
RACU = {
    "Attention": (66.5, 57.3, 75.7),
    "Gradient": (66.1, 59.6, 72.0),
    "Input times gradient": (71.2, 67.0, 75.2),
    "Integrated gradient": (59.1, 51.7, 65.9),
}
"""Madsen et al. 2022: the mean and its interval, in percent."""


def lines(records: list[Record]) -> Iterator[tuple[str, str, str, bool]]:
    """Figure, published, measured, reached."""
    quality = [record.value for record in records if record.metric == "quality"]
    yield "accuracy, worst seed", "100", f"{100 * min(quality):.1f}", min(quality) >= 0.995
    random = next(curve for curve in roar_curves(records) if curve.method == "random")
    found = [100 * point.mean for point in random.points[1:-1]]
    off = max(abs(ours - theirs) for ours, theirs in zip(found, RANDOM, strict=True))
    yield "random curve", " ".join(map(str, RANDOM)), " ".join(f"{value:.1f}" for value in found), off <= 3
    for area in roar_areas(records):
        if title(area.method) in RACU:
            mean, low, high = RACU[title(area.method)]
            value, own = 100 * area.racu.mean, ", ".join(f"{100 * one:.1f}" for one in seeds_own(records, area.method))
            yield (
                f"RACU, {title(area.method)}",
                f"{mean} ({low} to {high})",
                f"{value:.1f} ({own})",
                low <= value <= high,
            )


def seeds_own(records: list[Record], method: str) -> list[float]:
    """The RACU of each seed."""
    return [record.value for record in records if (record.method, record.metric) == (method, "recursive_roar_racu")]


def main() -> None:
    print("| figure | published | measured | reached |\n|---|---|---|---|")
    for *cells, reached in lines(read_jsonl(Path(sys.argv[1]) / "records.jsonl")):
        print(f"| {' | '.join(cells)} | {'yes' if reached else 'NO'} |")


if __name__ == "__main__":
    main()
