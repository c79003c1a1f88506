"""Noise tolerance as an attribution method: the more noise a token tolerates, the less it matters. Guan et al. 2019."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from diffmask.core.baseline_states import site_statistics
from diffmask.core.batch import Attribution, Batch
from diffmask.core.distributions import logits
from diffmask.core.explainer import Explainer, Method
from diffmask.core.resources import count_backward
from diffmask.core.task import Task
from diffmask.errors import SiteError
from diffmask.methods.noise.distortion import DistortionProblem, Phi, define_problem
from diffmask.methods.noise.solver import SolverSettings, solve_layers

LOGITS = "logits"
"""Name of the model's logits among the targets."""


@dataclass(frozen=True, kw_only=True)
class NoiseTolerance(Method):
    """score_t = 1 / sigma_t, where sigma minimises E |s(h + sigma eps) - s(h)|^2 - rate * sum_t log sigma_t per row.

    s is the model's logits, or the states of a later site in units of their deviation over the training rows, averaged.
    Guan et al. 2019, eq. 7.
    """

    name: ClassVar[str] = "noise-tolerance"

    site: str | None = None
    """Site where the noise is added. Default: the token embedding."""
    targets: tuple[str, ...] = ()
    """States that must not change: later sites or `logits`, each a layer of the explanation; `*` for every later site.

    Default: the logits."""
    rate: float = 1.0
    """Weight of the noise's entropy."""
    reduction: Literal["mean", "sum"] = "sum"
    """Whether that entropy is summed over tokens (the paper) or averaged (the published code)."""
    scale: float = 10.0
    """Largest noise, in standard deviations of the site's states."""
    samples: int = 16
    """Noise samples per step of the solver."""
    tolerance: float = 0.05
    """A row has converged once the standard error of log sigma is below this for each of its tokens."""
    max_steps: int = 60
    """Steps of the solver per row."""
    internal_batch_size: int = 1024
    """Rows per forward pass, noisy copies included."""

    def build(self, task: Task, seed: int) -> "NoiseToleranceExplainer":
        """Check that every target comes after the noise, and estimate the deviation of the sites."""
        site = self.site_of(task, self.site)
        return NoiseToleranceExplainer(self, task, site, self.target_layers(task, site), seed)

    def target_layers(self, task: Task, site: str) -> tuple[str, ...]:
        """Return the targets in the order given."""
        later = task.sites[task.sites.index(site) + 1 :]
        layers = later if self.targets == ("*",) else self.targets or (LOGITS,)
        for name in layers:
            if name not in (*later, LOGITS):
                known = ", ".join((*later, LOGITS))
                raise SiteError(f"noise-tolerance: '{name}' does not come after '{site}'; targets after it: {known}")
        return layers or (LOGITS,)


class NoiseToleranceExplainer(Explainer):
    """Solves for the noise of every row; a row's noise does not depend on other rows."""

    explains_target: ClassVar[bool] = False

    max_sigma: Tensor
    seed: Tensor

    def __init__(self, method: NoiseTolerance, task: Task, site: str, layers: tuple[str, ...], seed: int) -> None:
        super().__init__(task)
        self.method, self.site, self.layers = method, site, layers
        statistics = site_statistics(task, task.sites, rows=2000)
        self.register_buffer("max_sigma", method.scale * statistics[site].deviation.square().mean().sqrt())
        self.register_buffer("seed", torch.tensor(seed))
        for layer in layers:
            deviation = torch.ones(()) if layer == LOGITS else statistics[layer].deviation
            self.register_buffer(f"deviation_{layers.index(layer)}", deviation)

    def explain(self, batch: Batch, target: Shaped[Tensor, "row *event"]) -> Attribution:
        """Score tokens by 1 / sigma, averaged over layers; the target outcome is not used."""
        sigma = self.sigma(batch)
        scores = torch.where(batch.maskable[:, None], 1 / sigma.clamp(min=1e-12), 0.0)
        if self.layers == (LOGITS,):
            return Attribution(scores[:, 0])
        return Attribution(scores.mean(dim=1), scores, self.layers)

    def sigma(self, batch: Batch) -> Float[Tensor, "row layer token"]:
        """Return the tolerated noise in the units of the site's states; 0 for tokens that are not maskable."""
        _, states = self.task.trace(batch)
        state = states[self.site]
        sigma = state.new_zeros(len(batch), len(self.layers), batch.tokens.shape[1])
        rows = batch.maskable.any(dim=1)
        if rows.any():
            problems = [self._problem(batch[rows], state[rows], layer) for layer in self.layers]
            sigma[rows] = solve_layers(problems, self._settings()).sigma
        return sigma

    def _problem(self, batch: Batch, state: Float[Tensor, "row token width"], layer: str) -> DistortionProblem:
        """Put noise on maskable tokens only; exclude the states of padding."""
        deviation = self.get_buffer(f"deviation_{self.layers.index(layer)}")
        present = None if layer == LOGITS else batch.present[..., None]
        phi = self._phi(batch, layer)
        return define_problem(phi, state, batch.maskable, regularization=deviation, feature_mask=present)

    def _phi(self, batch: Batch, layer: str) -> Phi:
        """Return the target state as a function of the noisy states."""

        def phi(noisy: Float[Tensor, "copy token width"], rows: Int[Tensor, " copy"]) -> Tensor:
            if layer == LOGITS:
                return logits(self.task.predict(batch[rows], {self.site: lambda _: noisy}))
            recorded: list[Tensor] = []

            def record(state: Float[Tensor, "copy token width"]) -> Float[Tensor, "copy token width"]:
                recorded.append(state)
                return state

            self.task.predict(batch[rows], {self.site: lambda _: noisy, layer: record})
            # The backward pass starts inside the model, where the cost meter does not see it.
            count_backward(recorded[0], self.cost)
            return recorded[0]

        return phi

    def _settings(self) -> SolverSettings:
        return SolverSettings(
            scale=float(self.max_sigma),
            rate=self.method.rate,
            reduction=self.method.reduction,
            seed=int(self.seed),
            samples=self.method.samples,
            tolerance=self.method.tolerance,
            max_steps=self.method.max_steps,
            internal_batch_size=self.method.internal_batch_size,
        )
