"""Paying more for a text: what its own masked copies say, with the amortised scores as a first guess."""

from typing import TYPE_CHECKING

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor

from diffmask.core.batch import Attribution, Batch
from diffmask.core.distributions import target_score
from diffmask.core.explainer import Explainer
from diffmask.core.resources import AdaptiveBatchSize
from diffmask.core.training import generator
from diffmask.errors import ConfigError
from diffmask.methods.leave_one_out import fill

if TYPE_CHECKING:
    from diffmask.methods.amortised.amortised import AmortisedExplainer


class RefinedExplainer(Explainer):
    """argmin over s of sum_k (f(S_k) - f(none) - sum of S_k's scores)^2 + trust |s - amortised scores|^2.

    A text's own Shapley regression (Lundberg and Lee 2017) with the student as its prior; f is the log-odds.
    """

    def __init__(self, start: "AmortisedExplainer", copies: int = 64, trust: float = 4.0, seed: int = 0) -> None:
        super().__init__(start.task)
        if copies < 2 or trust <= 0:
            raise ConfigError(f"refining takes at least 2 copies and a trust above 0; found {copies} and {trust}")
        self.start, self.copies, self.trust, self.seed = start, copies, trust, seed
        self.config = start.config
        self.portion = AdaptiveBatchSize(256)

    @torch.no_grad()
    def explain(self, batch: Batch, target: Shaped[Tensor, "row *event"]) -> Attribution:
        """All rows share their masks, drawn token by token: neither the batch nor padding changes a row's scores."""
        first = self.start.explain(batch, target).scores.masked_fill(~batch.maskable, 0.0)
        kept = self._masks(batch.tokens.shape[1]).to(batch.maskable.device)

        def ask(rows: slice) -> Float[Tensor, "row copy"]:
            return self._answers(batch[rows], target[rows], kept)

        told = torch.cat(self.portion.split(len(batch), ask, rows_each=self.copies + 1))
        return Attribution(posterior(first, kept[1:] & batch.maskable[:, None], told[:, 1:] - told[:, :1], self.trust))

    def _masks(self, tokens: int) -> Bool[Tensor, "copy token"]:
        """Nothing kept, then masks and their complements."""
        source = generator(self.seed, "refine")
        pairs = self.copies // 2
        rate = torch.rand(pairs, generator=source)[:, None]
        first = rate > torch.rand(tokens, pairs, generator=source).T
        return torch.cat([torch.zeros(1, tokens, dtype=torch.bool), first, ~first])

    def _answers(
        self, batch: Batch, target: Shaped[Tensor, "row *event"], kept: Bool[Tensor, "copy token"]
    ) -> Float[Tensor, "row copy"]:
        count = len(kept)
        copies = batch.repeat(count)
        erased = copies.maskable & ~kept.repeat(len(batch), 1)
        answer = self.task.predict(copies, {self.task.sites[0]: fill(erased, self.start.baseline)})
        told = target_score(answer, target.repeat_interleave(count, dim=0), "log-odds")
        return told.unflatten(0, (len(batch), count))


def posterior(
    first: Float[Tensor, "row token"],
    kept: Bool[Tensor, "row copy token"],
    told: Float[Tensor, "row copy"],
    trust: float,
) -> Float[Tensor, "row token"]:
    """s = s0 + (K'K + trust)^-1 K'(f - K s0), in double precision."""
    mask, guess = kept.double(), first.double()
    missed = told.double() - (mask @ guess[..., None]).squeeze(-1)
    normal = mask.mT @ mask + trust * torch.eye(mask.shape[2], dtype=torch.double, device=mask.device)
    change = torch.linalg.solve(normal, (mask.mT @ missed[..., None]))
    return (guess + change.squeeze(-1)).to(first.dtype)
