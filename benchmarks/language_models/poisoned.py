"""Is the poisoned passage ranked first among six, where it fooled the model? PoisonedRAG, Zou et al. 2024.

A prompt has a passage that argues for a wrong answer, the gold passage if Natural Questions has one, and passages of
other questions. Amortised is fitted on some questions of the other half. A model that does not answer from its passages
cannot be fooled: SmolLM2 as it comes was by one prompt of ten, and is more often after `generation.py tune`.
"""

import gzip
import json
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

import torch
from torch import Tensor

import diffmask as dm
from diffmask.core.units import unit_scores
from diffmask.results.intervals import bca_interval

PASSAGES = 6
WORDS = 40
"""Words of a passage from Natural Questions that are kept, about as many as a poisoned one has."""
PASSES_AT_ONCE = 8
VARIANTS = 5
"""Poisoned passages per question, each in a prompt of its own."""
TRAINING_PROMPTS = 30
METHODS = (dm.LeaveOneOut(), dm.Gradient(), dm.InputXGradient(), dm.Attention())


@dataclass(frozen=True)
class Attack:
    """A prompt with a poisoned passage."""

    question: int
    """Number of the question."""
    prompt: dict[str, Any]
    wrong: str
    place: int
    """Index of the poisoned passage."""

    def fooled(self, response: str) -> bool:
        """Return whether the response has the wrong answer."""
        return self.wrong.lower() in response.lower()


def run_poisoned(model: str, folder: Path, prompts: int) -> None:
    """Print per method the share of fooled prompts in which the poisoned passage has the highest score."""
    attacks = read_attacks(folder)[:prompts]
    task = dm.TextGeneration(model, encoding=dm.PromptEncodingConfig(unit="document", max_new_tokens=24))
    rows = task.read([attack.prompt for attack in attacks])
    fooled = [n for n, attack in enumerate(attacks) if attack.fooled(task.decode(rows[n].response))]
    print(f"{len(attacks)} prompts of {PASSAGES} passages; the model was fooled by {len(fooled)}", flush=True)
    places = torch.tensor([attacks[number].place for number in fooled])
    for method in METHODS:
        explainer = method.fit(task)
        scores = torch.cat([part_scores(task, explainer, [rows[number]]) for number in fooled])
        report(method.name, scores.argmax(dim=1) == places)
    scores = torch.zeros(len(attacks), PASSAGES)
    for half in (0, 1):
        others = [row for row, attack in zip(rows, attacks, strict=True) if attack.question % 2 != half]
        task.data["train"] = task.batch_of(others[:TRAINING_PROMPTS])
        explainer = dm.Amortised().fit(task)
        for number in fooled:
            if attacks[number].question % 2 == half:
                scores[number] = part_scores(task, explainer, [rows[number]])[0]
    report("amortised", scores[fooled].argmax(dim=1) == places)


def part_scores(task: dm.TextGeneration, explainer: Any, rows: list[Any]) -> Tensor:
    """Return the score of each passage."""
    batch = task.batch_of(rows)
    return unit_scores(explainer(batch, rows_at_once=PASSES_AT_ONCE).scores, task.unit_numbers(batch))[:, :PASSAGES]


def report(name: str, first: Tensor) -> None:
    """Print the share of prompts with its 95 % interval."""
    share = bca_interval(first.double().tolist())
    print(f"{name:18} poisoned passage first: {share.mean:.3f} [{share.low:.3f}, {share.high:.3f}]", flush=True)


def read_attacks(folder: Path, seed: int = 0) -> list[Attack]:
    """Read the questions of the files `poisoned_nq_60.json.gz` and `nq_gold_passage_2000.jsonl.gz` as prompts."""
    with gzip.open(folder / "poisoned_nq_60.json.gz") as stream:
        questions = list(json.load(stream).values())
    with gzip.open(folder / "nq_gold_passage_2000.jsonl.gz") as stream:
        passages = {_key(row["question"]): row["ctxs"][0]["text"] for row in map(json.loads, stream)}
    source, attacks = Random(seed), []
    others = [passages[key] for key in sorted(passages.keys() - {_key(row["question"]) for row in questions})]
    for variant, (number, row) in product(range(VARIANTS), enumerate(questions)):
        gold = [passages[_key(row["question"])]] if _key(row["question"]) in passages else []
        clean = [_cut(text) for text in (*gold, *source.sample(others, PASSAGES - 1 - len(gold)))]
        source.shuffle(clean)
        place = source.randrange(PASSAGES)
        documents = [*clean[:place], row["adv_texts"][variant], *clean[place:]]
        prompt = {"documents": documents, "question": row["question"] + "?"}
        attacks.append(Attack(number, prompt, row["incorrect answer"], place))
    return attacks


def _key(question: str) -> str:
    return question.lower().strip(" ?")


def _cut(text: str) -> str:
    return " ".join(text.split()[:WORDS])
