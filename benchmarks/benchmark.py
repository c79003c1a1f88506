"""The benchmark measured: its time against its forecast, and the order of methods on a sentiment model.

    python benchmarks/benchmark.py [--model CLF --data DATA] [--texts 200] [--out FOLDER]

Without a model the packaged encoder is fine-tuned on the packaged reviews, for a minute or two. `--data sst2:FOLDER`
reads the Stanford Sentiment Treebank; a prototype's figures on 200 of its sentences stand beside ours.
"""

import argparse
import time
from pathlib import Path
from tempfile import mkdtemp

import diffmask as dm
from diffmask.results.benchmark_result import BenchmarkResult

METHODS = [
    "random",
    "gradient",
    "input-x-gradient",
    {"name": "integrated-gradients", "n_steps": 50, "baseline": "mask", "signed": True},
    "leave-one-out",
    "surrogate-mask",
]
METRICS = ["comprehensiveness", {"name": "comprehensiveness", "mode": "delete"}]
PROTOTYPE = {
    "random": (0.074, 0.171),
    "gradient": (0.091, 0.149),
    "leave-one-out": (0.401, 0.009),
    "integrated-gradients": (0.408, -0.013),
}
MOST_MINUTES = 10


def timed_board(arguments: argparse.Namespace) -> tuple[BenchmarkResult, float]:
    """The board of a fresh benchmark, and the seconds from the plan to the board."""
    if arguments.model:
        task = dm.TextClassificationConfig(model=arguments.model, data=arguments.data).load(0)
    else:
        task = dm.FineTunedClassificationConfig(data=arguments.data, rows=2000, epochs=1).load(0)
    start = time.perf_counter()
    board = dm.benchmark(task, METHODS, METRICS, texts=arguments.texts, out=arguments.out)
    return board, time.perf_counter() - start


def order_rows(board: BenchmarkResult) -> list[tuple[str, tuple[float, ...], tuple[float, float]]]:
    """Method, what was measured by masking, what the prototype found."""
    masked = [metric.name for metric in board.metrics if "delete" not in metric.name][:2]
    return [
        (method.name, tuple(method.estimates[name].mean for name in masked), PROTOTYPE[method.name])
        for method in board.methods
        if method.name in PROTOTYPE
    ]


def same_order(rows: list[tuple[str, tuple[float, ...], tuple[float, float]]], tie: float = 0.03) -> bool:
    """Whether no pair that the prototype saw further apart than a tie is the other way round."""
    return all(
        (ours[which] - theirs[which]) * (known[which] - other[which]) > 0
        for _, ours, known in rows
        for _, theirs, other in rows
        for which in (0, 1)
        if abs(known[which] - other[which]) > tie
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a classifier's folder")
    parser.add_argument("--data", default="rotten-tomatoes")
    parser.add_argument("--texts", type=int, default=200)
    parser.add_argument("--out", type=Path, default=None)
    arguments = parser.parse_args()
    arguments.out = arguments.out or Path(mkdtemp(prefix="diffmask-benchmark-"))
    board, seconds = timed_board(arguments)
    expected = board.manifest["forecast_seconds"]
    print(board)
    print(f"\n{len(board.methods)} methods x {len(board.metrics)} measures, {board.manifest['texts']} texts")
    reached = "yes" if seconds <= 60 * MOST_MINUTES else "NO"
    print(f"time: {seconds / 60:.1f} min (must be <= {MOST_MINUTES}: {reached})")
    ratio = board.manifest["seconds"] / max(expected, 1e-9)
    print(f"after the forecast {board.manifest['seconds']:.0f} s; forecast {expected:.0f} s: "
          f"ratio {ratio:.2f} (must be within 0.5 and 2: {'yes' if 0.5 <= ratio <= 2 else 'NO'})")  # fmt: skip
    rows = order_rows(board)
    print("\n| method | comprehensiveness / sufficiency | a prototype, SST-2 |\n|---|---|---|")
    for name, ours, known in rows:
        print(f"| {name} | {ours[0]:.3f} / {ours[1]:.3f} | {known[0]:.3f} / {known[1]:.3f} |")
    print(f"\nsame order where the prototype's differ by more than .03: {'yes' if same_order(rows) else 'NO'}")


if __name__ == "__main__":
    main()
