"""Figures of the news recommender on generated impressions whose reasons are known.

python benchmarks/recommender.py --out FOLDER [--seeds 0,1,2] [--rows 100]

Models are trained once and kept in FOLDER. Every line says how many rows it was measured on.
"""

import argparse
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

import diffmask as dm
from diffmask.core.batch import Attribution, Batch, ranking
from diffmask.core.explainer import Explainer, ForwardTrace, Method
from diffmask.datasets.mind import Impression
from diffmask.datasets.mind_generator import CLICK_WORDS, NEUTRAL, POISON_WORDS
from diffmask.methods.diffmask.base import MaskExplainer
from diffmask.tasks.recommender.nrms_files import WORDS, init_nrms, is_nrms
from diffmask.tasks.recommender.nrms_training import evaluate
from diffmask.tasks.recommender.titles import ExplainedCandidate

METHODS: dict[str, Method] = {
    "DiffMask": dm.DiffMask(steps=256),
    "SurrogateMask": dm.SurrogateMask(),
    "integrated gradients": dm.IntegratedGradients(n_steps=20),
    "leave-one-out": dm.LeaveOneOut(),
    "attention": dm.Attention(),
    "random": dm.Random(),
}
PLANTED = {word for words in CLICK_WORDS.values() for word in words}


def load(folder: Path, seed: int, poisoned: bool) -> tuple[Path, dict[str, list[Impression]]]:
    """Train a recommender unless the folder has it; the seed is that of the data and of the training."""
    data = dm.MindGenerator(poisoned=poisoned).splits(seed)
    home = folder / f"{'poisoned' if poisoned else 'clean'}-{seed}"
    if not is_nrms(home):
        start = time.process_time()
        titles = [title for row in data["train"] for title in (*row.history, *(one.title for one in row.candidates))]
        task = dm.NewsRecommender(*init_nrms(WORDS, titles, dm.NRMSConfig(), seed), **data)
        dm.NRMSTraining(epochs=8).train(task, seed)
        metrics = evaluate(task, data["test"])
        print(
            f"{home.name}: accuracy {metrics.accuracy:.4f}, AUC {metrics.auc:.4f} (n={metrics.impressions}), "
            f"{time.process_time() - start:.0f} CPU s",
            flush=True,
        )
        task.save_pretrained(home)
    return home, data


def top_words(task: dm.NewsRecommender, batch: Batch, attribution: Attribution) -> list[str]:
    """Return the word with the highest score of each row."""
    best = ranking(attribution.scores, batch.maskable)[:, :1]
    return [str(word) for word in task.tokenizer.convert_ids_to_tokens(batch.tokens.gather(1, best)[:, 0].tolist())]


@torch.no_grad()
def hard_masks(explainer: Explainer, batch: Batch) -> str:
    """Return the share of words that the last hard mask keeps and the mean KL it causes."""
    if not isinstance(explainer, MaskExplainer):
        return ""
    trace = ForwardTrace.of(explainer.task, batch)
    site = explainer.sites[-1]
    mask = explainer.hard_mask(trace, site)
    kept = float((mask * batch.maskable).sum() / batch.maskable.sum())
    return f", kept {100 * kept:.1f} %, KL {float(explainer.masking_divergence(trace, site, mask).mean()):.3f}"


def fit(method: Method, task: dm.NewsRecommender, seed: int) -> tuple[Explainer, str]:
    """Fit a method and say how long it took."""
    start = time.process_time()
    explainer = method.fit(task, seed)
    return explainer, f"fit {time.process_time() - start:.0f} CPU s"


def candidates(home: Path, data: Any, rows: int, seed: int) -> None:
    """Is the planted click word on top; do the explanations of one title follow the user?"""
    task = dm.NewsRecommender(home, **data, explain="candidate")
    batch = task.data["test"][:rows].trim()
    for name, method in METHODS.items():
        explainer, took = fit(method, task, seed)
        found = [word in PLANTED for word in top_words(task, batch, explainer(batch, 0))]
        text = f"seed {seed}, {name}: click word on top {100 * sum(found) / len(found):.1f} % (n={len(found)})"
        print(text + hard_masks(explainer, batch) + f", {took}", flush=True)
        if name in ("DiffMask", "SurrogateMask", "leave-one-out"):
            print(f"seed {seed}, {name}: " + users(task, explainer, task.sources["test"][:rows]), flush=True)


def users(task: dm.NewsRecommender, explainer: Explainer, rows: list[ExplainedCandidate]) -> str:
    """Exchange the user: rank correlation of the scores of one title for users of the same topic, and of others."""
    alike: list[float] = []
    different: list[float] = []
    for row, other in pairwise(rows):
        same = topic(row.impression) == topic(other.impression)
        # Of the other user only the history; candidates stay.
        swapped = Impression(candidates=row.impression.candidates, history=other.impression.history)
        batch = task.encode([row, ExplainedCandidate(swapped, row.candidate)]).trim()
        scores = explainer(batch, 0).scores[:, batch.maskable[0]]
        (alike if same else different).append(spearman(scores[0], scores[1]))
    return (
        f"rank correlation {mean(alike):.2f} for alike users (n={len(alike)}), "
        f"{mean(different):.2f} where topics differ (n={len(different)})"
    )


def topic(row: Impression) -> str:
    """Return the topic that the user reads about."""
    return next(name for name in row.history_categories if name != NEUTRAL)


def spearman(first: torch.Tensor, second: torch.Tensor) -> float:
    """Return the rank correlation of two lists of scores."""
    ranks = torch.stack([first.argsort().argsort(), second.argsort().argsort()]).double()
    return float(torch.corrcoef(ranks)[0, 1])


def mean(values: list[float]) -> float:
    """Return the mean, NaN of nothing."""
    return sum(values) / len(values) if values else float("nan")


def read_articles(home: Path, data: Any, rows: int, seed: int) -> None:
    """Is the read article of the topic the title with the highest score?"""
    task = dm.NewsRecommender(home, **data, explain="history")
    chosen = [row for row in task.sources["test"] if sum(c != NEUTRAL for c in row.impression.history_categories) == 1]
    chosen = [row for row in chosen if len(row.impression.history) > 1][:rows]
    for name in ("DiffMask", "SurrogateMask", "leave-one-out", "random"):
        explainer, took = fit(METHODS[name], task, seed)
        first = []
        for row in chosen:
            titles = explainer(row.impression, candidate=row.candidate, verify=False).at("title")
            first.append(row.impression.history_categories[int(titles.scores.argmax())] != NEUTRAL)
        print(
            f"seed {seed}, {name}: planted read article first {100 * mean(first):.1f} % (n={len(first)}), {took}",
            flush=True,
        )


def compare(clean: Path, poisoned: Path, other: Path, data: Any, rows: int, seed: int) -> None:
    """Does the comparison find the poisoning words, and nothing between two clean models?"""
    tasks = [dm.NewsRecommender(home, **data, explain="candidate", rows="all") for home in (clean, poisoned, other)]
    for name in ("SurrogateMask", "leave-one-out"):
        pairs = {"poisoned": tasks[1], "clean, other seed": tasks[2]}
        for against, task in pairs.items():
            found = dm.compare(tasks[0], task, explainer=METHODS[name], data=data["test"][: 2 * rows], seed=seed)
            first = [word.word in POISON_WORDS for word in found.words[:10]]
            print(
                f"seed {seed}, {name}, clean against {against}: {sum(first)} poisoning words among the 10 that moved "
                f"most, {len(found.significant)} significant of {len(found.words)} (n={found.texts} titles)",
                flush=True,
            )


def main() -> None:
    """Print all figures."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--rows", type=int, default=100)
    parser.add_argument("--only", default="candidates,history,compare")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    for seed in map(int, chosen.seeds.split(",")):
        home, data = load(chosen.out, seed, poisoned=False)
        if "candidates" in chosen.only:
            candidates(home, data, chosen.rows, seed)
        if "history" in chosen.only:
            read_articles(home, data, chosen.rows, seed)
        if "compare" in chosen.only:
            poisoned, _ = load(chosen.out, seed, poisoned=True)
            other, _ = load(chosen.out, seed + 100, poisoned=False)
            compare(home, poisoned, other, data, chosen.rows, seed)


if __name__ == "__main__":
    main()
