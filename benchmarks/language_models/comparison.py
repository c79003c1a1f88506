"""Compute every figure of the comparison from the stored values of a model's answers to subsets of facts."""

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor

import diffmask as dm
from diffmask.core.training import generator
from diffmask.core.verification.masks import run_searches
from diffmask.core.verification.search import Kept, Measurement, SearchConfig, search_minimal_set
from diffmask.methods.amortised.ablations import AblationSamples
from diffmask.methods.amortised.parts import choose_penalty, fit_heads
from diffmask.methods.amortised.refine_parts import refine_scores, refining_masks
from diffmask.metrics.ranks import rank_correlation
from diffmask.results.intervals import bca_interval
from language_models.measure import FACTS, SUBSETS


@dataclass(frozen=True)
class Prompts:
    """The stored values of all prompts of one model."""

    rows: list[dict[str, Tensor]]
    asked: int
    rivals: dict[int, dict[str, Any]]
    """Results of the published packages by number of the prompt, where `rivals` was run."""

    @staticmethod
    def read(folder: Path) -> "Prompts":
        """Read the files of `collect`."""
        files = sorted(folder.glob("*.safetensors"))
        rivals = {
            number: json.loads(file.with_suffix(".json").read_text())
            for number, file in enumerate(files)
            if file.with_suffix(".json").exists()
        }
        return Prompts([load_file(file) for file in files], len(files) + len(list(folder.glob("*.wrong"))), rivals)

    @property
    def complete(self) -> "list[int]":
        """Numbers of the prompts with a value for every subset."""
        return [number for number, row in enumerate(self.rows) if bool(row["log_odds"].isfinite().all())]

    def scores(self, method: str) -> Tensor:
        """Return the scores of a method, one row per prompt and one column per fact; NaN where a value is missing."""
        return torch.stack([SCORES[method](row) for row in self.rows])

    def amortised(self, masks: int = 8, folds: int = 5) -> Tensor:
        """Return scores of Amortised, each fitted on the prompts of the other folds."""
        features = torch.stack([row["features"] for row in self.rows])
        source = generator(0, "masks of the benchmark")
        rows, kept, values = [], [], []
        for index, row in enumerate(self.rows):
            chosen = [2**FACTS - 1 - 2**unit for unit in range(FACTS)]
            half = torch.randint(0, 2**FACTS, (masks // 2,), generator=source).tolist()
            chosen += [0, 2**FACTS - 1, *half, *(2**FACTS - 1 - subset for subset in half)]
            chosen = [subset for subset in chosen if row["log_odds"][subset].isfinite()]
            rows += [index] * len(chosen)
            kept.append(SUBSETS[chosen])
            values.append(row["log_odds"][chosen])
        samples = AblationSamples(features, torch.tensor(rows), torch.cat(kept), torch.cat(values))
        fold = torch.arange(len(self.rows)) % folds
        scores = torch.zeros(len(self.rows), FACTS)
        for number in range(folds):
            training = samples.select(fold != number)
            numbers = torch.arange(len(self.rows))[fold != number]
            compact = AblationSamples(
                features[numbers], torch.searchsorted(numbers, training.rows), training.kept, training.values
            )
            penalty, _ = choose_penalty(compact, generator(number, "penalty of the benchmark"))
            scores[fold == number] = fit_heads(compact, penalty).scores(features[fold == number])
        return scores

    def refined(self, prior: Tensor, copies: int, values_of: str = "log_odds") -> Tensor:
        """Return the scores of Amortised, refined by `copies` ablations; NaN for prompts without all subsets."""
        scores = torch.full_like(prior, torch.nan)
        for number in self.complete:
            kept = refining_masks(FACTS, copies, generator(number, "refining in the benchmark"))
            values = self.rows[number][values_of][kept.long() @ 2 ** torch.arange(FACTS)]
            scores[number] = refine_scores(prior[number], kept, values)
        return scores


def _leave_one_out(row: dict[str, Tensor], values_of: str = "log_odds") -> Tensor:
    whole, values = 2**FACTS - 1, row[values_of]
    return torch.stack([values[whole] - values[whole - 2**unit] for unit in range(FACTS)])


def _context_cite(ablations: int) -> Callable[[dict[str, Tensor]], Tensor]:
    method = dm.ContextCite(ablations=ablations)

    def scores(row: dict[str, Tensor]) -> Tensor:
        kept = method.choose(FACTS, generator(int(row["numbers"].sum()), f"context-cite {float(row['log_odds'][0])}"))
        values = row["log_odds"][kept.long() @ 2 ** torch.arange(FACTS)]
        if not bool(values.isfinite().all()):
            return torch.full((FACTS,), torch.nan)
        solved = method.solve(kept.double().numpy(), values.double().numpy(), 0.0, int(row["events"]))
        return torch.from_numpy(solved).float()

    return scores


def _of_tokens(name: str, reduce: str) -> Callable[[dict[str, Tensor]], Tensor]:
    def scores(row: dict[str, Tensor]) -> Tensor:
        empty = torch.zeros(FACTS + 1)
        return empty.scatter_reduce(0, row["numbers"], row[name], reduce, include_self=False)[1:]

    return scores


SCORES: dict[str, Callable[[dict[str, Tensor]], Tensor]] = {
    "leave-one-out": _leave_one_out,
    "leave-one-out, cached": partial(_leave_one_out, values_of="log_odds_cached"),
    **{f"context-cite-{ablations}": _context_cite(ablations) for ablations in (16, 32, 64)},
    **{
        f"{name} ({reduce})": _of_tokens(name, reduce)
        for name in ("gradient", "attention", "input-x-gradient")
        for reduce in ("amax", "mean", "sum")
    },
    "random": lambda row: torch.rand(FACTS, generator=generator(int(row["evidence"]), str(float(row["log_odds"][0])))),
}


def lds(scores: Tensor, row: dict[str, Tensor], ablations: int = 64) -> float:
    """Rank correlation of predicted and measured log-odds over random ablations (Park et al. 2023)."""
    subsets = torch.randint(0, 2**FACTS, (ablations,), generator=generator(int(row["evidence"]), "lds"))
    predicted = SUBSETS[subsets].float() @ scores
    everything = torch.ones(1, ablations, dtype=torch.bool)
    return float(rank_correlation(predicted[None], row["log_odds"][subsets][None], everything)[0])


def needed(
    scores: Tensor, row: dict[str, Tensor], margin: float, config: SearchConfig
) -> tuple[int, int, float, bool, bool]:
    """Return the verified subset, its passes, the share of tokens erased, whether it holds, and the same response."""
    events = int(row["events"])

    def measured(subset: int) -> Measurement:
        return Measurement(float(row["kl"][subset]) * events, True, float(row["log_odds"][subset]))

    def number(kept: Kept) -> int:
        return sum(2**unit for unit in kept)

    order = scores.argsort(descending=True).tolist()
    search = search_minimal_set(order, measured(2**FACTS - 1), margin * events, config)
    result = run_searches([search], lambda items: [measured(number(kept)) for _, kept in items])[0]
    subset = number(result.kept)
    erased = 1 - float((SUBSETS[subset] * row["tokens"]).sum() / row["tokens"].sum())
    return subset, result.sets, erased, bool(row["kl"][subset] <= margin), bool(row["same"][subset])


def greedy(row: dict[str, Tensor], margin: float) -> float:
    """Return the share of tokens that greedy backward search erases: n^2 / 2 passes."""
    kept = 2**FACTS - 1
    while True:
        options = [kept - 2**unit for unit in range(FACTS) if kept >> unit & 1]
        options = [subset for subset in options if float(row["kl"][subset]) <= margin]
        if not options:
            return 1 - float((SUBSETS[kept] * row["tokens"]).sum() / row["tokens"].sum())
        kept = min(options, key=lambda subset: float(row["kl"][subset]))


def _mean(values: list[float]) -> str:
    interval = bca_interval(values)
    return f"{interval.mean:.3f} [{interval.low:.3f}, {interval.high:.3f}]"


def report(folder: Path) -> None:
    """Print the table of one model."""
    prompts = Prompts.read(folder)
    if len(prompts.rows) < 10:
        sys.exit(f"{folder} has {len(prompts.rows)} prompts; collect at least 10")
    print(
        f"\n{folder.name}: {len(prompts.rows)} of {prompts.asked} prompts answered "
        f"({len(prompts.rows) / prompts.asked:.0%})"
    )
    complete = [prompts.rows[number] for number in prompts.complete]
    alone = [float(row["kl"][2 ** int(row["evidence"])]) for row in complete]
    none = [float(row["kl"][0]) for row in complete]
    same = [float(row["same"][2 ** int(row["evidence"])]) for row in complete]
    print(
        f"KL without facts {np.mean(none):.2f}; {len(complete)} prompts run on every subset: "
        f"KL with only the planted fact {np.mean(alone):.2f}, then the same response {np.mean(same):.2f}"
    )
    scores = {**{name: prompts.scores(name) for name in SCORES}, "amortised": prompts.amortised()}
    scores |= {f"amortised, {copies} ablations": prompts.refined(scores["amortised"], copies) for copies in (8, 16, 32)}
    for copies in (16, 32):
        refined = prompts.refined(scores["amortised"], copies, "log_odds_cached")
        scores[f"amortised, {copies} cached"] = refined
    print(f"{'method':28} {'planted first':24} {'n':4} {'LDS':24} {'correlation with leave-one-out'}")
    for name, prompt_scores in scores.items():
        known = [number for number in range(len(prompt_scores)) if bool(prompt_scores[number].isfinite().all())]
        first = [
            float(int(prompt_scores[number].argmax()) == int(prompts.rows[number]["evidence"])) for number in known
        ]
        ranks = [lds(prompt_scores[number], prompts.rows[number]) for number in prompts.complete]
        pairs = [(prompt_scores[number].numpy(), scores["leave-one-out"][number].numpy()) for number in known]
        together = np.mean([np.corrcoef(*pair)[0, 1] for pair in pairs])
        print(f"{name:28} {_mean(first):24} {len(known):4} {_mean(ranks):24} {together:.2f}")
    if len(prompts.rivals) > 2:
        report_rivals(prompts, scores)
    for margin in (0.1, 0.5):
        for label, config in CONFIGS.items():
            print(f"margin {margin}, {label}: {_needed_sets(prompts, scores['amortised'], margin, config)}")
    seconds = torch.stack([row["seconds"] for row in complete]).mean()
    print(f"CPU seconds per prompt: 64 subsets {seconds:.1f}")


def report_rivals(prompts: Prompts, scores: dict[str, Tensor]) -> None:
    """Print the published packages beside our methods, on the same prompts and the same ablations.

    context-cite removes sentences from the text, so its own log-odds of its own ablations are the measure for all.
    """
    compared: dict[str, list[Tensor]] = {
        f"{name} (package)": [torch.tensor(results[name]["scores"]) for results in prompts.rivals.values()]
        for name in next(iter(prompts.rivals.values()))
    }
    for name in ("leave-one-out", "context-cite-64", "amortised", "amortised, 16 ablations", "amortised, 32 ablations"):
        compared[name] = [scores[name][number] for number in prompts.rivals]
    for copies in (16, 32):
        compared[f"amortised, {copies} of these"] = [
            _refine_by_removals(scores["amortised"][number], row, copies) for number, row in prompts.rivals.items()
        ]
    print(
        f"published packages, {len(prompts.rivals)} prompts; LDS over context-cite's own ablations (removed sentences)"
    )
    evidence = [int(prompts.rows[number]["evidence"]) for number in prompts.rivals]
    for name, prompt_scores in compared.items():
        first = [
            float(int(fact_scores.argmax()) == fact) for fact_scores, fact in zip(prompt_scores, evidence, strict=True)
        ]
        ranks = [
            _removal_lds(fact_scores, row)
            for fact_scores, row in zip(prompt_scores, prompts.rivals.values(), strict=True)
        ]
        print(f"{name:28} planted first {np.mean(first):.2f}, LDS {_mean(ranks)}")


def _refine_by_removals(prior: Tensor, rival: dict[str, Any], copies: int) -> Tensor:
    """Refine by the first of context-cite's ablations: what `erasing="remove"` would measure."""
    kept = torch.tensor(rival["context-cite"]["masks"][:copies]).bool()
    return refine_scores(prior, kept, torch.tensor(rival["context-cite"]["log_odds"][:copies]).float())


def _removal_lds(scores: Tensor, rival: dict[str, Any]) -> float:
    predicted = torch.tensor(rival["context-cite"]["masks"]).float() @ scores.float()
    measured = torch.tensor(rival["context-cite"]["log_odds"])
    everything = torch.ones(1, len(measured), dtype=torch.bool)
    return float(rank_correlation(predicted[None], measured[None], everything)[0])


def _needed_sets(prompts: Prompts, scores: Tensor, margin: float, config: SearchConfig) -> str:
    best = np.mean([greedy(prompts.rows[number], margin) for number in prompts.complete])
    sets = [needed(scores[number], prompts.rows[number], margin, config) for number in prompts.complete]
    _, passes, erased, holds, identical = (np.array(column, dtype=float) for column in zip(*sets, strict=True))
    ratio = erased.mean() / max(best, 1e-9)
    return (
        f"within {holds.mean():.0%}, erased {erased.mean():.3f} (greedy {best:.3f}, ratio {ratio:.2f}), "
        f"identical {identical.mean():.2f}, passes {passes.mean():.1f} (at most {passes.max():.0f})"
    )


CONFIGS = {
    "default": SearchConfig(proposals=4, batches=5, restarts=0, most_rows=64),
    "at most 8 passes": SearchConfig(proposals=4, batches=5, restarts=0, most_rows=8),
    "prefixes 1, 3, then between": SearchConfig(prefixes=((1, 3),), proposals=4, batches=5, restarts=0, most_rows=8),
}
