"""Figures of the news recommender on generated impressions whose reasons are known.

python benchmarks/recommender.py --out FOLDER [--seeds 0,1,2] [--rows 100] [--only train,candidates,history,compare]

Models are trained once and kept in FOLDER. Figures are written to FOLDER/figures.jsonl once they are measured, and
a run that was stopped goes on where it was. At the end all figures are printed as means over the titles of all seeds,
with 95 % intervals, and by seed.
"""

import argparse
import json
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

import diffmask as dm
from diffmask.core.batch import Attribution, Batch, ranking
from diffmask.core.explainer import Explainer, ForwardTrace, Method
from diffmask.datasets.mind import Impression
from diffmask.datasets.mind_generator import CLICK_WORDS, NEUTRAL, POISON_WORDS
from diffmask.errors import FitWarning
from diffmask.methods.diffmask.base import MaskExplainer
from diffmask.metrics.ranks import rank_correlation
from diffmask.results.intervals import t_interval
from diffmask.tasks.recommender.nrms_files import WORDS, init_nrms
from diffmask.tasks.recommender.nrms_training import evaluate
from diffmask.tasks.recommender.titles import ExplainedCandidate
from diffmask.tasks.text.known_tasks import is_recommender

METHODS: dict[str, Method] = {
    "DiffMask": dm.DiffMask(),
    "SurrogateMask": dm.SurrogateMask(),
    "integrated gradients": dm.IntegratedGradients(n_steps=20),
    "leave-one-out": dm.LeaveOneOut(),
    "attention": dm.Attention(),
    "random": dm.Random(),
}
FOLLOWING_USERS = ("DiffMask", "SurrogateMask", "leave-one-out")
READ_ARTICLES = ("DiffMask", "SurrogateMask", "leave-one-out", "random")
COMPARING = ("DiffMask", "SurrogateMask", "leave-one-out")
PLANTED = {word for words in CLICK_WORDS.values() for word in words}
Values = dict[str, list[float]]
"""Values of each figure, one per title or impression."""


class Figures:
    """Figures that were measured before, in a file of JSON lines."""

    def __init__(self, path: Path) -> None:
        self.path = path
        lines = path.read_text().splitlines() if path.is_file() else []
        self.records: list[dict[str, Any]] = [json.loads(line) for line in lines]

    def measure(self, part: str, name: str, seed: int, measured: Callable[[], Values]) -> None:
        """Measure and write the values of one method and seed, unless the file has them."""
        if any((record["part"], record["name"], record["seed"]) == (part, name, seed) for record in self.records):
            return
        values = measured()
        record = {"part": part, "name": name, "seed": seed, "values": values}
        self.records.append(record)
        with self.path.open("a") as file:
            file.write(json.dumps(record) + "\n")
        print(f"seed {seed}, {part}, {name}: " + ", ".join(map(_seed_text, values.items())), flush=True)

    def summary(self) -> str:
        """Return one line per figure: mean over all seeds with its interval, number of values, mean of each seed."""
        groups: dict[tuple[str, str, str], list[list[float]]] = defaultdict(list)
        for record in self.records:
            for figure, values in record["values"].items():
                groups[record["part"], record["name"], figure].append(values)
        return "\n".join(
            f"{part}, {name}, {figure}: {_pooled(seeds)}" for (part, name, figure), seeds in groups.items()
        )


def _seed_text(figure: tuple[str, list[float]]) -> str:
    name, values = figure
    return f"{name} {mean(values):.3f} (n={len(values)})"


def _pooled(seeds: Sequence[list[float]]) -> str:
    values = [value for seed in seeds for value in seed]
    low, high = t_interval(values) if len(values) > 1 else (values[0], values[0])
    each = ", ".join(f"{mean(seed):.3f}" for seed in seeds)
    return f"{mean(values):.3f} [{low:.3f}, {high:.3f}], n={len(values)}; by seed {each}"


def mean(values: Sequence[float]) -> float:
    """Return the mean, NaN of nothing."""
    return sum(values) / len(values) if values else float("nan")


@cache
def data_of(seed: int, poisoned: bool) -> dict[str, list[Impression]]:
    """Generate the impressions of one seed."""
    return dm.MindGenerator(poisoned=poisoned).splits(seed)


def load(folder: Path, seed: int, poisoned: bool) -> tuple[Path, dict[str, list[Impression]]]:
    """Train a recommender unless the folder has it; the seed is that of the data and of the training."""
    data = data_of(seed, poisoned)
    home = folder / f"{'poisoned' if poisoned else 'clean'}-{seed}"
    if not is_recommender(home):
        start = time.process_time()
        titles = [
            title
            for row in data["train"]
            for title in (*row.history, *(candidate.title for candidate in row.candidates))
        ]
        task = dm.NewsRecommender(*init_nrms(WORDS, titles, dm.NRMSConfig(), seed), **data)  # type: ignore[arg-type]
        dm.NRMSTraining(epochs=8).train(task, seed)
        print(f"{home.name}: trained in {time.process_time() - start:.0f} CPU s", flush=True)
        task.save_pretrained(home)
    return home, data


def task_of(folder: Path, seed: int, poisoned: bool = False, **choices: Any) -> dm.NewsRecommender:
    """Load a recommender with the clean impressions of its seed."""
    home, _ = load(folder, seed, poisoned)
    return dm.NewsRecommender(home, **{**data_of(seed, False), **choices})


def accuracy(folder: Path, seed: int) -> Values:
    """Does the recommender rank the clicked candidate first?"""
    task = task_of(folder, seed)
    metrics = evaluate(task, task.impressions["test"])
    return {"accuracy": [metrics.accuracy], "AUC": [metrics.auc]}


def fit(method: Method, task: dm.NewsRecommender, seed: int) -> tuple[Explainer, float]:
    """Fit a method; return it with the CPU seconds."""
    start = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)
        explainer = method.fit(task, seed)
    return explainer, time.process_time() - start


def candidates(folder: Path, seed: int, name: str, rows: int) -> Values:
    """Is the planted click word on top; do hard masks hold; do the explanations of one title follow the user?"""
    task = task_of(folder, seed, explain="candidate")
    batch = task.data["test"][:rows].trim()
    explainer, seconds = fit(METHODS[name], task, seed)
    hits = [float(word in PLANTED) for word in top_words(task, batch, explainer(batch, 0))]
    values: Values = {"click word on top": hits, **hard_masks(explainer, batch), "fit CPU seconds": [seconds]}
    return {**values, **users(task, explainer, task.sources["test"][:rows])} if name in FOLLOWING_USERS else values


def top_words(task: dm.NewsRecommender, batch: Batch, attribution: Attribution) -> list[str]:
    """Return the word with the highest score of each row."""
    best = ranking(attribution.scores, batch.maskable)[:, :1]
    return [str(word) for word in task.tokenizer.convert_ids_to_tokens(batch.tokens.gather(1, best)[:, 0].tolist())]


@torch.no_grad()
def hard_masks(explainer: Explainer, batch: Batch) -> Values:
    """Return the share of words that the last hard mask keeps in each title and the KL it causes."""
    if not isinstance(explainer, MaskExplainer):
        return {}
    trace, site = ForwardTrace.of(explainer.task, batch), explainer.sites[-1]
    mask = explainer.hard_mask(trace, site)
    kept = (mask * batch.maskable).sum(dim=1) / batch.maskable.sum(dim=1)
    return {"words kept": kept.tolist(), "KL": explainer.masking_divergence(trace, site, mask).tolist()}


def users(task: dm.NewsRecommender, explainer: Explainer, rows: list[ExplainedCandidate]) -> Values:
    """Exchange the user: rank correlation of the scores of one title for users of the same topic, and of others.

    Scores are those that a reader sees: divided by the largest of all these titles and rounded to two decimals. Equal
    ones share a rank: which of two needless words is less needed means nothing.
    """
    pairs = [(row, swap_user(row, other)) for row, other in pairwise(rows)]
    batch = task.encode([row for pair in pairs for row in pair])
    scores = explainer(batch, 0).scores
    scores = (100 * scores / scores.abs().max()).round()
    rho = rank_correlation(scores[::2], scores[1::2], batch.maskable[::2]).tolist()
    same = [topic(row.impression) == topic(other.impression) for row, other in pairwise(rows)]
    return {
        "rank correlation, alike users": [value for value, alike in zip(rho, same, strict=True) if alike],
        "rank correlation, topics differ": [value for value, alike in zip(rho, same, strict=True) if not alike],
    }


def swap_user(row: ExplainedCandidate, other: ExplainedCandidate) -> ExplainedCandidate:
    """Return the row with the history of the other one's user; the candidates stay."""
    return replace(row, impression=replace(row.impression, history=other.impression.history, history_categories=()))


def topic(row: Impression) -> str:
    """Return the topic that the user reads about."""
    return next(name for name in row.history_categories if name != NEUTRAL)


def read_articles(folder: Path, seed: int, name: str, rows: int) -> Values:
    """Is the only read article of the topic the title with the highest score?"""
    task = task_of(folder, seed, explain="history")
    chosen = [row for row in task.sources["test"] if sum(c != NEUTRAL for c in row.impression.history_categories) == 1]
    explainer, seconds = fit(METHODS[name], task, seed)
    first = []
    for row in chosen[:rows]:
        titles = explainer(row.impression, candidate=row.candidate, verify=False).at("title")
        first.append(float(row.impression.history_categories[int(titles.scores.argmax())] != NEUTRAL))
    return {"planted read article first": first, "fit CPU seconds": [seconds]}


def compare(folder: Path, seeds: Sequence[int], seed: int, name: str, rows: int) -> Values:
    """Does the comparison find the poisoning words, and nothing between two clean models of other seeds?"""
    data = data_of(seed, False)["test"][: 2 * rows]
    others = {"poisoned": (seed, True), "clean": (seeds[(seeds.index(seed) + 1) % len(seeds)], False)}
    clean = fit(METHODS[name], task_of(folder, seed, explain="candidate"), seed)[0]
    values: Values = {}
    for against, (other_seed, poisoned) in others.items():
        task = task_of(folder, other_seed, poisoned, explain="candidate")
        pair = clean, fit(METHODS[name], task, seed)[0]
        comparison = dm.compare(clean.task, task, explainer=pair, data=data)
        poison = [float(word.word in POISON_WORDS) for word in comparison.words[:10]]
        values[f"poisoning words among 10, against {against}"] = [sum(poison)]
        others_found = [word.word for word in comparison.significant if word.word not in POISON_WORDS]
        values[f"significant other words, against {against}"] = [len(others_found)]
    return values


def main() -> None:
    """Measure what is missing and print all figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--rows", type=int, default=100)
    parser.add_argument("--only", default="train,candidates,history,compare")
    parser.add_argument("--methods", default=",".join(METHODS))
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    chosen.out.mkdir(parents=True, exist_ok=True)
    folder, rows, seeds = chosen.out, chosen.rows, list(map(int, chosen.seeds.split(",")))
    figures, methods = Figures(folder / "figures.jsonl"), chosen.methods.split(",")
    for seed in seeds:
        if "train" in chosen.only:
            figures.measure("training", "NRMS", seed, partial(accuracy, folder, seed))
        for name in methods:
            if "candidates" in chosen.only:
                figures.measure("candidate", name, seed, partial(candidates, folder, seed, name, rows))
            if "history" in chosen.only and name in READ_ARTICLES:
                figures.measure("history", name, seed, partial(read_articles, folder, seed, name, rows))
            if "compare" in chosen.only and name in COMPARING:
                figures.measure("models", name, seed, partial(compare, folder, seeds, seed, name, rows))
    print(figures.summary())


if __name__ == "__main__":
    main()
