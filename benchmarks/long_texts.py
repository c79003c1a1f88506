"""Explanations of long reviews: are they small and do they hold, and do they find the words that people edited?

    python benchmarks/long_texts.py --model CLF --data imdb:FOLDER --cache FOLDER [--texts 100] [--methods ...]

CLF was trained with `diffmask train --data imdb:FOLDER max_tokens=256 ...`. FOLDER also holds pairs of reviews that
differ by a small edit which changes their sentiment. Explainers are fitted once and kept in the cache folder.
"""

import argparse
from pathlib import Path
from statistics import mean
from typing import cast

import diffmask as dm
from checked_texts import Texts, check
from diffmask.core.config import parse
from diffmask.core.store import Store
from diffmask.metrics.counterfactual import CounterfactualEdits
from diffmask.results.intervals import t_interval
from diffmask.tasks.classification import TextClassification
from diffmask.workspace.workspace import Workspace
from verified import ORDERS, verified

MAX_TOKENS = 256
METHODS = ("surrogate-mask", "amortised", "gradient", "random")


def report_verified(workspace: Workspace, count: int, margin: float) -> None:
    """Print the size of verified sets from the order of SurrogateMask, and whether each of them holds."""
    explainer = workspace.explainer(parse("method", ORDERS["surrogate-mask"], "long texts"))
    texts = Texts.of(cast(TextClassification, workspace.task()), "test", count)
    masks = verified(explainer, texts, explainer(texts.batch).scores, margin)
    checks = check(explainer, texts, masks.kept, margin)
    share = mean((masks.kept.sum(dim=1) / texts.batch.maskable.sum(dim=1)).tolist())
    print(
        f"{count} reviews ({texts.batch.present.sum(dim=1).float().mean():.0f} tokens): {share:.1%} of tokens kept, "
        f"{1 - mean(checks.holds):.1%} broken, {mean(checks.minimal):.1%} minimal, "
        f"{masks.rows_used.float().mean():.1f} rows per text",
        flush=True,
    )


def report_edits(workspace: Workspace, name: str, pairs: str, most: int) -> None:
    """Print one row of the table: how many of the k highest-scoring words are among the k edited ones."""
    method = parse("method", ORDERS[name], "long texts")
    for record in CounterfactualEdits(pairs=pairs, most=most).run(method, workspace):
        low, high = t_interval(record.per_row)
        print(f"| {name} | {record.value:.3f} | [{low:.3f}, {high:.3f}] | {record.rows} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="folder of the classifier")
    parser.add_argument("--data", required=True, help="such as imdb:FOLDER")
    parser.add_argument("--cache", required=True, type=Path, help="folder for fitted explainers")
    parser.add_argument("--texts", type=int, default=100, help="test reviews whose explanations are verified")
    parser.add_argument("--pairs", type=int, default=1000, help="edited pairs, at most")
    parser.add_argument("--methods", nargs="*", default=list(METHODS), choices=ORDERS, help="methods of the table")
    parser.add_argument("--margin", type=float, default=0.1)
    asked = parser.parse_args()
    config = dm.TextClassificationConfig(model=asked.model, data=asked.data, max_tokens=MAX_TOKENS)
    workspace = Workspace(Store(asked.cache), config, 0)
    print("| order | precision for edited words | 95 % interval | texts |\n|---|---|---|---|")
    for name in asked.methods:
        report_edits(workspace, name, asked.data, asked.pairs)
    print()
    report_verified(workspace, asked.texts, asked.margin)


if __name__ == "__main__":
    main()
