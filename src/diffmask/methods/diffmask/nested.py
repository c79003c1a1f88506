"""DiffMask for several margins at once: nested masks, one a margin, and so a ranking.

A token's gate at margin j has logit gain * (s_t - threshold_j). s_t is what the token adds to the log-odds of the
answer, as an amortised student sees it; threshold_j is read from the text and rises with the margin. So what a loose
margin keeps, a tight one keeps.
"""

import math
from typing import TYPE_CHECKING

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor, nn
from torch.distributions import Distribution
from torch.nn.functional import gelu, softplus

from diffmask.core.batch import Attribution, Batch
from diffmask.core.distributions import flat_logits, log_odds_gradient, predicted_outcome
from diffmask.core.explainer import Explainer, States, pool_states
from diffmask.core.hooks import Edit, erase_states
from diffmask.core.task import Task
from diffmask.methods.amortised.network import AttributionNetwork
from diffmask.methods.diffmask.hard_concrete import HardConcrete

if TYPE_CHECKING:
    from diffmask.core.baselines import SiteStatistics

Gates = Float[Tensor, "row margin token"]


class Thresholds(nn.Module):
    """tau_j = a + shift_1 + sum_{1<i<=j} softplus(b_i + shift_i), a and b read from the row's last states."""

    shift: Tensor
    mean: Tensor
    deviation: Tensor

    def __init__(self, last: "SiteStatistics", margins: int, width: int = 64) -> None:
        super().__init__()
        kind = last.mean.dtype
        self.register_buffer("mean", last.mean.repeat(3))
        self.register_buffer("deviation", last.deviation.repeat(3))
        self.register_buffer("shift", torch.zeros(margins, dtype=kind))
        self.hidden = nn.Linear(3 * len(last.mean), width, dtype=kind)
        self.vote = nn.Linear(width, margins, dtype=kind)
        nn.init.zeros_(self.vote.weight)
        nn.init.constant_(self.vote.bias, -1.0)

    def forward(
        self, state: Float[Tensor, "row token width"], present: Bool[Tensor, "row token"]
    ) -> Float[Tensor, "row margin"]:
        """Ascending along the margins."""
        seen = (torch.cat(pool_states(state, present), dim=-1) - self.mean) / self.deviation
        found = self.vote(gelu(self.hidden(seen)))
        rises = torch.cat([found[:, :1], softplus(found[:, 1:])], dim=1)
        return rises.cumsum(dim=1) + self.shift


class NestedMaskExplainer(Explainer):
    """One clean pass gives every margin's mask; a token's score is the mean of P(z > 0) over the margins."""

    def __init__(
        self,
        task: Task,
        student: AttributionNetwork,
        thresholds: Thresholds,
        margins: tuple[float, ...],
        baseline: Float[Tensor, " width"],
        temperature: float,
    ) -> None:
        super().__init__(task)
        self.student, self.thresholds = student, thresholds
        self.margins = margins
        self.temperature = temperature
        self.gain = nn.Parameter(torch.tensor(2.0, dtype=baseline.dtype))
        self.baseline = nn.Parameter(baseline, requires_grad=False)

    @property
    def names(self) -> tuple[str, ...]:
        """What the layers of an attribution are called: the margins, from tight to loose."""
        return tuple(f"margin {margin:g}" for margin in self.margins)

    def heights(self, answer: Distribution, states: States, batch: Batch) -> Gates:
        """How far each token's score lies above each margin's threshold."""
        towards = log_odds_gradient(answer, torch.zeros_like(flat_logits(answer)), predicted_outcome(answer))
        scores = (self.student(states, batch.present) * towards[:, None]).sum(dim=-1)
        return scores[:, None] - self.thresholds(states[self.student.sites[-1]], batch.present)[..., None]

    def gates(self, answer: Distribution, states: States, batch: Batch) -> HardConcrete:
        """Gates [row, margin, token]; P(z > 0) is one half at height 0."""
        logit = softplus(self.gain) * self.heights(answer, states, batch)
        # Bounded, and so never so sure that two tokens score the same.
        return HardConcrete(12 * torch.tanh(logit / 12) - self.temperature * math.log(5), self.temperature)

    def edits(self, gate: Float[Tensor, "row token"], maskable: Bool[Tensor, "row token"]) -> dict[str, Edit]:
        """h <- z h + (1 - z) b at the maskable tokens."""
        kept = torch.where(maskable, gate, 1.0)[..., None]
        return {self.task.sites[0]: lambda state: kept * state + (1 - kept) * self.baseline}

    def outcome(self, batch: Batch) -> Shaped[Tensor, "row *event"]:
        """A mask keeps the whole answer, whatever it is: no pass is spent on asking for it."""
        return batch.target

    def explain(self, batch: Batch, target: Shaped[Tensor, "row *event"]) -> Attribution:
        """For the model's own answer, as every mask."""
        return self.answer(batch)[1]

    @torch.no_grad()
    def answer(self, batch: Batch) -> tuple[Distribution, Attribution]:
        """One pass serves both."""
        answer, states = self.task.trace(batch)
        opened = self.gates(answer, states, batch).open()
        return answer, Attribution(opened.mean(dim=1), opened, self.names)

    @torch.no_grad()
    def predict_kept(self, batch: Batch, kept: Bool[Tensor, "row token"], layer: str | None) -> Distribution:
        """The answer when only some tokens are kept, with this explainer's own baseline."""
        return self.task.predict(batch, {self.task.sites[0]: erase_states(batch.maskable & ~kept, self.baseline)})
