"""Measure the hard masks of a mask method on a sentence classifier: share erased, divergence, F1, time of the fit.

    python benchmarks/masks.py --model CLF --data sst2:FOLDER [KEY=VALUE ...]

All sites are measured on the validation rows, half of which calibrate the thresholds, and the last site on the test
rows. With `--verified N` the masks of N texts of both splits are also verified: one set of words per text and, for
masks of states, per site. Options are those of the method, such as `name=diffmask steps=300` for gates; the default is
`surrogate-mask`. CLF is the folder that `diffmask train` wrote.
"""

import argparse
import time
from collections.abc import Iterator

import torch
from torch import Tensor

import diffmask as dm
from checked_texts import Texts
from diffmask.core.batch import Batch
from diffmask.core.config import parse, parse_overrides
from diffmask.core.distributions import agreement, divergence, predicted_outcome
from diffmask.core.scores import macro_f1_score
from diffmask.core.verification.layers import verify_states
from diffmask.core.verification.masks import verify
from diffmask.methods.diffmask.base import MaskExplainer
from diffmask.metrics.fidelity import evaluate_hard_masks


def measure_masks(explainer: MaskExplainer, rows: Batch) -> dict[str, tuple[float, ...]]:
    """Return for each site: share masked, divergence, agreement, macro-F1 before and after."""
    order = rows.present.sum(dim=1).argsort(stable=True)
    with torch.no_grad():
        parts = [evaluate_hard_masks(explainer, rows[indices].trim()) for indices in order.split(128)]
    rows_by_site = {}
    for site in explainer.sites:
        table = {name: torch.cat([part[site][name] for part in parts]) for name in parts[0][site]}
        means = [table[name].mean().item() for name in ("kept", "divergence", "agreement")]
        scores = [macro_f1_score(table[name], table["gold"]) for name in ("before", "after")]
        rows_by_site[site] = (1 - means[0], *means[1:], *scores)
    return rows_by_site


def verified_masks(explainer: MaskExplainer, texts: Texts, margin: float) -> Iterator[tuple[str, Tensor]]:
    """Yield for each site with a mask of its own the verified masks of all texts."""
    attribution = explainer(texts.batch)
    if explainer.mask == "inputs":
        masks = verify(
            lambda batch, kept: explainer.predict_kept(batch, kept, None),
            texts.batch,
            texts.answer,
            attribution.scores,
            texts.text_units,
            margin,
        )
        yield explainer.sites[-1], masks.kept
        return
    margins = [margin] * len(explainer.sites)
    layers = verify_states(
        explainer.predict_kept,
        texts.batch,
        texts.answer,
        attribution.by_layer,
        explainer.sites,
        texts.text_units,
        margins,
    )
    for place, site in enumerate(layers.layers):
        kept = texts.batch.maskable.clone()
        for row, (units, sets) in enumerate(zip(texts.units, layers.units, strict=True)):
            for unit in set(range(len(units))) - sets[place]:
                kept[row, list(units[unit])] = False
        yield site, kept


def report_verified(explainer: MaskExplainer, task: dm.TextClassification, split: str, count: int) -> None:
    """Print the masks that were verified text by text."""
    texts = Texts.of(task, split, count)
    margin = explainer.margin_at(explainer.sites[-1])
    for site, kept in verified_masks(explainer, texts, margin):
        with torch.no_grad():
            answer = explainer.predict_kept(texts.batch, kept, site)
        maskable = texts.batch.maskable
        masked = 1 - ((kept & maskable).sum(dim=1) / maskable.sum(dim=1).clamp(min=1)).mean().item()
        before, after = (macro_f1_score(predicted_outcome(a), texts.batch.target) for a in (texts.answer, answer))
        print(
            f"| {split}, {len(texts.batch)} verified | {site} | {masked:.1%} | "
            f"{divergence(texts.answer, answer).mean():.3f} | {agreement(texts.answer, answer).float().mean():.3f} | "
            f"{100 * before:.1f} -> {100 * after:.1f} |",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="a classifier's folder")
    parser.add_argument("--data", required=True, help="such as sst2:FOLDER")
    parser.add_argument("--out", help="folder to save the explainer to, as benchmarks/explain.py wants it")
    parser.add_argument("--verified", type=int, default=0, help="texts per split whose masks are verified, too")
    parser.add_argument("choices", nargs="*", metavar="KEY=VALUE")
    arguments = parser.parse_args()
    task = dm.TextClassificationConfig(model=arguments.model, data=arguments.data).load(0)
    start = time.perf_counter()
    explainer = parse("method", {"name": "surrogate-mask", **parse_overrides(arguments.choices)}, "masks").fit(
        task, seed=0
    )
    print(f"fitted in {time.perf_counter() - start:.0f} s on {torch.get_num_threads()} threads\n")
    if arguments.out:
        explainer.save_pretrained(arguments.out)
    print("| rows | seen from | masked | KL, nats | agreement | macro-F1 |\n|---|---|---|---|---|---|")
    for split in ("valid", "test"):
        for site, (masked, caused, agreed, before, after) in measure_masks(explainer, task.data[split]).items():
            if split == "valid" or site == explainer.sites[-1]:
                scores = f"{100 * before:.1f} -> {100 * after:.1f}"
                print(f"| {split} | {site} | {masked:.1%} | {caused:.3f} | {agreed:.3f} | {scores} |", flush=True)

        if arguments.verified:
            report_verified(explainer, task, split, arguments.verified)


if __name__ == "__main__":
    main()
