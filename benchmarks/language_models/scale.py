"""Time and memory of explained responses: ten times as many prompts, and one prompt of 8,000 tokens.

Every measurement runs in a process of its own, whose peak memory is then its own.
"""

import multiprocessing
import resource
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch

import diffmask as dm

FACTS = 6
KILOBYTES_PER_GIGABYTE = 1e6


@dataclass(frozen=True)
class Cost:
    """CPU seconds of the explanations, and peak memory of the process in gigabytes."""

    seconds: float
    memory: float
    note: str = ""


def run_scale(model: str, prompts: int, tokens: int) -> None:
    """Print both ratios, and what a long prompt takes."""
    few, many = in_own_process(explain_prompts, model, prompts), in_own_process(explain_prompts, model, 10 * prompts)
    print(f"{prompts} prompts: {few.seconds:.1f} CPU s, {few.memory:.2f} GB", flush=True)
    print(f"{10 * prompts} prompts: {many.seconds:.1f} CPU s, {many.memory:.2f} GB", flush=True)
    print(f"ratios: time {many.seconds / few.seconds:.2f}, memory {many.memory / few.memory:.2f}", flush=True)
    long = in_own_process(explain_long_prompt, model, tokens)
    print(f"{long.note}: {long.seconds:.0f} CPU s, {long.memory:.2f} GB", flush=True)
    scored = in_own_process(score_long_prompt, model, tokens)
    print(f"{scored.note}, {scored.memory:.2f} GB", flush=True)


def in_own_process(function: Callable[[str, int], Cost], *arguments: Any) -> Cost:
    """Return what a function returns in a new process."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def explain_prompts(model: str, count: int) -> Cost:
    """Explain prompts of six facts by leave-one-out, each with its verified set."""
    torch.set_num_threads(1)
    task = dm.TextGeneration(model, encoding=dm.PromptEncodingConfig(max_new_tokens=8))
    explainer = dm.LeaveOneOut().fit(task)
    facts = dm.planted_facts(count, seed=3, facts=FACTS)
    prompts = [{"documents": [fact.document], "question": fact.question} for fact in facts]
    start = time.process_time()
    explainer(prompts)
    return Cost(time.process_time() - start, peak_memory())


def explain_long_prompt(model: str, tokens: int) -> Cost:
    """Explain a prompt of about so many tokens in six documents by leave-one-out, with its verified set."""
    torch.set_num_threads(1)
    task = dm.TextGeneration(model, encoding=dm.PromptEncodingConfig(unit="document", max_new_tokens=8))
    prompt = long_prompt(task, tokens)
    start = time.process_time()
    explanation = dm.LeaveOneOut().fit(task)(**prompt)
    length = len(task.tokenizer(explanation.prompt)["input_ids"])
    kept = len(explanation.needed)
    note = f"{length} tokens, needed {kept} of {FACTS} documents, verified {explanation.verified is not None}"
    return Cost(time.process_time() - start, peak_memory(), note)


def score_long_prompt(model: str, tokens: int) -> Cost:
    """Score the documents of such a prompt without verification, in forward passes of the prompt."""
    torch.set_num_threads(1)
    task = dm.TextGeneration(model, encoding=dm.PromptEncodingConfig(unit="document", max_new_tokens=8))
    batch = task.encode([long_prompt(task, tokens)])
    methods = {"leave-one-out": dm.LeaveOneOut(), "leave-one-out, cached": dm.LeaveOneOut(mode="cached")}
    explainers = {name: method.fit(task) for name, method in methods.items()}
    short = [{"documents": [fact.document], "question": fact.question} for fact in dm.planted_facts(16, seed=3)]
    learned = dm.Amortised(mask_pairs=4).fit(dm.TextGeneration(model, train=short, encoding=task.encoding))
    learned.task = task
    explainers |= {"amortised": learned, "amortised, 32 cached": learned.refined(32, cached=True)}
    with torch.no_grad():
        start = time.process_time()
        task.predict(batch)
        one_pass = time.process_time() - start
    passes = []
    for name, explainer in explainers.items():
        start = time.process_time()
        explainer(batch)
        passes.append(f"{name} {(time.process_time() - start) / one_pass:.2f}")
    note = f"{batch.tokens.shape[1]} tokens, one pass {one_pass:.1f} CPU s; scores in passes: {', '.join(passes)}"
    return Cost(one_pass, peak_memory(), note)


def long_prompt(task: dm.TextGeneration, tokens: int) -> dict[str, Any]:
    """Return a prompt of about so many tokens in six documents."""
    sentences = [fact.document for fact in dm.planted_facts(tokens // 20, seed=3, facts=FACTS)]
    words = sum(len(task.tokenizer(text)["input_ids"]) for text in sentences)
    sentences = sentences[: int(len(sentences) * (tokens - 100) / words)]
    documents = [" ".join(sentences[number::FACTS]) for number in range(FACTS)]
    return {"documents": documents, "question": "Where does Maria live?"}


def peak_memory() -> float:
    """Return the peak memory of this process in gigabytes; Linux counts it in kilobytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / KILOBYTES_PER_GIGABYTE
