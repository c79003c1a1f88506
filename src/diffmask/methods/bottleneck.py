"""Information bottleneck, per input: how much of each token can be replaced by noise? Schulz et al. 2020."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn

from diffmask.core.baselines import site_statistics
from diffmask.core.batch import Attribution, Batch
from diffmask.core.explainer import Explainer, Method
from diffmask.core.task import Task
from diffmask.core.training import generator, normal_noise

State = Float[Tensor, "row token width"]


@dataclass(frozen=True, kw_only=True)
class Bottleneck(Method):
    """Minimise -log p(target | z) + weight * KL(z || noise) over a gate a token; the score is the gate.

    z = g h + (1 - g) (mean + deviation * noise), g = sigmoid(a), a starting at 5; one noise draw a step.
    """

    name: ClassVar[str] = "bottleneck"

    site: str | None = None
    """Where the bottleneck sits; the token embedding where none is named."""
    steps: int = 500
    weight: float = 10.0
    """Price of a nat that passes the bottleneck."""
    learning_rate: float = 0.1

    def build(self, task: Task, seed: int) -> "BottleneckExplainer":
        """Mean and deviation of the site are taken from the training rows."""
        return BottleneckExplainer(self, task, self.site_of(task, self.site), seed)


class BottleneckExplainer(Explainer):
    """Optimises its gates anew for every batch; a row's gates depend on no other row."""

    seed: Tensor

    def __init__(self, method: Bottleneck, task: Task, site: str, seed: int) -> None:
        super().__init__(task)
        self.method, self.site = method, site
        self.register_buffer("seed", torch.tensor(seed))
        known = site_statistics(task, [site], rows=2000)[site]
        self.mean = nn.Parameter(known.mean, requires_grad=False)
        self.deviation = nn.Parameter(known.deviation, requires_grad=False)

    def explain(self, batch: Batch, target: Shaped[Tensor, "row *event"]) -> Attribution:
        """The same noise for every row: scores do not depend on the batch."""
        _, states = self.task.trace(batch)
        state = states[self.site]
        gates = state.new_full(batch.tokens.shape, 5.0).requires_grad_()
        optimizer = torch.optim.RMSprop([gates], lr=self.method.learning_rate, centered=True)
        for step in range(self.method.steps):
            noise = normal_noise(tuple(state.shape[1:]), generator(int(self.seed), "bottleneck", step)).to(state)
            optimizer.zero_grad()
            self._loss(batch, target, state, torch.sigmoid(gates), noise).backward()
            optimizer.step()
        return Attribution(torch.sigmoid(gates.detach()))

    def _loss(
        self,
        batch: Batch,
        target: Shaped[Tensor, "row *event"],
        state: State,
        gate: Float[Tensor, "row token"],
        noise: Float[Tensor, "token width"],
    ) -> Float[Tensor, ""]:
        """Summed over rows, so that each is optimised as if alone."""
        open_part = gate[..., None]
        mixed = open_part * state + (1 - open_part) * (self.mean + self.deviation * noise)
        kept = torch.where(batch.maskable[..., None], mixed, state)
        surprise = -self.task.predict(batch, {self.site: lambda _: kept}).log_prob(target)
        passed = (information(gate, state, self.mean, self.deviation) * batch.maskable).sum(dim=1)
        return (surprise + self.method.weight * passed / batch.maskable.sum(dim=1).clamp(min=1)).sum()


def information(
    gate: Float[Tensor, "row token"], state: State, mean: Float[Tensor, " width"], deviation: Float[Tensor, " width"]
) -> Float[Tensor, "row token"]:
    """KL(N(g h + (1-g) m, (1-g)^2 s^2) || N(m, s^2)) in nats, averaged over the width. Schulz et al. 2020, eq. 6."""
    shut = (1 - gate).clamp(min=1e-6)
    signal = (gate[..., None] * (state - mean) / deviation).square().mean(dim=-1)
    return 0.5 * (shut.square() + signal - 1) - shut.log()
