"""Masked copies of training prompts and the model's log-odds on them, measured once and stored prompt by prompt."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from diffmask.core.batch import Batch, map_by_length
from diffmask.core.capabilities import ErasesUnits, explained_outcome, require
from diffmask.core.config import digest_of
from diffmask.core.store import Artefact, Store
from diffmask.core.task import Task
from diffmask.core.training import generator
from diffmask.methods.unit_ablation import ablated_scores

TOKENS_AT_ONCE = 4096
"""Tokens per forward pass, padding included."""

Features = Float[Tensor, "row unit feature"]


@dataclass(frozen=True)
class AblationSamples:
    """Features of training prompts, and the values of masked copies of them."""

    features: Features
    rows: Int[Tensor, " copy"]
    kept: Bool[Tensor, "copy unit"]
    values: Float[Tensor, " copy"]

    def select(self, prompts: Bool[Tensor, " row"]) -> "AblationSamples":
        """Return the copies of some prompts; rows keep their numbers."""
        chosen = prompts[self.rows]
        return AblationSamples(self.features, self.rows[chosen], self.kept[chosen], self.values[chosen])

    def sums(self, scores: Float[Tensor, "row unit *feature"]) -> Float[Tensor, "copy *feature"]:
        """Return the sum over the kept units of each copy."""
        picked = scores[self.rows]
        mask = self.kept.view(*self.kept.shape, *[1] * (picked.ndim - 2)).to(picked)
        return (picked * mask).sum(dim=1)

    def centred(self, values: Float[Tensor, "copy *feature"]) -> Float[Tensor, "copy *feature"]:
        """Subtract the mean over the copies of each prompt: a prompt's level is not explained."""
        prompts = len(self.features)
        index = self.rows.view(-1, *[1] * (values.ndim - 1)).expand_as(values)
        total = values.new_zeros(prompts, *values.shape[1:]).scatter_add(0, index, values)
        count = torch.bincount(self.rows, minlength=prompts).clamp(min=1).view(-1, *[1] * (values.ndim - 1))
        return values - (total / count)[self.rows]

    def correlations(self, scores: Float[Tensor, "row unit"]) -> Float[Tensor, " prompt"]:
        """Return for each prompt the correlation of its values with the sums of its scores."""
        predicted, observed = self.centred(self.sums(scores)), self.centred(self.values)
        result = []
        for row in self.rows.unique().tolist():
            first, second = predicted[self.rows == row], observed[self.rows == row]
            result.append((first @ second) / (first.norm() * second.norm()).clamp(min=1e-9))
        return torch.stack(result)


def draw_masks(units: int, pairs: int, source: torch.Generator) -> Bool[Tensor, "copy unit"]:
    """Return pairs of complementary random masks, and masks without each single unit, at most 2 * `pairs` of them."""
    half = torch.rand(pairs, units, generator=source) < 0.5
    singles = ~torch.eye(units, dtype=torch.bool)[: min(units, 2 * pairs)]
    return torch.cat([half, ~half, singles])


def copies_per_prompt(units: int, pairs: int) -> int:
    """Return the number of masks of a prompt.

    >>> copies_per_prompt(6, 4)
    14
    """
    return 2 * pairs + min(units, 2 * pairs)


@torch.no_grad()
def sample_ablations(
    task: Task, batch: Batch, features: Callable[[Batch], Features], pairs: int, seed: int, store: Store
) -> AblationSamples:
    """Measure masked copies of every prompt.

    Each prompt's values are stored under a digest of the model, the prompt and its masks, so that an interrupted fit
    resumes and a second one runs only new prompts.
    """
    numbers = require(task, ErasesUnits, "amortised").unit_numbers(batch)
    counts, fingerprint = numbers.amax(dim=1).tolist(), task.fingerprint()
    widest, rows, masks, values = max(counts), [], [], []
    for row, count in enumerate(counts):
        prompt = batch[row : row + 1].trim()
        name = _digest(prompt)
        kept = draw_masks(count, pairs, generator(seed, f"amortised parts {name}"))
        digest = digest_of(["ablations", fingerprint, name, kept.tolist()])
        artefact = store.get_or_make("ablations", digest, lambda p=prompt, k=kept: _measure(task, p, k))  # type: ignore[misc]
        values.append(artefact.tensors["values"].to(numbers.device))
        rows += [row] * len(kept)
        masks.append(torch.nn.functional.pad(kept, (0, widest - count)))
    at_once = max(1, TOKENS_AT_ONCE // batch.tokens.shape[1])
    all_features = map_by_length(lambda prompts: _padded(features(prompts), widest), batch, at_once)
    index, kept = torch.tensor(rows, device=numbers.device), torch.cat(masks).to(numbers.device)
    return AblationSamples(all_features, index, kept, torch.cat(values))


def _measure(task: Task, prompt: Batch, kept: Bool[Tensor, "copy unit"]) -> Artefact:
    rows = torch.zeros(len(kept), dtype=torch.long, device=prompt.tokens.device)
    target = explained_outcome(task, prompt)
    return Artefact({"values": ablated_scores(task, prompt, target, rows, kept.to(rows.device))})


def _digest(prompt: Batch) -> str:
    """Return a digest of everything that a row of a batch says, whatever it was padded to."""
    values = {"tokens": prompt.tokens, "target": prompt.target, **prompt.inputs, **prompt.token_inputs}
    return digest_of([[name, _stripped(value[0])] for name, value in sorted(values.items())])


def _stripped(value: Tensor) -> list[Any]:
    used = value.nonzero()
    return value[: int(used.max()) + 1 if len(used) else 0].tolist()


def _padded(features: Features, units: int) -> Features:
    return torch.nn.functional.pad(features, (0, 0, 0, units - features.shape[1]))
