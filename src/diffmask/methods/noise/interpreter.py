"""From a function of one sentence to one of many: what a hand-written Phi needs before a batch can be solved.

The `Interpreter` of Guan et al. 2019 as its users know it, on a solver that converges and says whether it did.
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
from diffmask.methods.noise.distortion import Phi, Problem, pose
from diffmask.methods.noise.solver import Progress, Settings, Tolerance, solve, standard_normal, starting_log_sigma

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SentencePhi = Callable[[Float[Tensor, "token width"]], Float[Tensor, "..."]]
"""The hidden state of one sentence: any shape, from word vectors [token, width]."""


def one_by_one(phi: SentencePhi) -> Phi:
    """A loop over copies: works with any phi, one call a copy."""

    def looped(x: Float[Tensor, "copy token width"], rows: Int[Tensor, " copy"]) -> Float[Tensor, "copy ..."]:
        states = [phi(sentence) for sentence in x]
        if not isinstance(states[0], Tensor):
            raise InputError(f"Phi must return one tensor, not {type(states[0]).__name__}; pick the state to explain")
        return torch.stack(states)

    return looped


def batched(phi: SentencePhi, x: Float[Tensor, "token width"]) -> Phi:
    """The fastest of phi itself, if it takes a leading axis; `torch.vmap` of it; and a loop, which always works.

    Another way than the loop is taken only if state and gradient are the loop's on three different copies of x.
    """
    loop, copies = one_by_one(phi), torch.stack([x, x / 2, -x])
    wanted = _state_and_gradient(loop, copies)
    ways: list[Phi] = [lambda x, rows: phi(x), lambda x, rows: torch.vmap(phi)(x)]
    return next((way for way in ways if _agrees(way, copies, wanted)), loop)


def _agrees(way: Phi, x: Float[Tensor, "copy token width"], wanted: tuple[Tensor, Tensor]) -> bool:
    try:
        with warnings.catch_warnings():
            # vmap warns where it would be slower than a loop.
            warnings.simplefilter("error")
            found = _state_and_gradient(way, x)
    except Exception:
        # The loop has just worked, so this is not phi's fault on its own terms: it may surface as any error.
        return False
    pairs = list(zip(wanted, found, strict=True))
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
    """How much noise `Phi` tolerates on each word of one sentence: sigma = scale * sigmoid(ratio), one ratio a word.

    Guan et al. 2019. The smaller sigma, the more of the word the state holds. Without `regularization` distortion is
    relative to the mean square of Phi(x), and then adding a constant to Phi changes the answer.
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
        """Check everything that can be checked before the first step."""
        super().__init__()
        if words is not None and len(words) != len(x):
            raise InputError(f"{len(words)} words for {len(x)} vectors in x; pass one word a vector, or words=None")
        self.words = None if words is None else list(words)
        self.Phi, self.settings = Phi, Settings(scale=scale, rate=rate, reduction=reduction)
        self.register_buffer("x", x.detach().clone())
        self.register_buffer("regular", None if regularization is None else _as_tensor(regularization, x))
        self.tolerance: Tolerance | None = None
        self.draws = 0
        start = starting_log_sigma(x.detach()[None], _everywhere(x), scale)[0]
        self.ratio = nn.Parameter(_ratio(start.exp(), scale))

    def forward(self) -> Float[Tensor, ""]:
        """The objective at the present sigma, on one draw of noise: differentiable in `ratio`, and new at each call."""
        self.draws += 1
        noise = standard_normal(self.settings.seed, self.draws, (1, *self.x.shape))[0].to(self.x)
        problem = self._problem(one_by_one(self.Phi))
        part = torch.sigmoid(self.ratio)
        change = self.Phi(self.x + self.settings.scale * part * noise).reshape(1, -1) - problem.clean
        entropy = part.log().mean() if self.settings.reduction == "mean" else part.log().sum()
        return (problem.weight * change.square()).sum() - self.settings.rate * entropy

    def optimize(
        self, iteration: int = 5000, lr: float = 0.01, show_progress: bool = False, *, seed: int = 0
    ) -> Tolerance:
        """Solve for sigma in at most `iteration` steps, usually far fewer, and report how well that went.

        `lr` is accepted so that old calls run, and unused: the solver has no learning rate. `iteration=0` puts sigma at
        its starting value and reports that it has not converged.
        """
        settings = replace(self.settings, most_steps=iteration, seed=seed)
        with _progress_bar(iteration, show_progress) as progress:
            answer = solve(self._problem(batched(self.Phi, self.x)), settings, progress).row(0)
        with torch.no_grad():
            self.ratio.copy_(_ratio(answer.sigma, settings.scale))
        self.tolerance = answer
        if iteration and not answer.converged:
            _warn(answer, settings)
        return answer

    def get_sigma(self) -> Float[np.ndarray, " token"]:
        """Tolerated noise, one number a word."""
        sigma: Float[np.ndarray, " token"] = (
            (torch.sigmoid(self.ratio.detach()) * self.settings.scale)[:, 0].cpu().numpy()
        )
        return sigma

    def visualize(self, path: str | Path | None = None) -> "Figure":
        """Draw sigma under the words, dark where the state tolerates little, and save it if given a path."""
        from diffmask.methods.noise.plotting import draw_words, save

        return save(draw_words(self.get_sigma(), self.words), path)

    def _problem(self, phi: Phi) -> Problem:
        return pose(phi, self.x[None], _everywhere(self.x), regularization=self.regular)


def calculate_regularization(
    samples: Sequence[Float[Tensor, "_ width"]],
    Phi: SentencePhi,
    reduced_axes: Sequence[int] | None = None,
    device: torch.device | str | None = None,
) -> Float[np.ndarray, "..."]:
    """R_k, the standard deviation of Phi's k-th feature over sampled sentences, after averaging over `reduced_axes`.

    Guan et al. 2019 call it sigma_S. Sentences of several lengths need the token axis among `reduced_axes`.
    """
    with torch.no_grad():
        states = [Phi(sample if device is None else sample.to(device)) for sample in samples]
    if reduced_axes:
        states = [state.mean(dim=list(reduced_axes), keepdim=True) for state in states]
    shapes = sorted({tuple(state.shape) for state in states})
    if len(shapes) != 1:
        found = f"Phi gave shapes {shapes}" if shapes else "no sample was given"
        raise InputError(f"{found}; give at least one sample, and name the axes that differ in reduced_axes, as [0]")
    return np.asarray(torch.stack(states).double().std(dim=0, correction=0).cpu())


def _everywhere(x: Float[Tensor, "token width"]) -> Bool[Tensor, "1 token"]:
    return torch.ones(1, len(x), dtype=torch.bool, device=x.device)


def _as_tensor(regularization: ArrayLike | Tensor, x: Float[Tensor, "token width"]) -> Tensor:
    return torch.as_tensor(regularization).detach().to(x, copy=True)


def _ratio(sigma: Float[Tensor, " token"], scale: float) -> Float[Tensor, "token 1"]:
    """logit(sigma / scale), kept finite for a word at the cap."""
    return torch.logit((sigma / scale).clamp(max=1 - 2.0**-24))[:, None]


@contextmanager
def _progress_bar(total: int, wanted: bool) -> Iterator[Progress | None]:
    if not wanted:
        yield None
        return
    from tqdm import tqdm  # type: ignore[import-untyped]  # it ships without types

    with tqdm(total=total) as bar:

        def tell(step: int, uncertainty: float) -> None:
            bar.set_postfix(uncertainty=f"{uncertainty:.3f}", refresh=False)
            bar.update()

        yield tell


def _warn(answer: Tolerance, settings: Settings) -> None:
    warnings.warn(
        f"sigma has not converged in {settings.most_steps} steps: its relative standard error is still"
        f" {answer.uncertainty.max():.3f} where {settings.tolerance} was wanted; allow more with `iteration`",
        RuntimeWarning,
        stacklevel=3,
    )
