"""The toy experiment beside what was published and what it must reach: `python benchmarks/toy.py runs/toy`."""

import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import mean, median

from diffmask.results.records import Record, read_jsonl

Line = tuple[str, str, str, str, bool]


def values(records: list[Record], method: str, site: str, metric: str) -> list[float]:
    """One number a seed."""
    return [
        record.value
        for record in records
        if record.method.startswith(method) and record.site == site and record.metric == metric
    ]


def lines(records: list[Record]) -> Iterator[Line]:
    """Figure, published, measured, must reach, reached."""
    quality = values(records, "model", "", "quality")
    yield "model accuracy, worst seed", ".998", f"{min(quality):.4f}", ">= .995", min(quality) >= 0.995
    for metric, published, middle, worst in (("kl", ".028-.037", 1e-3, 5e-3), ("js", ".0095-.013", 5e-4, 2e-3)):
        divergences = values(records, "diffmask", "hidden", f"{metric}_to_truth")
        reached = median(divergences) <= middle and max(divergences) <= worst
        shown = f"median {median(divergences):.5f}, worst {max(divergences):.5f}"
        yield f"DiffMask, hidden: {metric.upper()}", published, shown, f"median <= {middle}, worst <= {worst}", reached
    flat = values(records, "diffmask", "embedding", "flat_rows")
    yield "DiffMask, embedding: flat rows, worst seed", "uniform", f"{min(flat):.4f}", ">= .99", min(flat) >= 0.99
    held = [value for site in ("embedding", "hidden") for value in values(records, "diffmask", site, "divergence")]
    yield "divergence under hard masks, worst", ".03-.05", f"{max(held):.4f}", "<= .05", max(held) <= 0.05
    erased = values(records, "exact-erasure", "input", "kl_to_truth")
    spread = values(records, "exact-erasure", "input", "js_to_truth")
    shown = f"{mean(erased)} / {mean(spread):.3f}"
    yield (
        "exact erasure: KL / JS",
        "inf / .27",
        shown,
        "the same",
        mean(erased) == float("inf") and abs(mean(spread) - 0.2664) < 0.01,
    )
    ours = mean(values(records, "diffmask", "hidden", "kl_to_truth"))
    for method, site in (("uniform", "input"), ("bottleneck", "hidden"), ("noise-tolerance", "hidden")):
        ratio = mean(values(records, method, site, "kl_to_truth")) / ours
        yield f"closer than {method} by", "10x", f"{ratio:.0f}x", ">= 100x", ratio >= 100


def main() -> None:
    records = read_jsonl(Path(sys.argv[1]) / "records.jsonl")
    print(
        f"{len({record.seed for record in records})} seeds\n\n| figure | published | measured | must reach | reached |"
    )
    print("|---|---|---|---|---|")
    for *cells, reached in lines(records):
        print(f"| {' | '.join(cells)} | {'yes' if reached else 'NO'} |")


if __name__ == "__main__":
    main()
