"""Which part of a prompt did a response need? Methods compared on planted facts, where the truth is known.

`collect` runs a language model once on every subset of the facts of each prompt that it answers, and stores the values;
it may be killed and started again. `report` computes every figure of the table from them: leave-one-out, ContextCite
and verified sets are then functions of stored values. Amortised is fitted on prompts other than those it explains.

    python benchmarks/generation.py collect --model smollm2 --out runs/generation --prompts 30
    python benchmarks/generation.py report --out runs/generation
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import diffmask as dm
from diffmask.core.answers import TokenCategoricals
from diffmask.core.batch import Batch
from diffmask.core.distributions import divergence, log_odds, predicts
from diffmask.core.training import generator
from diffmask.core.units import tokens_of_units
from diffmask.core.verification.masks import run_searches, select_rows
from diffmask.core.verification.search import Kept, Measurement, SearchConfig, search_minimal_set
from diffmask.methods.amortised.parts import AblationSamples, choose_penalty, fit_heads, part_features
from diffmask.methods.gradients import state_gradient
from diffmask.metrics.ranks import rank_correlation
from diffmask.results.intervals import bca_interval

FACTS = 6
SUBSETS = torch.arange(2**FACTS)[:, None] >> torch.arange(FACTS) & 1 > 0
"""Every subset of the facts; the last one is the whole prompt."""
SINGLE = torch.tensor([2**FACTS - 1, 0, *(2**FACTS - 1 - 2**unit for unit in range(FACTS))])
"""The whole prompt, the one without facts, and those without one fact."""
TOKENS_AT_ONCE = 4096


def collect(model: str, out: Path, prompts: int, seed: int, complete: int) -> None:
    """Store one file per prompt that the model answers, until there are `prompts` of them.

    The first `complete` prompts are run on every subset of their facts, the others only without each single fact.
    """
    out.mkdir(parents=True, exist_ok=True)
    task = dm.TextGeneration(model, encoding=dm.PromptEncodingConfig(max_new_tokens=16))
    seen = answered = 0
    for index, fact in enumerate(dm.planted_facts(100 * prompts, seed=seed, facts=FACTS)):
        if answered >= prompts:
            break
        done, refused = out / f"{index:05d}.safetensors", out / f"{index:05d}.wrong"
        if not done.exists() and not refused.exists():
            batch = task.encode([{"documents": [fact.document], "question": fact.question}])
            if fact.answered_by(task.outcomes(batch.target)[0] or ""):
                save_file(measure(task, batch, fact.evidence, everything=answered < complete), done)
            else:
                refused.touch()
        seen, answered = seen + 1, answered + done.exists()
        print(f"{answered} of {seen} prompts answered", flush=True)


def measure(task: dm.TextGeneration, batch: Batch, evidence: int, *, everything: bool) -> dict[str, Tensor]:
    """Run the model on subsets of the facts; also store the features and scores of the other methods."""
    numbers = task.unit_numbers(batch)
    start = time.process_time()
    with torch.no_grad():
        whole = task.predict(batch)
        portions = _portions(batch, numbers, torch.arange(2**FACTS) if everything else SINGLE)
        values = [_subset_values(task, batch, numbers, whole, rows) for rows in portions]
    measured = {name: torch.cat([value[name] for value in values]) for name in values[0]}
    subsets = measured.pop("subset")
    # A subset that was not run has no value.
    stored = {name: torch.full((2**FACTS,), torch.nan).scatter(0, subsets, value) for name, value in measured.items()}
    _, states = task.trace(batch)
    state = states["embedding"]
    gradient = state_gradient(task, batch, batch.target, "embedding", "log-probability", state)
    before = time.process_time()
    features = part_features(task, batch)[0]
    return {
        **stored,
        "gradient": gradient.norm(dim=-1)[0],
        "input-x-gradient": (state * gradient).sum(dim=-1).abs()[0].detach(),
        "attention": task.attentions(batch).mean(dim=(1, 2, 3))[0],
        "features": features,
        "numbers": numbers[0],
        "tokens": torch.bincount(numbers[0], minlength=FACTS + 1)[1:],
        "events": batch.inputs["scored"].sum(),
        "evidence": torch.tensor(evidence),
        "seconds": torch.tensor([before - start, time.process_time() - before]),
    }


def _portions(batch: Batch, numbers: Tensor, subsets: Tensor) -> Iterator[Tensor]:
    """Yield subsets of similar length."""
    lengths = SUBSETS[subsets].long() @ torch.bincount(numbers[0], minlength=FACTS + 1)[1:]
    return iter(subsets[lengths.argsort()].split(max(1, TOKENS_AT_ONCE // batch.tokens.shape[1])))


def _subset_values(
    task: dm.TextGeneration, batch: Batch, numbers: Tensor, whole: object, rows: Tensor
) -> dict[str, Tensor]:
    copies = batch.repeat(len(rows))
    erased = tokens_of_units(~SUBSETS[rows], numbers.expand(len(rows), -1))
    answer = task.predict(task.erase(copies, erased))
    assert isinstance(whole, TokenCategoricals)
    original = select_rows(whole, torch.zeros(len(rows), dtype=torch.long))
    return {
        "subset": rows,
        "log_odds": log_odds(answer, copies.target),
        "kl": divergence(original, answer),
        "same": predicts(answer, copies.target * copies.inputs["scored"]).float(),
    }


@dataclass(frozen=True)
class Prompts:
    """The stored values of all prompts of one model."""

    rows: list[dict[str, Tensor]]
    asked: int

    @staticmethod
    def read(folder: Path) -> "Prompts":
        """Read the files of `collect`."""
        files = sorted(folder.glob("*.safetensors"))
        return Prompts([load_file(file) for file in files], len(files) + len(list(folder.glob("*.wrong"))))

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


def _leave_one_out(row: dict[str, Tensor]) -> Tensor:
    whole = 2**FACTS - 1
    return torch.stack([row["log_odds"][whole] - row["log_odds"][whole - 2**unit] for unit in range(FACTS)])


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
    "context-cite-32": _context_cite(32),
    "context-cite-64": _context_cite(64),
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
    none = [float(row["kl"][0]) for row in prompts.rows]
    same = [float(row["same"][2 ** int(row["evidence"])]) for row in complete]
    print(
        f"KL without facts {np.mean(none):.2f}; {len(complete)} prompts run on every subset: "
        f"KL with only the planted fact {np.mean(alone):.2f}, then the same response {np.mean(same):.2f}"
    )
    scores = {**{name: prompts.scores(name) for name in SCORES}, "amortised": prompts.amortised()}
    print(f"{'method':28} {'planted first':24} {'n':4} {'LDS':24} {'correlation with leave-one-out'}")
    for name, found in scores.items():
        known = [number for number in range(len(found)) if bool(found[number].isfinite().all())]
        first = [float(int(found[number].argmax()) == int(prompts.rows[number]["evidence"])) for number in known]
        ranks = [lds(found[number], prompts.rows[number]) for number in prompts.complete]
        pairs = [(found[number].numpy(), scores["leave-one-out"][number].numpy()) for number in known]
        together = np.mean([np.corrcoef(*pair)[0, 1] for pair in pairs])
        print(f"{name:28} {_mean(first):24} {len(known):4} {_mean(ranks):24} {together:.2f}")
    for margin in (0.1, 0.5):
        for label, config in CONFIGS.items():
            print(f"margin {margin}, {label}: {_needed_sets(prompts, scores['amortised'], margin, config)}")
    seconds = torch.stack([row["seconds"] for row in complete]).mean(dim=0)
    print(f"CPU seconds per prompt: 64 subsets and gradients {seconds[0]:.1f}, attention pass {seconds[1]:.2f}")


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
    "default": SearchConfig(restarts=0, most_rows=64),
    "at most 8 passes": SearchConfig(restarts=0, most_rows=8),
    "prefixes 1, 3, then between": SearchConfig(prefixes=((1, 3),), restarts=0, most_rows=8),
}


def main() -> None:
    """Run one of the two stages."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stage", choices=("collect", "report"))
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--prompts", type=int, default=200)
    parser.add_argument("--complete", type=int, default=200, help="prompts that are run on every subset of their facts")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.stage == "collect":
        collect(options.model, options.out, options.prompts, options.seed, options.complete)
    else:
        report(options.out)


if __name__ == "__main__":
    main()
