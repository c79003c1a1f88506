"""Amortised attribution of a response to the parts of its prompt, from the attention of one forward pass.

In a causal model the state of a source token cannot know a question that comes later, so nothing is predicted from
source states alone: the features of a part are how much each head attends to it from the states that predict the
response. A ridge regression on masked copies of training prompts weighs the heads (AT2, Cohen-Wang et al. 2025, learns
such weights by gradient descent).
"""

import warnings
from dataclasses import dataclass

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from diffmask.core.batch import Attribution, Batch
from diffmask.core.capabilities import ErasesUnits, HidesFromEnd, require
from diffmask.core.explainer import Explainer
from diffmask.core.task import Task
from diffmask.core.training import generator
from diffmask.core.units import spread_unit_scores
from diffmask.errors import FitWarning, InputError
from diffmask.methods.amortised.ablations import AblationSamples, Features, copies_per_prompt, sample_ablations
from diffmask.methods.amortised.objectives import teacher_store
from diffmask.methods.amortised.part_features import part_features
from diffmask.methods.amortised.refine_parts import RefinedPartExplainer

MOST_COPIES = 5000
"""Masked copies of prompts that a fit takes, at most; further training prompts are left out."""
PENALTIES = tuple(10.0**power for power in range(-1, 6))
"""Ridge penalties that are tried on held-out prompts."""


@dataclass(frozen=True)
class HeadWeights:
    """Mean and deviation of the features, the weight of each head, and the effect of an average unit."""

    mean: Float[Tensor, " feature"]
    deviation: Float[Tensor, " feature"]
    weight: Float[Tensor, " feature"]
    constant: Float[Tensor, ""]

    def scores(self, features: Features) -> Float[Tensor, "row unit"]:
        """Return the predicted effect of each unit."""
        return ((features - self.mean) / self.deviation) @ self.weight + self.constant


def fit_heads(samples: AblationSamples, penalty: float) -> HeadWeights:
    """Solve min sum over copies of (f(kept) - c_prompt - sum of kept scores)^2 + penalty |weight|^2.

    The constant is not penalised: without it the scores of a prompt add up to about 0, and most parts would seem to
    harm the response. Values are divided by their deviation within the prompt, so that no prompt with large effects
    dominates.
    """
    real = samples.features[samples.rows.unique()].flatten(0, 1)
    real = real[real.abs().sum(dim=1) > 0]
    mean, deviation = real.mean(dim=0), real.std(dim=0).clamp(min=1e-6)
    # Zero rows pad prompts with fewer units and are never kept.
    standardised = (samples.features - mean) / deviation
    extended = torch.cat([standardised, torch.ones_like(standardised[..., :1])], dim=2)
    design = samples.centred(samples.sums(extended)).double()
    values = samples.centred(samples.values).double()
    power = torch.zeros(len(samples.features), dtype=torch.float64, device=values.device)
    spread = power.scatter_add(0, samples.rows, values.square())[samples.rows].clamp(min=1e-9).sqrt()
    design, values = design / spread[:, None], values / spread
    penalties = torch.full((len(mean) + 1,), penalty / len(mean), dtype=torch.float64, device=design.device)
    penalties[-1] = 1e-9
    solution = torch.linalg.solve(design.T @ design + penalties.diag(), design.T @ values).to(mean)
    return HeadWeights(mean, deviation, solution[:-1], solution[-1])


def choose_penalty(samples: AblationSamples, source: torch.Generator) -> tuple[float, float]:
    """Return the penalty with the highest mean correlation on a held-out quarter of the prompts, and that mean."""
    prompts = len(samples.features)
    held_out = torch.zeros(prompts, dtype=torch.bool)
    held_out[torch.randperm(prompts, generator=source)[: max(1, prompts // 4)]] = True
    held_out = held_out.to(samples.rows.device)
    train, valid = samples.select(~held_out), samples.select(held_out)
    correlation_of = {}
    for penalty in PENALTIES:
        weights = fit_heads(train, penalty)
        correlation_of[penalty] = float(valid.correlations(weights.scores(samples.features)).mean())
    best = max(correlation_of, key=lambda penalty: correlation_of[penalty])
    return best, correlation_of[best]


class PartAmortisedExplainer(Explainer):
    """Explainer that reads the attention of one forward pass and weighs its heads, then refines if asked to."""

    mean: Tensor
    deviation: Tensor
    weight: Tensor
    constant: Tensor

    def __init__(self, task: Task, copies: int = 0, *, cached: bool = False) -> None:
        super().__init__(task)
        self.copies, self.cached = copies, cached
        if cached:
            require(task, HidesFromEnd, "amortised: cached=True")
        features = part_features(task, task.data["train"][:1].trim()).shape[2]
        self.register_buffer("mean", torch.zeros(features))
        self.register_buffer("deviation", torch.ones(features))
        self.register_buffer("weight", torch.zeros(features))
        self.register_buffer("constant", torch.zeros(()))

    @torch.no_grad()
    def explain(self, batch: Batch, target: Shaped[Tensor, "row *event"]) -> Attribution:
        """Give every token of a unit the predicted loss in log-odds without the unit."""
        if not self.copies:
            return self.one_pass_scores(batch, target)
        return self.refined(self.copies, cached=self.cached).explain(batch, target)

    @torch.no_grad()
    def one_pass_scores(self, batch: Batch, target: Shaped[Tensor, "row *event"]) -> Attribution:
        """Return the scores of one forward pass."""
        numbers = require(self.task, ErasesUnits, "amortised").unit_numbers(batch)
        return Attribution(spread_unit_scores(self.unit_scores(part_features(self.task, batch)), numbers))

    def unit_scores(self, features: Features) -> Float[Tensor, "row unit"]:
        """Return the predicted effect of each unit."""
        return HeadWeights(self.mean, self.deviation, self.weight, self.constant).scores(features)

    def refined(self, copies: int = 16, *, cached: bool = False) -> RefinedPartExplainer:
        """Return an explainer that refines these scores with `copies` masked copies of each prompt.

        With `cached` they hide parts from the question and the response alone.
        """
        return RefinedPartExplainer(self, copies, cached=cached)

    def learn(self, rows: Batch, pairs: int, seed: int, label: str) -> None:
        """Fit the weights on masked copies of the given prompts."""
        if len(rows) < 4:
            raise InputError(
                f"{label}: {len(rows)} training prompts are too few; give the task train=[...], at least 4"
            )
        units = int(require(self.task, ErasesUnits, label).unit_numbers(rows).max())
        rows = rows.spread(min(len(rows), max(4, MOST_COPIES // copies_per_prompt(units, pairs))))
        samples = sample_ablations(
            self.task, rows, lambda prompts: part_features(self.task, prompts), pairs, seed, teacher_store()
        )
        penalty, correlation = choose_penalty(samples, generator(seed, "amortised parts"))
        heads = fit_heads(samples, penalty)
        for name in ("mean", "deviation", "weight", "constant"):
            getattr(self, name).copy_(getattr(heads, name))
        problems = {}
        if correlation < 0.3:
            problems["held-out"] = (
                f"scores correlate by only {correlation:.2f} with held-out ablations; give more prompts"
            )
            warnings.warn(f"{label}: {problems['held-out']}", FitWarning, stacklevel=5)
        self.diagnostics = {
            "heads": {
                "penalty": penalty,
                "held_out_correlation": correlation,
                "masked_passes": len(samples.rows),
                "problems": problems,
            }
        }
