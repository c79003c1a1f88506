"""Run a language model on subsets of the facts of each prompt that it answers, and store the values."""

import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.distributions import Distribution

import diffmask as dm
from diffmask.core.answers import TokenCategoricals
from diffmask.core.batch import Batch
from diffmask.core.distributions import divergence, log_odds, predicts
from diffmask.core.units import tokens_of_units
from diffmask.core.verification.masks import select_rows
from diffmask.datasets.planted_facts import PlantedFact
from diffmask.methods.amortised.part_features import part_features
from diffmask.methods.gradients import state_gradient
from diffmask.methods.unit_ablation import ablated_scores
from diffmask.tasks.generation.prompt_encoding import ResponseRow

FACTS = 6
SUBSETS = torch.arange(2**FACTS)[:, None] >> torch.arange(FACTS) & 1 > 0
"""Every subset of the facts; the last one is the whole prompt."""
SINGLE = torch.tensor([2**FACTS - 1, *(2**FACTS - 1 - 2**unit for unit in range(FACTS))])
"""The whole prompt, and those without one fact."""
SUBSETS_AT_ONCE = 8
PROMPTS_AT_ONCE = 16


def collect(model: str, out: Path, prompts: int, seed: int, complete: int) -> None:
    """Store one file per prompt that the model answers, until there are `prompts` of them.

    The first `complete` prompts are run on every subset of their facts, the others without each single fact.
    """
    out.mkdir(parents=True, exist_ok=True)
    task = dm.TextGeneration(model, encoding=dm.PromptEncodingConfig(max_new_tokens=16))
    asked, index, answered = dm.planted_facts(100 * prompts, seed=seed, facts=FACTS), 0, 0
    while answered < prompts:
        facts = list(islice(asked, PROMPTS_AT_ONCE))
        names = [out / f"{number:05d}" for number in range(index, index + len(facts))]
        missing = [number for number, name in enumerate(names) if not _exists(name)]
        chosen = [{"documents": [facts[number].document], "question": facts[number].question} for number in missing]
        rows = dict(zip(missing, task.read(chosen), strict=True))
        for number, (name, fact) in enumerate(zip(names, facts, strict=True)):
            if answered < prompts and number in rows:
                _store(task, rows[number], fact, name, everything=answered < complete)
            answered += name.with_suffix(".safetensors").exists()
        index += len(facts)
        print(f"{answered} prompts of {index} answered", flush=True)


def _exists(name: Path) -> bool:
    return any(name.with_suffix(suffix).exists() for suffix in (".safetensors", ".wrong"))


def _store(task: dm.TextGeneration, row: ResponseRow, fact: PlantedFact, name: Path, *, everything: bool) -> None:
    """Write the values of a prompt, or an empty file if the response is wrong."""
    if not fact.answered_by(task.decode(row.response)):
        name.with_suffix(".wrong").touch()
        return
    subsets = torch.arange(2**FACTS) if everything else SINGLE
    values = measure(task, task.batch_of([row]), fact.evidence, subsets)
    save_file(values, name.with_suffix(".part"))
    name.with_suffix(".part").rename(name.with_suffix(".safetensors"))


def measure(task: dm.TextGeneration, batch: Batch, evidence: int, subsets: Tensor) -> dict[str, Tensor]:
    """Run the model on subsets of the facts; also store the scores of the methods that need gradients or attention."""
    numbers = task.unit_numbers(batch)
    start = time.process_time()
    with torch.no_grad():
        whole = task.predict(batch)
        values = [_subset_values(task, batch, numbers, whole, rows) for rows in _portions(subsets)]
    measured = {name: torch.cat([value[name] for value in values]) for name in values[0]}
    order = measured.pop("subset")
    # A subset that was not run has no value.
    stored = {name: torch.full((2**FACTS,), torch.nan).scatter(0, order, value) for name, value in measured.items()}
    seconds = time.process_time() - start
    first_row = torch.zeros(2**FACTS, dtype=torch.long)
    state = task.model.get_input_embeddings()(batch.tokens).detach()
    gradient = state_gradient(task, batch, batch.target, "embedding", "log-probability", state)
    return {
        **stored,
        "log_odds_cached": ablated_scores(task, batch, batch.target, first_row, SUBSETS, cached=True),
        "gradient": gradient.norm(dim=-1)[0],
        "input-x-gradient": (state * gradient).sum(dim=-1).abs()[0].detach(),
        "features": part_features(task, batch)[0],
        "attention": task.attentions(batch).mean(dim=(1, 2, 3))[0],
        "numbers": numbers[0],
        "response": batch.target[0],
        "tokens": torch.bincount(numbers[0], minlength=FACTS + 1)[1:],
        "events": batch.inputs["scored"].sum(),
        "evidence": torch.tensor(evidence),
        "seconds": torch.tensor(seconds),
    }


def _portions(subsets: Tensor) -> Iterator[Tensor]:
    """Yield subsets with the same first two facts, whose keys and values are computed once, of similar size."""
    chosen = SUBSETS[subsets].long()
    order = (chosen[:, 0] * 2 + chosen[:, 1]) * FACTS + chosen[:, 2:].sum(dim=1)
    return iter(subsets[order.argsort(stable=True)].split(SUBSETS_AT_ONCE))


def predict_with(task: dm.TextGeneration, batch: Batch, numbers: Tensor, kept: Tensor) -> tuple[Distribution, Batch]:
    """Return the answers to copies of a prompt with only some facts kept, and the unmasked copies."""
    copies = batch.repeat(len(kept))
    return task.predict(task.erase(copies, tokens_of_units(~kept, numbers.expand(len(kept), -1)))), copies


def _subset_values(
    task: dm.TextGeneration, batch: Batch, numbers: Tensor, whole: object, rows: Tensor
) -> dict[str, Tensor]:
    answer, copies = predict_with(task, batch, numbers, SUBSETS[rows])
    assert isinstance(whole, TokenCategoricals)
    original = select_rows(whole, torch.zeros(len(rows), dtype=torch.long))
    return {
        "subset": rows,
        "log_odds": log_odds(answer, copies.target),
        "kl": divergence(original, answer),
        "same": predicts(answer, copies.target * copies.inputs["scored"]).float(),
    }
