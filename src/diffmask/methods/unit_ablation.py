"""Explanations from ablations of units: ContextCite and KernelSHAP fit a linear function of the units that are kept.

Cohen-Wang et al. 2024; Lundberg and Lee 2017. A unit is a part of a prompt, or a token for tasks without units.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Shaped
from numpy.typing import NDArray
from torch import Tensor

from diffmask.core.batch import Attribution, Batch
from diffmask.core.capabilities import CachedRow, ErasesUnits, HidesFromEnd, require
from diffmask.core.config import require_between
from diffmask.core.distributions import Quantity, target_score
from diffmask.core.explainer import Explainer, Method
from diffmask.core.resources import AdaptiveBatchSize
from diffmask.core.task import Task
from diffmask.core.training import generator
from diffmask.core.units import spread_unit_scores, tokens_of_units

TOKENS_AT_ONCE = 4096
"""Tokens per forward pass, padding included."""
Numbers = NDArray[np.float64]


def unit_pairs(numbers: Int[Tensor, "row token"]) -> tuple[Int[Tensor, " pair"], Int[Tensor, " pair"]]:
    """Return every pair of a row and one of its units."""
    counts = numbers.amax(dim=1).tolist()
    pairs = [(row, unit) for row, count in enumerate(counts) for unit in range(1, count + 1)]
    rows, units = torch.tensor(pairs, device=numbers.device).reshape(-1, 2).unbind(dim=1)
    return rows, units


@torch.no_grad()
def ablated_scores(
    task: Task,
    batch: Batch,
    target: Shaped[Tensor, "row *event"],
    rows: Int[Tensor, " copy"],
    kept: Bool[Tensor, "copy unit"],
    quantity: Quantity = "log-odds",
    *,
    cached: bool = False,
) -> Float[Tensor, " copy"]:
    """Return f of copies of rows with only some of their units kept; copies of similar length share a pass.

    With `cached`, units are hidden from the end of a row alone (`HidesFromEnd`): less exact, and only the end of every
    copy is computed.
    """
    units = require(task, ErasesUnits, "erasing units")
    numbers = units.unit_numbers(batch)
    erased = tokens_of_units(~kept, numbers[rows])
    if cached:
        return _scores_from_end(task, batch, target, rows, erased, quantity)
    order = (batch.present[rows] & ~erased).sum(dim=1).argsort(stable=True)
    portion = AdaptiveBatchSize(max(1, TOKENS_AT_ONCE // batch.tokens.shape[1]))

    def work(items: slice) -> Float[Tensor, " copy"]:
        indices = order[items]
        copies = units.erase(batch[rows[indices]], erased[indices])
        return target_score(task.predict(copies.trim()), target[rows[indices]], quantity)

    values = torch.cat(portion.split(len(rows), work))
    return values[order.argsort()]


def _scores_from_end(
    task: Task,
    batch: Batch,
    target: Shaped[Tensor, "row *event"],
    rows: Int[Tensor, " copy"],
    erased: Bool[Tensor, "copy token"],
    quantity: Quantity,
) -> Float[Tensor, " copy"]:
    """Return f of copies whose erased tokens are hidden from the end of their row."""
    hiding = require(task, HidesFromEnd, "cached=True")
    values = target.new_zeros(len(rows), dtype=torch.float32)
    for row in rows.unique().tolist():
        copies = (rows == row).nonzero().flatten()
        single = batch[row : row + 1].trim()
        hidden = erased[copies, : single.tokens.shape[1]]
        values[copies] = cached_scores(hiding.cache_row(single), hidden, target[row], quantity).to(values)
    return values


def cached_scores(
    cached: CachedRow, hidden: Bool[Tensor, "copy token"], target: Shaped[Tensor, "*event"], quantity: Quantity
) -> Float[Tensor, " copy"]:
    """Return f of copies of one row, some tokens of which are hidden from its end."""
    # Every copy has states of the whole row.
    portion = AdaptiveBatchSize(max(1, TOKENS_AT_ONCE // hidden.shape[1]))

    def work(items: slice) -> Float[Tensor, " copy"]:
        answer = cached.predict_hidden(hidden[items])
        return target_score(answer, target.expand(len(hidden[items]), *target.shape), quantity)

    return torch.cat(portion.split(len(hidden), work))


@dataclass(frozen=True, kw_only=True)
class ContextCite(Method):
    """score_u = weight of unit u in a Lasso of f on the units that random ablations keep. Cohen-Wang et al. 2024.

    f is the log-odds of the response, divided by its number of tokens for the Lasso as in the published code.
    """

    name: ClassVar[str] = "context-cite"

    ablations: int = 64
    """Random ablations per row."""
    keep_probability: float = 0.5
    """Probability that an ablation keeps a unit."""
    penalty: float = 0.01
    """Weight of the L1 penalty, with standardised units."""
    quantity: Quantity = "log-odds"
    """f: quantity of the response."""

    def __post_init__(self) -> None:
        require_between(self, "ablations", 2)
        require_between(self, "keep_probability", 0, 1, open_low=True)
        require_between(self, "penalty", 0)

    def build(self, task: Task, seed: int) -> "AblationExplainer":
        """Check that the task has units."""
        require(task, ErasesUnits, self.name)
        return AblationExplainer(task, self, seed)

    def choose(self, units: int, source: torch.Generator) -> Bool[Tensor, "ablation unit"]:
        """Draw the kept units of each ablation."""
        return torch.rand(self.ablations, units, generator=source) < self.keep_probability

    def solve(self, kept: Numbers, values: Numbers, whole: float, events: int) -> Numbers:
        """Fit the Lasso."""
        return lasso(kept, values / events, self.penalty) * events


@dataclass(frozen=True, kw_only=True)
class KernelShap(Method):
    """score_u = Shapley value of unit u, from a weighted regression on sampled coalitions. Lundberg and Lee 2017.

    With no more than `ablations` coalitions in total, all are measured and the values are exact.
    """

    name: ClassVar[str] = "kernel-shap"

    ablations: int = 64
    """Coalitions per row, each with its complement; the whole and the empty prompt come on top."""
    quantity: Quantity = "log-odds"
    """f: quantity of the response."""

    def __post_init__(self) -> None:
        require_between(self, "ablations", 2)

    def build(self, task: Task, seed: int) -> "AblationExplainer":
        """Check that the task has units."""
        require(task, ErasesUnits, self.name)
        return AblationExplainer(task, self, seed)

    def choose(self, units: int, source: torch.Generator) -> Bool[Tensor, "ablation unit"]:
        """Draw coalitions by the Shapley kernel, in pairs of complements; the first one is empty."""
        empty = torch.zeros(1, units, dtype=torch.bool)
        if units < 2 or 2**units - 2 <= self.ablations:
            every = torch.arange(1, max(2**units - 1, 1))[:, None] >> torch.arange(units) & 1
            return torch.cat([empty, every.bool()])
        sizes = torch.arange(1, units, dtype=torch.float64)
        weights = 1 / (sizes * (units - sizes))
        drawn = torch.multinomial(weights, (self.ablations + 1) // 2, replacement=True, generator=source) + 1
        ranks = torch.rand(len(drawn), units, generator=source).argsort(dim=1).argsort(dim=1)
        half = ranks < drawn[:, None]
        return torch.cat([empty, torch.stack([half, ~half], dim=1).flatten(0, 1)[: self.ablations]])

    def solve(self, kept: Numbers, values: Numbers, whole: float, events: int) -> Numbers:
        """Solve the weighted least squares problem whose scores add up to f(whole) - f(empty)."""
        empty, sets, outputs = values[0], kept[1:], values[1:]
        units, gain = kept.shape[1], whole - values[0]
        if units == 1 or len(sets) == 0:
            return np.full(units, gain / units)
        sizes = sets.sum(axis=1)
        exhaustive = len(sets) == 2**units - 2
        # Sampled coalitions already come as often as the kernel weights them.
        weights = np.array([1 / (math.comb(units, int(size)) * size * (units - size)) for size in sizes])
        weights = weights if exhaustive else np.ones(len(sets))
        design = sets[:, :-1] - sets[:, -1:]
        observed = outputs - empty - sets[:, -1] * gain
        root = np.sqrt(weights)[:, None]
        first = np.linalg.lstsq(design * root, observed * root[:, 0], rcond=None)[0]
        return np.append(first, gain - first.sum())


class AblationExplainer(Explainer):
    """Explainer that fits one linear function per row to the model's answers without some units."""

    def __init__(self, task: Task, method: ContextCite | KernelShap, seed: int) -> None:
        super().__init__(task)
        self.method, self.seed = method, seed

    @torch.no_grad()
    def explain(self, batch: Batch, target: Shaped[Tensor, "row *event"]) -> Attribution:
        """Measure every row's ablations together, then solve row by row."""
        numbers = require(self.task, ErasesUnits, self.method.name).unit_numbers(batch)
        counts = numbers.amax(dim=1).tolist()
        chosen = [self.method.choose(count, self._source(batch[row : row + 1])) for row, count in enumerate(counts)]
        widest = max(counts)
        kept = torch.cat([torch.nn.functional.pad(sets, (0, widest - sets.shape[1])) for sets in chosen])
        rows = torch.tensor([row for row, sets in enumerate(chosen) for _ in range(len(sets))], device=numbers.device)
        values = ablated_scores(self.task, batch, target, rows, kept.to(numbers.device), self.method.quantity)
        whole = target_score(self.task.predict(batch), target, self.method.quantity)
        scores = torch.zeros(len(batch), widest)
        for row, sets in enumerate(chosen):
            outputs = values[rows == row].double().cpu().numpy()
            events = int(target[row].numel() if "scored" not in batch.inputs else batch.inputs["scored"][row].sum())
            solved = self.method.solve(sets.double().numpy(), outputs, float(whole[row]), events)
            scores[row, : counts[row]] = torch.from_numpy(solved).float()
        return Attribution(spread_unit_scores(scores.to(numbers.device), numbers))

    def _source(self, row: Batch) -> torch.Generator:
        """Return the random stream of a row, which does not depend on the rows it is explained with."""
        return generator(self.seed, f"{self.method.name} {row.tokens[row.present].tolist()}")


def lasso(kept: Numbers, values: Numbers, penalty: float, sweeps: int = 1000) -> Numbers:
    """Return the weights w of min ||y - X w - b||^2 / 2n + penalty ||w * scale||_1 by coordinate descent.

    X is standardised with the deviations `scale`; a unit that is always or never kept gets weight 0.
    """
    centred, outputs = kept - kept.mean(axis=0), values - values.mean()
    scale = centred.std(axis=0)
    design = centred / np.where(scale > 0, scale, 1.0)
    weights, residual = np.zeros(design.shape[1]), outputs.copy()
    for _ in range(sweeps):
        before = weights.copy()
        for unit in np.flatnonzero(scale > 0):
            fit = design[:, unit] @ residual / len(outputs) + weights[unit]
            new = np.sign(fit) * max(abs(fit) - penalty, 0.0)
            residual += design[:, unit] * (weights[unit] - new)
            weights[unit] = new
        if np.abs(weights - before).max(initial=0.0) < 1e-8:
            break
    return weights / np.where(scale > 0, scale, 1.0)
