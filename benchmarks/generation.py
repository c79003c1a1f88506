"""Which part of a prompt did a response need? Methods compared on planted facts, where the truth is known.

`collect` runs a language model once on every subset of the facts of each prompt that it answers, and stores the values;
it may be killed and started again. `report` computes every figure of the table from them: leave-one-out, ContextCite
and verified sets are then functions of stored values. Amortised is fitted on prompts other than those it explains.
`tune` fine-tunes the model on other prompts of this kind. `rivals` runs published packages.
`poisoned` asks whether a passage that fooled the model is ranked first; DATA has the files of PoisonedRAG and NQ.
`scale` measures time and memory of ten times as many prompts, and of one prompt of 8,000 tokens.

    python benchmarks/generation.py collect --model smollm2 --out runs/generation --prompts 30
    python benchmarks/generation.py report --out runs/generation
    python benchmarks/generation.py tune --model smollm2 --out runs/tuned
    python benchmarks/generation.py poisoned --model smollm2 --data DATA --prompts 120
    python benchmarks/generation.py scale --model smollm2 --prompts 10
"""

import argparse
from pathlib import Path

import torch

from language_models.comparison import report
from language_models.finetune import tune
from language_models.measure import FACTS, collect
from language_models.poisoned import run_poisoned
from language_models.rivals import RIVALS, run_rivals
from language_models.scale import run_scale


def main() -> None:
    """Run one of the stages."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stage", choices=("collect", "report", "tune", "rivals", "poisoned", "scale"))
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--out", type=Path, default=Path("runs/generation"))
    parser.add_argument("--data", type=Path, default=Path("data/context"), help="folder of `poisoned`")
    parser.add_argument("--prompts", type=int, default=200)
    parser.add_argument("--complete", type=int, default=200, help="prompts that are run on every subset of their facts")
    parser.add_argument("--tokens", type=int, default=8000, help="length of the long prompt of `scale`")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=34, help="optimiser steps of `tune`, 8 prompts each")
    parser.add_argument("--packages", nargs="+", default=list(RIVALS), choices=RIVALS, help="packages of `rivals`")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.stage == "collect":
        collect(options.model, options.out, options.prompts, options.seed, options.complete)
    elif options.stage == "tune":
        tune(options.model, options.out, options.steps, batch_size=8, learning_rate=1e-4, checked=40)
    elif options.stage == "poisoned":
        run_poisoned(options.model, options.data, options.prompts)
    elif options.stage == "scale":
        run_scale(options.model, options.prompts, options.tokens)
    elif options.stage == "rivals":
        run_rivals(options.model, options.out, options.prompts, FACTS, options.packages)
    else:
        report(options.out)


if __name__ == "__main__":
    main()
