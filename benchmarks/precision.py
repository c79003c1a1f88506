"""CPU time of fine-tuning in float32 over that in bfloat16, and the scores: `python benchmarks/precision.py`.

The packaged encoder learns the packaged short reviews. Both trainings see the same minibatches, one after the other.
"""

import argparse
import time
from dataclasses import replace
from typing import Any, cast

import torch

from diffmask.tasks.text.text_configs import FineTunedClassificationConfig


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1500, help="rows per split")
    parser.add_argument("--epochs", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    config = FineTunedClassificationConfig(data="short-reviews", rows=arguments.rows, epochs=arguments.epochs)
    seconds: dict[str, float] = {}
    for precision in ("float32", "bfloat16"):
        chosen = replace(config, precision=cast(Any, precision))
        task = chosen.build(seed=0)
        start = time.process_time()
        chosen.train(task, seed=0)
        seconds[precision] = time.process_time() - start
        print(
            f"{precision}: {seconds[precision]:.0f} CPU s, test score {task.score(task.data['test']):.3f}", flush=True
        )
    print(f"float32 takes {seconds['float32'] / seconds['bfloat16']:.2f} times as long")


if __name__ == "__main__":
    main()
