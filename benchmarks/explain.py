"""What an explanation costs once the explainer is fitted.

    python benchmarks/explain.py --explainer FOLDER --data sst2:FOLDER

Ratios in one run: 1,000 sentences explained against a bare forward pass of the same batches; a table of 10,000 texts
against one of 1,000, in time and in memory, each in a process of its own; Captum's LayerIntegratedGradients with 50
steps against ours on the very same sentences, which takes Captum minutes. The machine must be idle: the ratios are of
seconds.
"""

import argparse
import csv
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch

from diffmask.core.batch import Batch
from diffmask.datasets.loading import load_data
from diffmask.datasets.tables import Columns
from diffmask.workspace.persistence import load_explainer
from diffmask.workspace.sharding import explain_table

ROWS_AT_ONCE = 128


def seconds(work: Callable[[], Any]) -> float:
    """What one run takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def ratio(work: Callable[[], Any], other: Callable[[], Any], repeats: int = 5) -> tuple[float, float]:
    """Median seconds of the one, and the median of its ratios to the other, which takes turns with it."""
    pairs = [(seconds(work), seconds(other)) for _ in range(repeats)]
    return median(first for first, _ in pairs), median(first / second for first, second in pairs)


def bare(task: Any, batch: Batch) -> None:
    """The model's answers, in the batches in which an explainer takes the rows."""
    order = batch.present.sum(dim=1).argsort(stable=True)
    with torch.no_grad():
        for rows in order.split(ROWS_AT_ONCE):
            task.predict(batch[rows].trim())


def integrated_gradients(task: Any, batch: Batch) -> None:
    """Captum's own class on the same model, as its tutorials use it: 50 steps, [PAD] for a baseline."""
    from captum.attr import LayerIntegratedGradients

    model = task.model
    method = LayerIntegratedGradients(
        lambda ids, mask: model(input_ids=ids, attention_mask=mask).logits.softmax(-1).amax(-1),
        model.get_input_embeddings(),
    )
    order = batch.present.sum(dim=1).argsort(stable=True)
    for rows in order.split(16):
        part = batch[rows].trim()
        method.attribute(
            part.tokens,
            baselines=torch.full_like(part.tokens, task.pad_token),
            additional_forward_args=(part.present.long(),),
            n_steps=50,
            internal_batch_size=ROWS_AT_ONCE,
        )


def table(explainer: str, file: str, out: str) -> None:
    """One table in this process: its seconds, and the process's largest memory."""
    loaded = load_explainer(explainer, None)
    start = time.perf_counter()
    rows = explain_table(loaded, Path(file), Path(out), Columns())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"rows": rows, "seconds": time.perf_counter() - start, "megabytes": peak}))


def tables(explainer: str, texts: list[str]) -> list[dict[str, float]]:
    """A table of 1,000 and one of 10,000 texts, repeated as often as it takes."""
    measurements = []
    with tempfile.TemporaryDirectory() as home:
        for count in (1_000, 10_000):
            file = Path(home) / f"{count}.csv"
            with file.open("w", newline="") as stream:
                lines = csv.writer(stream)
                lines.writerow(["text"])
                lines.writerows([f"{texts[number % len(texts)]} {number}"] for number in range(count))
            command = [sys.executable, __file__, "--table", explainer, str(file), str(Path(home) / f"{count}.parquet")]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            measurements.append(json.loads(done.stdout.splitlines()[-1]))
    return measurements


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--explainer", help="folder that `diffmask fit` wrote")
    parser.add_argument("--data", help="such as sst2:FOLDER; its test rows are explained")
    parser.add_argument("--captum-sentences", type=int, default=1000, help="how many of them Captum explains")
    parser.add_argument("--table", nargs=3, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.table:
        table(*asked.table)
        return
    explainer = load_explainer(asked.explainer, None)
    task: Any = explainer.task
    texts = [example.text for example in load_data(asked.data, Columns()).test]
    batch = task.encode(texts[:1000])
    print("| figure | measured | must reach |\n|---|---|---|")
    explain, over = ratio(lambda: explainer(batch, rows_at_once=ROWS_AT_ONCE), lambda: bare(task, batch))
    show("explain 1,000 sentences over a bare pass", f"{over:.2f} ({explain:.1f} s)", "<= 1.2")
    small, large = tables(asked.explainer, texts)
    show("10,000 texts over 1,000: time", f"{large['seconds'] / small['seconds']:.2f}x", "<= 10.5x")
    show("10,000 texts over 1,000: memory", f"{large['megabytes'] / small['megabytes']:.2f}x", "<= 1.1x")
    few = batch.spread(asked.captum_sentences)
    theirs = seconds(lambda: integrated_gradients(task, few))
    ours = median(seconds(lambda: explainer(few, rows_at_once=ROWS_AT_ONCE)) for _ in range(5))
    show(f"faster than Captum, 50 steps, on {len(few)} sentences", f"{theirs / ours:.0f}x ({theirs:.0f} s)", ">= 80x")


def show(*cells: str) -> None:
    """A row of the table, as soon as it is known."""
    print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
