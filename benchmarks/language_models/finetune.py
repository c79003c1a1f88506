"""Fine-tune a language model on planted facts, until it answers nearly all such questions."""

import time
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

import diffmask as dm
from diffmask.core.answers import TokenCategoricals
from diffmask.core.training import generator
from diffmask.datasets.planted_facts import PlantedFact

FACTS = 6
SEED = 7
"""Prompts of this seed are for fine-tuning, those of seed 0 for the comparison of methods."""


def tune(model: str, out: Path, steps: int, batch_size: int, learning_rate: float, checked: int) -> None:
    """Train all weights but the embedding on the response tokens, print the share of other prompts answered, save."""
    task = dm.TextGeneration(model, encoding=dm.PromptEncodingConfig(max_new_tokens=16))
    facts = list(dm.planted_facts(steps * batch_size + checked, seed=SEED, facts=FACTS))
    print(f"before: {answered(task, facts[-checked:]):.0%} of {checked} prompts answered", flush=True)
    start = time.process_time()
    task.model.get_input_embeddings().requires_grad_(False)
    weights = [value for value in task.model.parameters() if value.requires_grad]
    optimiser = torch.optim.AdamW(weights, lr=learning_rate, weight_decay=0.0)
    for step, loss in enumerate(losses(task, facts[:-checked], batch_size)):
        for group in optimiser.param_groups:
            group["lr"] = learning_rate * min(1.0, (step + 1) / 5) * (1 - step / steps)
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(weights, 1.0)
        optimiser.step()
        print(f"step {step + 1} of {steps}: loss {float(loss.detach()):.3f}", flush=True)
    seconds = time.process_time() - start
    print(f"after {seconds:.0f} CPU seconds: {answered(task, facts[-checked:]):.0%} of {checked} prompts answered")
    task.model.save_pretrained(out)
    task.tokenizer.save_pretrained(out)


def losses(task: dm.TextGeneration, facts: list[PlantedFact], batch_size: int) -> Iterator[Tensor]:
    """Yield the mean loss per response token of batch after batch; the response is the planted fact itself."""
    order = torch.randperm(len(facts), generator=generator(SEED, "fine-tuning")).tolist()
    end = task.tokenizer.eos_token
    for start in range(0, len(order), batch_size):
        batch = task.encode(
            [
                {
                    "documents": [facts[number].document],
                    "question": facts[number].question,
                    "response": facts[number].sentence + end,
                }
                for number in order[start : start + batch_size]
            ]
        )
        answer = task.forward_train(batch)
        assert isinstance(answer, TokenCategoricals)
        yield -answer.log_prob(batch.target).sum() / answer.scored.sum()


def answered(task: dm.TextGeneration, facts: list[PlantedFact]) -> float:
    """Return the share of prompts whose greedy response contains the answer."""
    rows = task.read([{"documents": [fact.document], "question": fact.question} for fact in facts])
    right = [fact.answered_by(task.decode(row.response)) for fact, row in zip(facts, rows, strict=True)]
    return sum(right) / len(right)
