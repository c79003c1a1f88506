"""DiffMask's hard masks on a classifier of sentences: what they erase, what that does, and how long the fit took.

    python benchmarks/masks.py --model CLF --data sst2:FOLDER [KEY=VALUE ...]

Every state on the validation rows, some of which the thresholds were set on, and the last one on the test rows, which
nothing was set on. Options are DiffMask's, as `by=gates steps=300`; CLF is what `diffmask train` wrote.
"""

import argparse
import time

import torch

import diffmask as dm
from diffmask.core.batch import Batch
from diffmask.core.config import parse, parse_overrides
from diffmask.methods.diffmask.base import MaskExplainer
from diffmask.metrics.fidelity import macro_f1, under_masks


def measured(explainer: MaskExplainer, rows: Batch) -> dict[str, tuple[float, ...]]:
    """By state: share masked, divergence, agreement, macro-F1 before and after."""
    order = rows.present.sum(dim=1).argsort(stable=True)
    with torch.no_grad():
        parts = [under_masks(explainer, rows[some].trim()) for some in order.split(128)]
    found = {}
    for site in explainer.sites:
        table = {name: torch.cat([part[site][name] for part in parts]) for name in parts[0][site]}
        means = [table[name].mean().item() for name in ("kept", "divergence", "agreement")]
        scores = [macro_f1(table[name], table["gold"]).item() for name in ("before", "after")]
        found[site] = (1 - means[0], *means[1:], *scores)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="a classifier's folder")
    parser.add_argument("--data", required=True, help="such as sst2:FOLDER")
    parser.add_argument("--out", help="folder to save the explainer to, as benchmarks/explain.py wants it")
    parser.add_argument("choices", nargs="*", metavar="KEY=VALUE")
    asked = parser.parse_args()
    task = dm.TextClassificationConfig(model=asked.model, data=asked.data).load(0)
    start = time.perf_counter()
    explainer = parse("method", {"name": "diffmask", **parse_overrides(asked.choices)}, "masks").fit(task, seed=0)
    print(f"fitted in {time.perf_counter() - start:.0f} s on {torch.get_num_threads()} threads\n")
    if asked.out:
        explainer.save_pretrained(asked.out)
    print("| rows | seen from | masked | KL, nats | agreement | macro-F1 |\n|---|---|---|---|---|---|")
    for split in ("valid", "test"):
        for site, (masked, caused, agreed, before, after) in measured(explainer, task.data[split]).items():
            if split == "valid" or site == explainer.sites[-1]:
                scores = f"{100 * before:.1f} -> {100 * after:.1f}"
                print(f"| {split} | {site} | {masked:.1%} | {caused:.3f} | {agreed:.3f} | {scores} |", flush=True)


if __name__ == "__main__":
    main()
