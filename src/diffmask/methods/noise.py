"""Noise: the more of it a token tolerates, the less of the token the model holds. Guan et al. 2019."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from diffmask.answer import logits
from diffmask.batch import Attribution, Batch
from diffmask.guan.distortion import pose
from diffmask.guan.tolerance import Settings, solve
from diffmask.method import Explainer, Method
from diffmask.probe import site_statistics
from diffmask.task import Task


@dataclass(frozen=True, kw_only=True)
class Noise(Method):
    """score_t = 1 / sigma_t, sigma the largest noise that leaves the answer's logits as they are.

    Minimises E ||logits(h + sigma eps) - logits(h)||^2 - rate * sum_t log sigma_t for each row by itself.
    """

    name: ClassVar[str] = "noise"

    site: str | None = None
    """Where the noise is added; the token embedding where none is named."""
    rate: float = 1.0
    """Weight of the noise's entropy."""
    reduction: Literal["mean", "sum"] = "sum"
    """Whether that entropy is summed over tokens (paper) or averaged (the published code)."""
    scale: float = 10.0
    """Largest noise, in standard deviations of the site's states."""
    samples: int = 16
    """Noise samples a step of the solver."""
    tolerance: float = 0.05
    """A row is solved once the standard error of log sigma is below this for each of its tokens."""
    most_steps: int = 60
    """Steps after which a row is left as it is."""

    def build(self, task: Task, seed: int) -> "NoiseExplainer":
        """Nothing to allocate."""
        return NoiseExplainer(self, task, self.site_of(task, self.site), seed)


class NoiseExplainer(Explainer):
    """Solves for every row anew; a row's noise depends on no other row."""

    largest: Tensor

    def __init__(self, method: Noise, task: Task, site: str, seed: int) -> None:
        super().__init__(task)
        self.method, self.site, self.seed = method, site, seed
        spread = site_statistics(task, [site], rows=2000)[site].deviation.square().mean().sqrt()
        self.register_buffer("largest", method.scale * spread)

    def explain(self, batch: Batch, target: Shaped[Tensor, "row *event"]) -> Attribution:
        """Noise goes on maskable tokens only."""
        _, states = self.task.trace(batch)
        scores = torch.zeros(batch.tokens.shape)
        some = batch.maskable.any(dim=1)
        if some.any():
            scores[some] = self._solve(batch[some], states[self.site][some])
        return Attribution(scores)

    def _solve(self, batch: Batch, state: Float[Tensor, "row token width"]) -> Float[Tensor, "row token"]:
        def phi(noisy: Float[Tensor, "copy token width"], rows: Int[Tensor, " copy"]) -> Tensor:
            return logits(self.task.predict(batch[rows], {self.site: lambda _: noisy}))

        problem = pose(phi, state, batch.maskable, regularization=torch.ones(()))
        settings = Settings(
            scale=float(self.largest),
            rate=self.method.rate,
            reduction=self.method.reduction,
            seed=self.seed,
            samples=self.method.samples,
            tolerance=self.method.tolerance,
            most_steps=self.method.most_steps,
            copies_per_call=1024,
        )
        return 1 / solve(problem, settings).sigma.clamp(min=1e-12)
