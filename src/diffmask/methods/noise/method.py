"""Noise: the more of it a token tolerates, the less of the token the model holds. Guan et al. 2019."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from diffmask.core.batch import Attribution, Batch
from diffmask.core.distributions import logits
from diffmask.core.explainer import Explainer, Method
from diffmask.core.probe import site_statistics
from diffmask.core.resources import count_backward
from diffmask.core.task import Task
from diffmask.errors import SiteError
from diffmask.methods.noise.distortion import Phi, Problem, pose
from diffmask.methods.noise.solver import Settings, solve_layers

ANSWER = "answer"
"""The layer that stands for the answer's logits."""


@dataclass(frozen=True, kw_only=True)
class NoiseTolerance(Method):
    """score_t = 1 / sigma_t, sigma the largest noise that leaves what is read as it is.

    Minimises E ||s(h + sigma eps) - s(h)||^2 - rate * sum_t log sigma_t for each row by itself; s is the answer's
    logits, or the states of a later site in units of their deviation over the training rows, averaged.
    """

    name: ClassVar[str] = "noise-tolerance"

    site: str | None = None
    """Where the noise is added; the token embedding where none is named."""
    reads: tuple[str, ...] = ()
    """Sites whose states must stay as they are, each a layer of the explanation; `*` for every later site.

    The answer's logits where none is named; `answer` names them beside sites.
    """
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
    internal_batch_size: int = 1024
    """Rows the model is given at once, each noisy copy counted."""

    def build(self, task: Task, seed: int) -> "NoiseExplainer":
        """What is read must come after the noise."""
        site = self.site_of(task, self.site)
        return NoiseExplainer(self, task, site, self.layers(task, site), seed)

    def layers(self, task: Task, site: str) -> tuple[str, ...]:
        """What is read, in the order asked for."""
        later = task.sites[task.sites.index(site) + 1 :]
        chosen = later if self.reads == ("*",) else self.reads or (ANSWER,)
        for name in chosen:
            if name not in (*later, ANSWER):
                known = ", ".join((*later, ANSWER))
                raise SiteError(f"noise at '{site}' cannot be read at '{name}'; what comes after it: {known}")
        return chosen or (ANSWER,)


class NoiseExplainer(Explainer):
    """Solves for every row anew; a row's noise depends on no other row."""

    largest: Tensor
    seed: Tensor

    def __init__(self, method: NoiseTolerance, task: Task, site: str, layers: tuple[str, ...], seed: int) -> None:
        super().__init__(task)
        self.method, self.site, self.layers = method, site, layers
        known = site_statistics(task, task.sites, rows=2000)
        self.register_buffer("largest", method.scale * known[site].deviation.square().mean().sqrt())
        self.register_buffer("seed", torch.tensor(seed))
        for layer in layers:
            spread = torch.ones(()) if layer == ANSWER else known[layer].deviation
            self.register_buffer(f"spread_{layers.index(layer)}", spread)

    def explain(self, batch: Batch, target: Shaped[Tensor, "row *event"]) -> Attribution:
        """The outcome plays no part in it; seen from several layers, the score is their mean."""
        sigma = self.sigma(batch)
        scores = torch.where(batch.maskable[:, None], 1 / sigma.clamp(min=1e-12), 0.0)
        if self.layers == (ANSWER,):
            return Attribution(scores[:, 0])
        return Attribution(scores.mean(dim=1), scores, self.layers)

    def sigma(self, batch: Batch) -> Float[Tensor, "row layer token"]:
        """The noise itself, in the units of the site's states; 0 where a token may not be masked."""
        _, states = self.task.trace(batch)
        state = states[self.site]
        found = state.new_zeros(len(batch), len(self.layers), batch.tokens.shape[1])
        some = batch.maskable.any(dim=1)
        if some.any():
            problems = [self._pose(batch[some], state[some], layer) for layer in self.layers]
            found[some] = solve_layers(problems, self._settings()).sigma
        return found

    def _pose(self, batch: Batch, state: Float[Tensor, "row token width"], layer: str) -> Problem:
        """Noise goes on maskable tokens only; at a site, states of padding do not count."""
        spread = self.get_buffer(f"spread_{self.layers.index(layer)}")
        counted = None if layer == ANSWER else batch.present[..., None]
        return pose(self._phi(batch, layer), state, batch.maskable, regularization=spread, counted=counted)

    def _phi(self, batch: Batch, layer: str) -> Phi:
        """What is read, as a function of the noisy states."""

        def read(noisy: Float[Tensor, "copy token width"], rows: Int[Tensor, " copy"]) -> Tensor:
            if layer == ANSWER:
                return logits(self.task.predict(batch[rows], {self.site: lambda _: noisy}))
            seen: list[Tensor] = []

            def keep(state: Float[Tensor, "copy token width"]) -> Float[Tensor, "copy token width"]:
                seen.append(state)
                return state

            self.task.predict(batch[rows], {self.site: lambda _: noisy, layer: keep})
            # The backward pass starts inside the model, where the meter does not look.
            count_backward(seen[0], self.cost)
            return seen[0]

        return read

    def _settings(self) -> Settings:
        return Settings(
            scale=float(self.largest),
            rate=self.method.rate,
            reduction=self.method.reduction,
            seed=int(self.seed),
            samples=self.method.samples,
            tolerance=self.method.tolerance,
            most_steps=self.method.most_steps,
            copies_per_call=self.method.internal_batch_size,
        )
