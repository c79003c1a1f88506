"""Refined amortised scores: regression on masked copies of one text, with the amortised scores as the prior mean."""

from typing import TYPE_CHECKING

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor

from diffmask.core.batch import Attribution, Batch
from diffmask.core.distributions import target_score
from diffmask.core.explainer import Explainer
from diffmask.core.hooks import erase_states
from diffmask.core.resources import AdaptiveBatchSize
from diffmask.core.training import generator
from diffmask.errors import ConfigError

if TYPE_CHECKING:
    from diffmask.methods.amortised.amortised import AmortisedExplainer


class RefinedExplainer(Explainer):
    """argmin over s of sum_k (f(S_k) - f(none) - sum of S_k's scores)^2 + prior_weight |s - amortised scores|^2.

    A Shapley regression per text (Lundberg and Lee 2017) with the network's scores as its prior; f is the log-odds.
    """

    def __init__(self, prior: "AmortisedExplainer", copies: int = 64, prior_weight: float = 4.0, seed: int = 0) -> None:
        super().__init__(prior.task)
        if copies < 2 or prior_weight <= 0:
            raise ConfigError(
                f"refining needs at least 2 copies and a prior_weight above 0; got {copies} and {prior_weight}"
            )
        self.prior, self.copies, self.prior_weight, self.seed = prior, copies, prior_weight, seed
        self.config = prior.config
        self.portion = AdaptiveBatchSize(256)

    @torch.no_grad()
    def explain(self, batch: Batch, target: Shaped[Tensor, "row *event"]) -> Attribution:
        """Regress on the same masks for all rows, drawn token by token: batch and padding change no row's scores."""
        prior = self.prior.one_pass_scores(batch, target).scores.masked_fill(~batch.maskable, 0.0)
        kept = self._masks(batch.tokens.shape[1]).to(batch.maskable.device)

        def evaluate(rows: slice) -> Float[Tensor, "row copy"]:
            return self._log_odds(batch[rows], target[rows], kept)

        values = torch.cat(self.portion.split(len(batch), evaluate, rows_each=self.copies + 1))
        effects = values[:, 1:] - values[:, :1]
        return Attribution(posterior_mean(prior, kept[1:] & batch.maskable[:, None], effects, self.prior_weight))

    def _masks(self, tokens: int) -> Bool[Tensor, "copy token"]:
        """Return the empty mask, then random masks, then their complements."""
        source = generator(self.seed, "refine")
        pairs = self.copies // 2
        rate = torch.rand(pairs, generator=source)[:, None]
        first = rate > torch.rand(tokens, pairs, generator=source).T
        return torch.cat([torch.zeros(1, tokens, dtype=torch.bool), first, ~first])

    def _log_odds(
        self, batch: Batch, target: Shaped[Tensor, "row *event"], kept: Bool[Tensor, "copy token"]
    ) -> Float[Tensor, "row copy"]:
        count = len(kept)
        copies = batch.repeat(count)
        erased = copies.maskable & ~kept.repeat(len(batch), 1)
        prediction = self.task.predict(copies, {self.task.sites[0]: erase_states(erased, self.prior.baseline)})
        values = target_score(prediction, target.repeat_interleave(count, dim=0), "log-odds")
        return values.unflatten(0, (len(batch), count))


def posterior_mean(
    prior: Float[Tensor, "row token"],
    kept: Bool[Tensor, "row copy token"],
    effects: Float[Tensor, "row copy"],
    prior_weight: float,
) -> Float[Tensor, "row token"]:
    """Return s = s0 + (K'K + prior_weight I)^-1 K'(f - K s0), in double precision."""
    design, mean = kept.double(), prior.double()
    residual = effects.double() - (design @ mean[..., None]).squeeze(-1)
    normal = design.mT @ design + prior_weight * torch.eye(design.shape[2], dtype=torch.double, device=design.device)
    change = torch.linalg.solve(normal, (design.mT @ residual[..., None]))
    return (mean + change.squeeze(-1)).to(prior.dtype)
