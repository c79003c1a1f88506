"""Drop-in replacement for the `Interpreter` of Guan et al. 2019, on a solver with a convergence test.

It accepts a Phi of one sentence, as the published code does, and batches it if that gives the same states.
"""

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import ArrayLike
from torch import Tensor, nn

from diffmask.errors import InputError
from diffmask.methods.noise.distortion import DistortionProblem, Phi, define_problem
from diffmask.methods.noise.solver import (
    NoiseSolution,
    ProgressCallback,
    SolverSettings,
    initial_log_sigma,
    sample_noise,
    solve,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SentencePhi = Callable[[Float[Tensor, "token width"]], Float[Tensor, "..."]]
"""Hidden state of one sentence: a tensor of any shape, from word vectors [token, width]."""


def loop_over_copies(phi: SentencePhi) -> Phi:
    """Call phi once per copy; works with any phi."""

    def looped(x: Float[Tensor, "copy token width"], rows: Int[Tensor, " copy"]) -> Float[Tensor, "copy ..."]:
        states = [phi(sentence) for sentence in x]
        if not isinstance(states[0], Tensor):
            raise InputError(f"Phi must return one tensor, not {type(states[0]).__name__}; return the state to explain")
        return torch.stack(states)

    return looped


def batch_phi(phi: SentencePhi, x: Float[Tensor, "token width"]) -> Phi:
    """Return the fastest valid batched form of phi: phi itself on a leading axis, `torch.vmap(phi)`, or a loop.

    The first two are used only if state and gradient equal those of the loop on three different copies of x.
    """
    loop, copies = loop_over_copies(phi), torch.stack([x, x / 2, -x])
    expected = _state_and_gradient(loop, copies)
    candidates: list[Phi] = [lambda x, rows: phi(x), lambda x, rows: torch.vmap(phi)(x)]
    return next((candidate for candidate in candidates if _agrees(candidate, copies, expected)), loop)


def _agrees(candidate: Phi, x: Float[Tensor, "copy token width"], expected: tuple[Tensor, Tensor]) -> bool:
    try:
        with warnings.catch_warnings():
            # vmap warns if it would be slower than a loop.
            warnings.simplefilter("error")
            actual = _state_and_gradient(candidate, x)
    except Exception:
        # The loop has just worked on these copies: phi is valid but cannot be batched this way, whatever the error is.
        return False
    pairs = list(zip(expected, actual, strict=True))
    same_shape = all(a.shape == b.shape for a, b in pairs)
    return same_shape and all(torch.allclose(a, b, rtol=1e-3, atol=1e-5) for a, b in pairs)


def _state_and_gradient(phi: Phi, x: Float[Tensor, "copy token width"]) -> tuple[Tensor, Tensor]:
    with torch.enable_grad():
        leaf = x.detach().requires_grad_()
        state = phi(leaf, torch.zeros(len(x), dtype=torch.long, device=x.device))
    if not state.requires_grad:
        return state, torch.zeros_like(leaf)
    (gradient,) = torch.autograd.grad(state.sum(), leaf, allow_unused=True)
    return state.detach(), torch.zeros_like(leaf) if gradient is None else gradient


class Interpreter(nn.Module):
    """Largest noise sigma = scale * sigmoid(ratio) that `Phi` tolerates on each word of one sentence: Guan et al. 2019.

    The smaller sigma, the more information about the word the state holds. Without `regularization` distortion is
    relative to the mean square of Phi(x), and adding a constant to Phi changes the result.
    """

    x: Float[Tensor, "token width"]
    regular: Tensor | None

    def __init__(
        self,
        x: Float[Tensor, "token width"],
        Phi: SentencePhi,
        scale: float = 0.5,
        rate: float = 0.1,
        regularization: ArrayLike | Tensor | None = None,
        words: Sequence[str] | None = None,
        *,
        reduction: Literal["mean", "sum"] = "mean",
    ) -> None:
        super().__init__()
        if words is not None and len(words) != len(x):
            raise InputError(f"{len(words)} words for {len(x)} vectors in x; pass one word per vector, or words=None")
        self.words = None if words is None else list(words)
        self.Phi, self.settings = Phi, SolverSettings(scale=scale, rate=rate, reduction=reduction)
        self.register_buffer("x", x.detach().clone())
        self.register_buffer("regular", None if regularization is None else _as_tensor(regularization, x))
        self.solution: NoiseSolution | None = None
        self.draws = 0
        start = initial_log_sigma(x.detach()[None], _all_tokens(x), scale)[0]
        self.ratio = nn.Parameter(_ratio(start.exp(), scale))

    def forward(self) -> Float[Tensor, ""]:
        """Return the objective at the current sigma on a fresh noise sample; it is differentiable in `ratio`."""
        self.draws += 1
        noise = sample_noise(self.settings.seed, self.draws, (1, *self.x.shape))[0].to(self.x)
        problem = self._problem(loop_over_copies(self.Phi))
        fraction = torch.sigmoid(self.ratio)
        change = self.Phi(self.x + self.settings.scale * fraction * noise).reshape(1, -1) - problem.reference
        entropy = fraction.log().mean() if self.settings.reduction == "mean" else fraction.log().sum()
        return (problem.weight * change.square()).sum() - self.settings.rate * entropy

    def optimize(
        self, iteration: int = 5000, lr: float = 0.01, show_progress: bool = False, *, seed: int = 0
    ) -> NoiseSolution:
        """Solve for sigma in at most `iteration` steps and return the solution with its diagnostics.

        `lr` is ignored: the solver has no learning rate, and the argument only keeps published calls valid.
        `iteration=0` resets sigma to its starting value, which is not converged.
        """
        settings = replace(self.settings, max_steps=iteration, seed=seed)
        with _progress_bar(iteration, show_progress) as progress:
            solution = solve(self._problem(batch_phi(self.Phi, self.x)), settings, progress).row(0)
        with torch.no_grad():
            self.ratio.copy_(_ratio(solution.sigma, settings.scale))
        self.solution = solution
        if iteration and not solution.converged:
            _warn(solution, settings)
        return solution

    def get_sigma(self) -> Float[np.ndarray, " token"]:
        """Return the tolerated noise of each word."""
        sigma: Float[np.ndarray, " token"] = (
            (torch.sigmoid(self.ratio.detach()) * self.settings.scale)[:, 0].cpu().numpy()
        )
        return sigma

    def visualize(self, path: str | Path | None = None) -> "Figure":
        """Plot sigma under the words, dark for small sigma, and save the figure if a path is given."""
        from diffmask.methods.noise.plotting import plot_words, save_figure

        return save_figure(plot_words(self.get_sigma(), self.words), path)

    def _problem(self, phi: Phi) -> DistortionProblem:
        return define_problem(phi, self.x[None], _all_tokens(self.x), regularization=self.regular)


def calculate_regularization(
    samples: Sequence[Float[Tensor, "_ width"]],
    Phi: SentencePhi,
    reduced_axes: Sequence[int] | None = None,
    device: torch.device | str | None = None,
) -> Float[np.ndarray, "..."]:
    """Compute R_k, the standard deviation of the k-th feature of Phi over sentences, after a mean over `reduced_axes`.

    Guan et al. 2019 call it sigma_S. Sentences of several lengths need the token axis among `reduced_axes`.
    """
    with torch.no_grad():
        states = [Phi(sample if device is None else sample.to(device)) for sample in samples]
    if reduced_axes:
        states = [state.mean(dim=list(reduced_axes), keepdim=True) for state in states]
    shapes = sorted({tuple(state.shape) for state in states})
    if len(shapes) != 1:
        problem = f"Phi returned shapes {shapes}" if shapes else "no sample was given"
        raise InputError(f"{problem}; pass at least one sample, and name the axes that differ in reduced_axes, as [0]")
    return np.asarray(torch.stack(states).double().std(dim=0, correction=0).cpu())


def _all_tokens(x: Float[Tensor, "token width"]) -> Bool[Tensor, "1 token"]:
    return torch.ones(1, len(x), dtype=torch.bool, device=x.device)


def _as_tensor(regularization: ArrayLike | Tensor, x: Float[Tensor, "token width"]) -> Tensor:
    return torch.as_tensor(regularization).detach().to(x, copy=True)


def _ratio(sigma: Float[Tensor, " token"], scale: float) -> Float[Tensor, "token 1"]:
    """Return logit(sigma / scale), finite also for a word at the cap."""
    return torch.logit((sigma / scale).clamp(max=1 - 2.0**-24))[:, None]


@contextmanager
def _progress_bar(total: int, show: bool) -> Iterator[ProgressCallback | None]:
    if not show:
        yield None
        return
    from tqdm import tqdm  # type: ignore[import-untyped]  # it ships without types

    with tqdm(total=total) as bar:

        def update(step: int, uncertainty: float) -> None:
            bar.set_postfix(uncertainty=f"{uncertainty:.3f}", refresh=False)
            bar.update()

        yield update


def _warn(solution: NoiseSolution, settings: SolverSettings) -> None:
    warnings.warn(
        f"sigma has not converged in {settings.max_steps} steps: its relative standard error is"
        f" {solution.uncertainty.max():.3f}, above the tolerance {settings.tolerance}; raise `iteration`",
        RuntimeWarning,
        stacklevel=3,
    )
