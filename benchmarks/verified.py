"""Verified explanations of a sentence classifier: do they hold, how small are they, what do they cost?

    python benchmarks/verified.py --model CLF --data sst2:FOLDER --cache FOLDER
        [--texts 200] [--seeds 2] [--orders random surrogate-mask] [--states]

Every verified set is checked again by code that shares nothing with the search: KL, prediction and all single removals,
one text at a time. Explainers are fitted once and kept in the cache folder. The erased token is the mask token for all
methods. The machine must be idle for the figures in bare passes: they are ratios of seconds.
"""

import argparse
import copy
import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import mean, median
from typing import Any

import torch
from torch import Tensor

import diffmask as dm
from checked_texts import GREEDY, Texts, check, references
from diffmask.core.config import parse
from diffmask.core.distributions import agreement, divergence
from diffmask.core.explainer import Explainer
from diffmask.core.verification.layers import verify_inputs
from diffmask.core.verification.masks import VerifiedMasks, verify
from diffmask.tasks.classification import TextClassification

ORDERS: dict[str, dict[str, Any]] = {
    "random": {"name": "random"},
    "gradient": {"name": "gradient"},
    "IG-50": {"name": "integrated-gradients", "n_steps": 50},
    "leave-one-out": {"name": "leave-one-out"},
    "amortised": {"name": "amortised"},
    "surrogate-mask": {"name": "surrogate-mask"},
    "diffmask": {"name": "diffmask", "sites": ["output"]},
}


def fitted(name: str, choices: dict[str, Any], task: TextClassification, seed: int, cache: Path) -> Explainer:
    """Load an explainer from the cache, or fit and save it."""
    folder = cache / f"{name}-{seed}"
    if folder.exists():
        return dm.load_explainer(folder, task)
    explainer = parse("method", choices, "verified").fit(task, seed=seed)
    explainer.save_pretrained(folder)
    return explainer


def verified(masker: Explainer, texts: Texts, scores: Tensor, margin: float) -> VerifiedMasks:
    """Verify all texts together, from the order of these scores."""
    return verify(
        lambda batch, kept: masker.predict_kept(batch, kept, None),
        texts.batch,
        texts.answer,
        scores,
        texts.text_units,
        margin,
    )


def seconds(work: Callable[[], Any]) -> float:
    """Measure one run."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def bare_passes(masker: Explainer, texts: Texts, scores: Tensor, margin: float, row: int) -> float:
    """Time of verifying one text alone, in forward passes of that text."""
    batch = texts.batch[row : row + 1].trim()
    order = scores[row : row + 1, : batch.tokens.shape[1]]
    with torch.no_grad():
        text = Texts(texts.task, batch, [texts.units[row]], [texts.words[row]], texts.task.predict(batch))
        bare = median(seconds(lambda: texts.task.predict(batch)) for _ in range(5))
    return median(seconds(lambda: verified(masker, text, order, margin)) for _ in range(3)) / bare


def jaccard(first: Sequence[Sequence[int]], second: Sequence[Sequence[int]]) -> tuple[float, float]:
    """Mean Jaccard index of pairs of sets, two empty sets counting 1, and the share of equal pairs."""
    pairs = [(set(a), set(b)) for a, b in zip(first, second, strict=True)]
    return mean(len(a & b) / len(a | b) if a | b else 1.0 for a, b in pairs), mean(a == b for a, b in pairs)


def without_coverage(explainer: Explainer) -> Explainer:
    """Return a copy of a SurrogateMask's explainer whose margin bounds the mean KL."""
    prices = {"risk_prices": torch.zeros_like(explainer.get_buffer("risk_prices"))}
    plain = copy.copy(explainer)
    plain._buffers = {**explainer._buffers, **prices}
    return plain


def drop_layers(explainer: Explainer, texts: Texts, masks: VerifiedMasks, margin: float) -> list[list[int]]:
    """Return for each word of each text the number of layers whose verified set has it."""
    attribution = explainer(texts.batch)
    layers = verify_inputs(
        lambda batch, kept: explainer.predict_kept(batch, kept, None),
        texts.batch,
        texts.answer,
        attribution.by_layer,
        attribution.layers,
        texts.text_units,
        masks,
        [margin] * len(attribution.layers),
    )
    return [
        [sum(word in kept for kept in sets) for word in range(len(units))]
        for sets, units in zip(layers.units, texts.units, strict=True)
    ]


def report_predictions(explainer: Explainer, texts: Texts, margin: float, name: str) -> list[list[int]]:
    """Print how the hard masks of the last site do without verification; return the words they keep."""
    attribution = explainer(texts.batch)
    kept = texts.whole_words(attribution.by_layer[:, -1] > 0.5)
    checks = check(explainer, texts, kept, margin)
    empty = [not count for count in texts.unit_counts(kept)]
    wrong = [e and not h for e, h in zip(empty, checks.holds, strict=True)]
    valid = [h and m for h, m in zip(checks.holds, checks.minimal, strict=True)]
    print(
        f"| {name} | {mean(checks.holds):.1%} | {mean(checks.flips):.1%} | {mean(empty):.1%} | {mean(wrong):.1%} | "
        f"{mean(valid):.1%} | {mean(texts.unit_counts(kept)):.2f} | 0 |",
        flush=True,
    )
    return [[n for n, unit in enumerate(units) if kept[row, list(unit)].any()] for row, units in enumerate(texts.units)]


def report_verified(explainer: Explainer, texts: Texts, masks: VerifiedMasks, margin: float) -> None:
    """Print the same for verified sets."""
    checks = check(explainer, texts, masks.kept, margin)
    valid = [h and m for h, m in zip(checks.holds, checks.minimal, strict=True)]
    wrong = [bool(e) and not h for e, h in zip(masks.holds_empty, checks.holds, strict=True)]
    print(
        f"| verified | {mean(checks.holds):.1%} | {mean(checks.flips):.1%} | {masks.holds_empty.float().mean():.1%} | "
        f"{mean(wrong):.1%} | {mean(valid):.1%} | {mean(map(len, masks.units)):.2f} | "
        f"{masks.rows_used.float().mean():.1f} |",
        flush=True,
    )


def report_orders(task: TextClassification, masker: Explainer, texts: Texts, asked: argparse.Namespace) -> None:
    """Print the words kept from every method's order against greedy search."""
    margin, cache = asked.margin, asked.cache
    greedy = references(masker, texts, margin, cache, asked.greedy)
    better = [min(sizes) for sizes in zip(*([size for size, _ in pairs] for pairs in greedy.values()), strict=True)]
    print("\n| order | words kept | of greedy | larger / smaller than greedy | broken | 1-minimal | rows per text |")
    print("|---|---|---|---|---|---|---|")
    for name, pairs in greedy.items():
        size, rows = (mean(values) for values in zip(*pairs, strict=True))
        print(f"| {name} | {size:.2f} | {size / mean(better):.3f} | | | | {rows:.0f} |")
    print(f"| the best of these | {mean(better):.2f} | 1 | | | | |", flush=True)
    for name in asked.orders:
        explainer = fitted(name, ORDERS[name], task, 0, cache)
        masks = verified(masker, texts, explainer(texts.batch).scores, margin)
        checks = check(masker, texts, masks.kept, margin)
        sizes = list(map(len, masks.units))
        larger = mean(size > least for size, least in zip(sizes, better, strict=True))
        smaller = mean(size < least for size, least in zip(sizes, better, strict=True))
        print(
            f"| {name} | {mean(sizes):.2f} | {sum(sizes) / sum(better):.3f} | {larger:.1%} / {smaller:.1%} | "
            f"{1 - mean(checks.holds):.1%} | {mean(checks.minimal):.1%} | {masks.rows_used.float().mean():.1f} |",
            flush=True,
        )


def report_layers(masker: Explainer, texts: Texts, margin: float) -> None:
    """Print how the hard masks of every site do without verification, the mean margin first."""
    attribution = masker(texts.batch)
    with torch.no_grad():
        answers = [
            masker.predict_kept(texts.batch, attribution.by_layer[:, layer] > 0.5, site)
            for layer, site in enumerate(attribution.layers)
        ]
    print("\n| site | mean KL | within margin | flipped | tokens kept |")
    print("|---|---|---|---|---|")
    for layer, (site, answer) in enumerate(zip(attribution.layers, answers, strict=True)):
        kl, same = divergence(texts.answer, answer), agreement(texts.answer, answer)
        kept = (attribution.by_layer[:, layer] > 0.5) & texts.batch.maskable
        share = (kept.sum(dim=1) / texts.batch.maskable.sum(dim=1)).mean()
        print(
            f"| {site} | {kl.mean():.3f} | {((kl <= margin) & same).float().mean():.1%} | "
            f"{1 - same.float().mean():.1%} | {share:.1%} |",
            flush=True,
        )


def report_time(masker: Explainer, texts: Texts, scores: Tensor, margin: float) -> None:
    """Print what verification takes in forward passes of the same texts."""
    rows = [row for row, count in enumerate(texts.batch.present.sum(dim=1).tolist()) if 22 <= count <= 28]
    ratios = [bare_passes(masker, texts, scores, margin, row) for row in rows]
    with torch.no_grad():
        bare = min(seconds(lambda: texts.task.logits(texts.batch)) for _ in range(3))
    together = seconds(lambda: verified(masker, texts, scores, margin)) / bare
    print(
        f"\ntime in bare passes: one text of about 25 tokens: mean {mean(ratios):.1f}, median {median(ratios):.1f} "
        f"({len(rows)} texts); {len(texts.batch)} texts together {together:.1f}",
        flush=True,
    )


def report_shares(seeds: Sequence[Explainer], texts: Texts, margin: float) -> None:
    """Print predicted and verified sets of all texts, the agreement of the first two seeds, and the sites."""
    print(f"{len(texts.batch)} texts, margin {margin}\n")
    print("| sets | within margin | flipped | empty | falsely empty | valid and minimal | words kept | rows per text |")
    print("|---|---|---|---|---|---|---|---|")
    report_predictions(without_coverage(seeds[0]), texts, margin, "predicted, coverage=None")
    predicted = [report_predictions(explainer, texts, margin, "predicted") for explainer in seeds]
    masks = [verified(seeds[0], texts, explainer(texts.batch).scores, margin) for explainer in seeds]
    for seed_masks in masks:
        report_verified(seeds[0], texts, seed_masks, margin)
    sets: dict[str, list[Sequence[Sequence[int]]]] = {
        "predicted": [*predicted],
        "verified": [seed_masks.units for seed_masks in masks],
    }
    for name, (first, *others) in sets.items():
        for second in others[:1]:
            overlap, equal = jaccard(first, second)
            print(f"\ntwo seeds, {name}: Jaccard {overlap:.3f}, identical {equal:.1%}", flush=True)
    if len(seeds) > 1:
        report_drops(seeds, texts, masks, margin)
    report_rows(texts, masks[0])
    report_layers(seeds[0], texts, margin)


def report_drops(seeds: Sequence[Explainer], texts: Texts, masks: Sequence[VerifiedMasks], margin: float) -> None:
    """Print how far the layer that drops a word moves between the first two seeds."""
    first, second = (
        [layer for text in drop_layers(seeds[number], texts, masks[number], margin) for layer in text]
        for number in (0, 1)
    )
    moved = mean(abs(a - b) for a, b in zip(first, second, strict=True))
    shuffled = random.Random(0).sample(second, len(second))
    chance = mean(abs(a - b) for a, b in zip(first, shuffled, strict=True))
    print(
        f"\ntwo seeds, layer that drops a word: mean difference {moved:.2f} (of shuffled words {chance:.2f})",
        flush=True,
    )


def report_rows(texts: Texts, masks: VerifiedMasks) -> None:
    """Print the rows of the search: all texts, and those of about 25 tokens."""
    lengths = texts.batch.present.sum(dim=1)
    for name, subset in (("all texts", lengths > 0), ("texts of 22 to 28 tokens", (lengths >= 22) & (lengths <= 28))):
        rows = masks.rows_used[subset].double()
        print(
            f"\nrows, {name}: mean {rows.mean():.1f}, 95th percentile {rows.quantile(0.95):.0f}, "
            f"most {rows.max():.0f}, over 24 {(rows > 24).double().mean():.1%}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="folder of the classifier")
    parser.add_argument("--data", required=True, help="such as sst2:FOLDER")
    parser.add_argument("--cache", required=True, type=Path, help="folder for fitted explainers")
    parser.add_argument("--split", default="test")
    parser.add_argument("--texts", type=int, default=200, help="texts for the comparison with greedy search")
    parser.add_argument("--all", type=int, default=100_000, help="texts for the shares, at most")
    parser.add_argument("--margin", type=float, default=0.1)
    parser.add_argument("--seeds", type=int, default=2, help="fits of SurrogateMask; 0 for none, two for the agreement")
    parser.add_argument("--orders", nargs="*", default=list(ORDERS), choices=ORDERS, help="methods of the table")
    parser.add_argument("--greedy", nargs="+", default=list(GREEDY), choices=GREEDY, help="searches on the model")
    parser.add_argument("--states", action="store_true", help="also fit masks of states and print their sites")
    asked = parser.parse_args()
    task = dm.TextClassificationConfig(model=asked.model, data=asked.data).load(0)
    everything = Texts.of(task, asked.split, min(asked.all, len(task.texts[asked.split])))
    texts = Texts.of(task, asked.split, asked.texts)
    seeds = [fitted("surrogate-mask", ORDERS["surrogate-mask"], task, seed, asked.cache) for seed in range(asked.seeds)]
    if seeds:
        report_shares(seeds, everything, asked.margin)
    masker = seeds[0] if seeds else fitted("gradient", ORDERS["gradient"], task, 0, asked.cache)
    report_orders(task, masker, texts, asked)
    report_time(masker, texts, masker(texts.batch).scores, asked.margin)
    if asked.states:
        choices = {"name": "surrogate-mask", "mask": "states"}
        report_layers(fitted("surrogate-mask-states", choices, task, 0, asked.cache), everything, asked.margin)


if __name__ == "__main__":
    main()
