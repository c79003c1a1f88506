"""Count what can go wrong: `python -m trials`, or some of it: `python -m trials threads resume --seed 1`.

threads     64 calls from 8 threads, every method: the scores of serial calls
untouched   errors and interrupts in explanations and fits: the model and the process are as they were
batching    every method in four families: a row in a batch has the scores of the row alone
faults      105 commands with kills, signals, full and read-only disks, a clock set back, two at once
resume      20 tables begun with another explainer, table, shard or job file
"""

import argparse
import logging
import sys
import time
import warnings
from importlib import import_module

import torch

SECTIONS = ("threads", "untouched", "batching", "faults", "resume")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=", ".join(SECTIONS))
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    failed = 0
    for section in chosen.sections or SECTIONS:
        start = time.perf_counter()
        count = import_module(f"trials.{section}").run(chosen.seed)
        count.show()
        print(f"  {time.perf_counter() - start:.0f} s", flush=True)
        failed += len(count.failures)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
