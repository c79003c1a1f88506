"""A benchmark killed at random moments and run again ends in the same numbers as one that was left alone."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from diffmask.results.benchmark_result import BenchmarkResult
from diffmask.results.records import read_jsonl

SCRIPT = """
import sys
import torch
torch.set_num_threads(1)
import diffmask as dm
masks = {"name": "surrogate-mask", "mask": "states", "steps": 20}
methods = ["gradient", "leave-one-out", "integrated-gradients", masks]
task = dm.ToyTaskConfig(rows=600, epochs=2)
dm.benchmark(task, methods, texts=60, seeds=(0, 1), out=sys.argv[1])
"""
KILLS = 5


def command(folder: Path) -> list[str]:
    return [sys.executable, "-c", SCRIPT, str(folder)]


def killed(folder: Path, artefacts: int, delay: float) -> int:
    """Run until so many artefacts are there, and a moment longer; how many there then are."""
    process = subprocess.Popen(command(folder), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while process.poll() is None and len(list(folder.glob("store/*/*/artefact.json"))) < artefacts:
        time.sleep(0.005)
    time.sleep(delay)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    return len(list(folder.glob("store/*/*/artefact.json")))


def numbers(folder: Path) -> list[Any]:
    """Everything measured; not what it cost."""
    board = BenchmarkResult.load(folder)
    records = [(r.method, r.metric, r.at, r.seed, r.value, r.per_row) for r in read_jsonl(folder / "records.jsonl")]
    estimates = [(method.name, dict(method.estimates)) for method in board.methods]
    return [records, estimates, board.comparisons, board.curves, board.agreement, board.texts]


@pytest.mark.slow
def test_killed_at_five_random_moments_it_ends_in_the_same_numbers(tmp_path: Path) -> None:
    subprocess.run(command(tmp_path / "whole"), check=True, capture_output=True)
    everything = len(list(tmp_path.glob("whole/store/*/*/artefact.json")))
    source = random.Random(5)
    moments = sorted(source.randrange(1, everything) for _ in range(KILLS))
    left = [killed(tmp_path / "cut", moment, source.random() * 0.2) for moment in moments]
    assert all(count >= moment for count, moment in zip(left, moments, strict=True))
    assert left[0] < everything
    subprocess.run(command(tmp_path / "cut"), check=True, capture_output=True)
    assert numbers(tmp_path / "cut") == numbers(tmp_path / "whole")
