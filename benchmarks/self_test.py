"""Which metrics rank degraded explanations rightly: `python benchmarks/self_test.py CLASSIFIER sst2:FOLDER 100`."""

import sys
import time
import warnings
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from diffmask.core.config import parse
from diffmask.core.store import Store
from diffmask.metrics.self_test import LEVELS, MetricReliability, describe, self_test
from diffmask.tasks.text.text_configs import TextClassificationConfig
from diffmask.workspace.workspace import InMemoryTaskConfig, Workspace

METRICS = ("comprehensiveness", "deletion-insertion", "decision-flip", "f-fidelity", "infidelity", "sensitivity")


def main() -> None:
    model, data, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
    names = sys.argv[4:] or METRICS
    warnings.simplefilter("ignore")
    task = TextClassificationConfig(model=model, data=data).load(seed=0)
    rows = torch.arange(len(task.data["test"]))
    held_out = task.subset("test", rows[:: max(1, len(rows) // count)][:count])
    print(f"| metric | {' | '.join(f'{level:.0%}' for level in LEVELS)} | rank correlation | seconds |")
    print(f"|{'---|' * (len(LEVELS) + 3)}")
    with TemporaryDirectory() as folder:
        workspace = Workspace(Store(Path(folder)), InMemoryTaskConfig.of(held_out, None), 0)
        reliabilities: list[MetricReliability] = []
        for name in names:
            start = time.process_time()
            tested = self_test(workspace, [parse("metric", name, "self-test")])
            reliabilities += tested
            for reliability in tested:
                values = " | ".join(f"{value:.3f}" for value in reliability.values)
                seconds = time.process_time() - start
                print(f"| {reliability.title} | {values} | {reliability.correlation:.2f} | {seconds:.0f} |", flush=True)
        print(describe(reliabilities))


if __name__ == "__main__":
    main()
