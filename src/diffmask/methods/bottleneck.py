"""Per-sample information bottleneck: the share of each token's state that must pass. Schulz et al. 2020."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn

from diffmask.core.baseline_states import site_statistics
from diffmask.core.batch import Attribution, Batch
from diffmask.core.explainer import Explainer, Method
from diffmask.core.hooks import interpolate
from diffmask.core.task import Task
from diffmask.core.training import generator, normal_noise

State = Float[Tensor, "row token width"]


@dataclass(frozen=True, kw_only=True)
class Bottleneck(Method):
    """score_t = gate g_t that minimises -log p(target | z) + weight * KL(z || noise). Schulz et al. 2020.

    z = g h + (1 - g) (mean + deviation * noise), g = sigmoid(a) with a = 5 at the start; one noise sample per step.
    """

    name: ClassVar[str] = "bottleneck"

    site: str | None = None
    """Site of the bottleneck. Default: the token embedding."""
    steps: int = 500
    """Steps of the optimiser."""
    weight: float = 10.0
    """Weight of the information that passes, in nats."""
    learning_rate: float = 0.1
    """Learning rate of RMSprop."""

    def build(self, task: Task, seed: int) -> "BottleneckExplainer":
        """Estimate the mean and deviation of the site from the training rows."""
        return BottleneckExplainer(self, task, self.site_of(task, self.site), seed)


class BottleneckExplainer(Explainer):
    """Explainer that optimises the gates of every batch; the gates of a row do not depend on other rows."""

    seed: Tensor

    def __init__(self, method: Bottleneck, task: Task, site: str, seed: int) -> None:
        super().__init__(task)
        self.method, self.site = method, site
        self.register_buffer("seed", torch.tensor(seed))
        statistics = site_statistics(task, [site], rows=2000)[site]
        self.mean = nn.Parameter(statistics.mean, requires_grad=False)
        self.deviation = nn.Parameter(statistics.deviation, requires_grad=False)

    def explain(self, batch: Batch, target: Shaped[Tensor, "row *event"]) -> Attribution:
        """Optimise the gates with the same noise for every row, so that scores do not depend on the batch."""
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
        """Return the loss summed over rows, so that each row is optimised independently."""
        edited = interpolate(gate, self.mean + self.deviation * noise, batch.maskable)(state)
        cross_entropy = -self.task.predict(batch, {self.site: lambda _: edited}).log_prob(target)
        passed = (bottleneck_information(gate, state, self.mean, self.deviation) * batch.maskable).sum(dim=1)
        return (cross_entropy + self.method.weight * passed / batch.maskable.sum(dim=1).clamp(min=1)).sum()


def bottleneck_information(
    gate: Float[Tensor, "row token"], state: State, mean: Float[Tensor, " width"], deviation: Float[Tensor, " width"]
) -> Float[Tensor, "row token"]:
    """Return KL(N(g h + (1-g) m, (1-g)^2 s^2) || N(m, s^2)), averaged over the width. Schulz et al. 2020, eq. 6."""
    noise_share = (1 - gate).clamp(min=1e-6)
    signal = (gate[..., None] * (state - mean) / deviation).square().mean(dim=-1)
    return 0.5 * (noise_share.square() + signal - 1) - noise_share.log()
