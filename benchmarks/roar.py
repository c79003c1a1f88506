"""One bABI-1 training to its final accuracy against the published recipe: `python benchmarks/roar.py [FOLDER]`.

The published recipe always runs 100 epochs of batches of 50, of all lengths, at a rate of 1e-3. Every one costs the
same, so a few are timed and the rest counted, read by torch's LSTM and by the compiled kernel; all sides run in this
process, one after the other, by CPU time.
"""

import sys
import time
from dataclasses import replace
from unittest.mock import patch

from diffmask.tasks.bilstm import lstm
from diffmask.tasks.bilstm.bilstm_config import BiLSTMConfig

TIMED = 3


def seconds(config: BiLSTMConfig) -> tuple[float, float]:
    """CPU seconds of a training, and its test accuracy."""
    task = config.build(0)
    start = time.process_time()
    config.train(task, 0)
    return time.process_time() - start, task.score(task.data["test"])


def main() -> None:
    whole = BiLSTMConfig(data="babi-1", folder=sys.argv[1] if len(sys.argv) > 1 else None)
    timed = replace(whole, epochs=TIMED)
    seconds(timed)  # The kernel is compiled once on a machine.
    ours, accuracy = seconds(whole)
    compiled = seconds(timed)[0] / TIMED
    with patch.object(lstm, "has_numba", lambda: False):
        torchs = seconds(timed)[0] / TIMED
    print(f"an epoch: {compiled:.2f} s compiled, {torchs:.2f} s by torch; {torchs / compiled:.1f}x less")
    print(
        f"ours: {ours:.1f} s to {accuracy:.4f}; 100 epochs as published: {100 * torchs:.0f} s; "
        f"{100 * torchs / ours:.1f}x less"
    )


if __name__ == "__main__":
    main()
