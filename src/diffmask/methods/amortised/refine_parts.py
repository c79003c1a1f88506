"""Refined scores of parts: regression on masked copies of one prompt, with the amortised scores as the prior mean."""

from typing import TYPE_CHECKING

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from diffmask.core.batch import Attribution, Batch
from diffmask.core.capabilities import ErasesUnits, HidesFromEnd, require
from diffmask.core.explainer import Explainer
from diffmask.core.training import generator
from diffmask.core.units import spread_unit_scores, tokens_of_units, unit_scores
from diffmask.errors import ConfigError
from diffmask.methods.amortised.part_features import attention_to_units
from diffmask.methods.unit_ablation import ablated_scores, cached_scores

if TYPE_CHECKING:
    from diffmask.methods.amortised.parts import PartAmortisedExplainer

PRIOR_WEIGHT = 0.1
"""Weight of the prior against one copy; chosen on planted facts."""


class RefinedPartExplainer(Explainer):
    """argmin over s, c of sum_k (f(S_k) - c - sum of S_k's scores)^2 + prior_weight |s - amortised scores|^2.

    The copies are a balanced design of masks with their complements, where it fits, and otherwise the prompt without
    each single part and random pairs; f is the log-odds.
    """

    def __init__(
        self, prior: "PartAmortisedExplainer", copies: int = 16, seed: int = 0, *, cached: bool = False
    ) -> None:
        super().__init__(prior.task)
        if copies < 2:
            raise ConfigError(f"refining needs at least 2 copies; got {copies}")
        self.prior, self.copies, self.seed, self.cached = prior, copies, seed, cached
        self.config = prior.config

    @torch.no_grad()
    def explain(self, batch: Batch, target: Shaped[Tensor, "row *event"]) -> Attribution:
        """Measure the copies of all rows together, or row by row on cached states, then solve row by row."""
        numbers = require(self.task, ErasesUnits, "refining").unit_numbers(batch)
        if self.cached:
            return Attribution(spread_unit_scores(self._cached_scores(batch, target, numbers), numbers))
        scores = unit_scores(self.prior.one_pass_scores(batch, target).scores, numbers)
        counts = numbers.amax(dim=1).tolist()
        masks = [self._masks(count, batch[row : row + 1]) for row, count in enumerate(counts)]
        padded = [torch.nn.functional.pad(kept, (0, max(counts) - kept.shape[1])) for kept in masks]
        rows = torch.tensor([row for row, kept in enumerate(masks) for _ in kept], device=numbers.device)
        values = ablated_scores(self.task, batch, target, rows, torch.cat(padded).to(numbers.device))
        for row, (count, kept) in enumerate(zip(counts, masks, strict=True)):
            scores[row, :count] = refine_scores(scores[row, :count].cpu(), kept, values[rows == row].cpu()).to(scores)
        return Attribution(spread_unit_scores(scores, numbers))

    def _cached_scores(
        self, batch: Batch, target: Shaped[Tensor, "row *event"], numbers: Int[Tensor, "row token"]
    ) -> Float[Tensor, "row unit"]:
        """Return the scores of all units; the states of a row serve its attention and all of its copies."""
        hiding = require(self.task, HidesFromEnd, "amortised: cached=True")
        scores = torch.zeros(len(batch), int(numbers.max()), device=numbers.device)
        for row in range(len(batch)):
            single = batch[row : row + 1].trim()
            cached, own = hiding.cache_row(single), numbers[row : row + 1, : single.tokens.shape[1]]
            prior = self.prior.unit_scores(attention_to_units(self.task, single, cached.attentions()))[0]
            kept = self._masks(len(prior), single)
            hidden = tokens_of_units(~kept.to(own.device), own.expand(len(kept), -1))
            values = cached_scores(cached, hidden, target[row], "log-odds")
            scores[row, : len(prior)] = refine_scores(prior.cpu(), kept, values.cpu()).to(scores)
        return scores

    def _masks(self, units: int, row: Batch) -> Bool[Tensor, "copy unit"]:
        """Draw the masks of a row, which do not depend on the rows it is explained with."""
        source = generator(self.seed, f"refine {row.tokens[row.present].tolist()}")
        return refining_masks(units, self.copies, source)


def refining_masks(units: int, copies: int, source: torch.Generator) -> Bool[Tensor, "copy unit"]:
    """Return the whole prompt, then a balanced design or else masks without single units, then random pairs.

    The whole prompt comes on top of the `copies`. Where units outnumber the copies, random pairs alone are drawn.

    >>> masks = refining_masks(3, 8, torch.Generator().manual_seed(0))
    >>> masks.shape, masks[1:].sum(dim=0)
    (torch.Size([9, 3]), tensor([4, 4, 4]))
    """
    whole = torch.ones(1, units, dtype=torch.bool)
    design = _balanced_masks(units, copies // 2, source)
    singles = ~torch.eye(units, dtype=torch.bool) if not len(design) and units <= copies else whole[:0]
    random = torch.rand((copies - len(singles) + 1) // 2 - len(design), units, generator=source) < 0.5
    half = torch.cat([design, random])
    pairs = torch.stack([half, ~half], dim=1).flatten(0, 1)
    return torch.cat([whole, singles, pairs])[: copies + 1]


def _balanced_masks(units: int, most: int, source: torch.Generator) -> Bool[Tensor, "copy unit"]:
    """Return the largest Hadamard design of at most `most` masks, with units and signs in random order.

    Together with the complements every two units are kept together as often as apart, and no pair of units biases the
    effect of another unit (a two-level design of resolution IV; Box and Wilson 1951). It has as many masks as columns;
    for more units than that the result is empty.
    """
    size = 2 ** (most.bit_length() - 1)
    if size < units:
        return torch.zeros(0, units, dtype=torch.bool)
    design = torch.ones(1, 1, dtype=torch.bool)
    while len(design) < size:  # Sylvester's construction.
        design = torch.cat([torch.cat([design, design], dim=1), torch.cat([design, ~design], dim=1)])
    columns = torch.randperm(size, generator=source)[:units]
    return design[:, columns] ^ (torch.rand(units, generator=source) < 0.5)


def refine_scores(
    prior: Float[Tensor, " unit"], kept: Bool[Tensor, "copy unit"], values: Float[Tensor, " copy"]
) -> Float[Tensor, " unit"]:
    """Return s = a s0 + (K'K + prior_weight I)^-1 K'(f - a K s0), K and f centred, a the best scale of the prior."""
    design, mean = kept.double(), prior.double()
    design, observed = design - design.mean(dim=0), (values - values.mean()).double()
    predicted = design @ mean
    scaled = mean * ((predicted @ observed) / (predicted @ predicted).clamp(min=1e-9)).clamp(min=0.0)
    normal = design.T @ design + PRIOR_WEIGHT * torch.eye(len(prior), dtype=torch.float64)
    return (scaled + torch.linalg.solve(normal, design.T @ (observed - design @ scaled))).to(prior)
