"""The bABI-1 grid beside what was published and what it must reach: `python benchmarks/roar_babi.py runs/roar_babi`."""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from diffmask.report.roar import RoarRun, read_roar


@dataclass(frozen=True)
class Published:
    """Madsen et al. 2022, five seeds, in percent: the score at 10 to 90 % masked, RACU and its interval."""

    curve: tuple[float, ...]
    racu: float | None = None
    low: float = 0.0
    high: float = 100.0


PUBLISHED = {
    "Random": Published((86.8, 73.7, 65.1, 54.8, 45.1, 38.6, 35.0, 29.5, 23.7)),
    "Attention": Published((50.5, 26.1, 22.2, 21.5, 20.7, 20.0, 18.4, 18.5, 17.4), 66.5, 57.3, 75.7),
    "Gradient": Published((45.4, 25.8, 23.0, 22.4, 21.2, 20.5, 19.5, 19.3, 19.7), 66.1, 59.6, 72.0),
    "Input times gradient": Published((35.5, 24.0, 21.3, 21.1, 20.6, 18.0, 19.6, 19.2, 19.8), 71.2, 67.0, 75.2),
    "Integrated gradient": Published((31.1, 26.2, 24.2, 27.8, 28.5, 28.5, 25.6, 25.7, 24.2), 59.1, 51.7, 65.9),
}


def figures(run: RoarRun) -> Iterator[tuple[str, ...]]:
    """Figure, published, measured, reached."""
    quality = [record.value for record in run.records if record.metric == "quality"]
    yield "accuracy, worst seed", "100", f"{100 * min(quality):.1f}", reached(min(quality) >= 0.995)
    random = PUBLISHED["Random"].curve
    found = curve(run, "Random")
    off = max(abs(ours - theirs) for ours, theirs in zip(found, random, strict=True))
    yield "random curve", shown(random), shown(found), reached(off <= 3)
    for area in run.areas:
        known = PUBLISHED[area.title]
        own = ", ".join(f"{100 * seed:.1f}" for seed in area.seeds)
        inside = known.low <= 100 * area.racu.mean <= known.high
        published = f"{known.racu} ({known.low} to {known.high})"
        yield f"RACU, {area.title}", published, f"{100 * area.racu.mean:.1f} ({own})", reached(inside)


def curves(run: RoarRun) -> Iterator[tuple[str, ...]]:
    """Each measure's curve above the published one."""
    for name, known in PUBLISHED.items():
        yield name, *(f"{value:.1f}" for value in curve(run, name))
        yield "*published*", *(f"{value:.1f}" for value in known.curve)


def curve(run: RoarRun, name: str) -> list[float]:
    """The mean over seeds at 10 to 90 %, in percent."""
    found = next(one for one in run.curves if one.title == name)
    return [100 * point.mean for point in found.points[1:-1]]


def shown(values: Sequence[float]) -> str:
    return " ".join(f"{value:.1f}" for value in values)


def reached(yes: bool) -> str:
    return "yes" if yes else "NO"


def show(headings: Sequence[str], lines: Iterator[tuple[str, ...]]) -> None:
    """A table in Markdown."""
    print(f"| {' | '.join(headings)} |\n|{'---|' * len(headings)}")
    for line in lines:
        print(f"| {' | '.join(line)} |")


def main() -> None:
    run = read_roar(sys.argv[1])
    show(("figure", "published", "measured", "reached"), figures(run))
    print()
    show(("% masked", *map(str, range(10, 100, 10))), curves(run))


if __name__ == "__main__":
    main()
