"""Run the published packages on the prompts of `collect`: context-cite 0.0.4 and flashtrace 0.1.1.

Both live in an environment of their own, or in a folder on PYTHONPATH:

    pip install --target rivals --no-deps context-cite==0.0.4 flashtrace==0.1.1
    pip install --target rivals nltk spacy seaborn wordfreq
"""

import json
import time
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

import diffmask as dm
from diffmask.datasets.planted_facts import PlantedFact


def run_rivals(model: str, folder: Path, prompts: int, facts: int, ablations: int = 64) -> None:
    """Write one JSON file per prompt with the packages' scores, and context-cite's masks and log-odds."""
    task = dm.TextGeneration(model, encoding=dm.PromptEncodingConfig(max_new_tokens=16))
    for file in sorted(folder.glob("*.safetensors"))[:prompts]:
        out = file.with_suffix(".json")
        if out.exists():
            continue
        fact = next(islice(dm.planted_facts(int(file.stem) + 1, seed=0, facts=facts), int(file.stem), None))
        stored = load_file(file)
        response = task.tokenizer.decode(stored["response"][: int(stored["events"])])
        values = {
            "context-cite": context_cite(task, fact, response, ablations),
            "flashtrace": flashtrace(task, fact, response),
        }
        out.write_text(json.dumps(values))
        print(file.stem, {name: round(value["seconds"], 1) for name, value in values.items()}, flush=True)


def context_cite(task: dm.TextGeneration, fact: PlantedFact, response: str, ablations: int) -> dict[str, Any]:
    """Return the package's weights, masks and log-odds; sentences are removed from the text, as it does."""
    from context_cite import ContextCiter
    from context_cite.context_partitioner import BaseContextPartitioner
    from context_cite.utils import aggregate_logit_probs

    class Sentences(BaseContextPartitioner):  # type: ignore[misc]  # the package has no types
        """The facts as sources; the package's own partitioner downloads a model."""

        num_sources = len(fact.facts)

        def split_context(self) -> None:
            """Do nothing: the facts are known."""

        def get_source(self, index: int) -> str:
            """Return a fact."""
            return fact.facts[index]

        def get_context(self, mask: Any = None) -> str:
            """Return the kept facts as one passage."""
            kept = range(len(fact.facts)) if mask is None else mask.nonzero()[0]
            return " ".join(fact.facts[index] for index in kept)

    start = time.process_time()
    task.tokenizer.padding_side = "left"
    citer = ContextCiter(
        task.model,
        task.tokenizer,
        fact.document,
        fact.question,
        num_ablations=ablations,
        batch_size=8,
        prompt_template="{context}\n\n{query}",
        partitioner=Sentences(fact.document),
    )
    citer._cache["output"] = citer._get_prompt_ids(return_prompt=True)[1] + response
    scores = citer.get_attributions(verbose=False)
    return {
        "scores": scores.tolist(),
        "masks": citer._masks.tolist(),
        "log_odds": aggregate_logit_probs(citer._logit_probs).tolist(),
        "seconds": time.process_time() - start,
    }


def flashtrace(task: dm.TextGeneration, fact: PlantedFact, response: str) -> dict[str, Any]:
    """Return the sum of the package's token scores over each fact."""
    from flashtrace import FlashTrace

    row = task.read([{"documents": [fact.document], "question": fact.question, "response": response}])[0]
    start = time.process_time()
    task.model.set_attn_implementation("eager")
    try:
        traced = FlashTrace(task.model, task.tokenizer).trace(prompt=row.prompt.text, target=response)
    finally:
        task.model.set_attn_implementation("sdpa")
    return {
        "scores": _sums(traced.scores, row.prompt.part_numbers, len(fact.facts)),
        "seconds": time.process_time() - start,
    }


def _sums(scores: Sequence[float], numbers: Sequence[int], facts: int) -> list[float]:
    if len(scores) != len(numbers):
        raise ValueError(f"flashtrace scored {len(scores)} tokens of a prompt that has {len(numbers)}")
    return torch.zeros(facts + 1).index_add(0, torch.tensor(numbers), torch.tensor(scores))[1:].tolist()
