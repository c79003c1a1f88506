"""How far noise on the words moves a hidden state: the measured half of Guan et al.'s objective."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from diffmask.errors import InputError, NumericsError

Phi = Callable[[Float[Tensor, "copy token width"], Int[Tensor, " copy"]], Float[Tensor, "copy ..."]]
"""The hidden state to explain, s = phi(x, rows), as a function of the word vectors.

`rows[k]` is the row of the problem that copy k is a noisy version of, so that a closure finds what belongs to it, such
as `attention_mask[rows]`. A copy's answer must depend on that copy alone. Copies come sample by sample: all rows
with the first noise, then all rows with the second.
"""


@dataclass(frozen=True)
class Problem:
    """One question per row: how much noise does phi tolerate on each word? Made by `pose`."""

    phi: Phi
    x: Float[Tensor, "row token width"]
    mask: Bool[Tensor, "row token"]
    clean: Float[Tensor, "row feature"]
    weight: Float[Tensor, "row feature"]
    """w_k / N of `Measurement.distortion`; zero for a feature that does not count."""


@dataclass(frozen=True)
class Measurement:
    """Averages over noise eps ~ N(0, 1) at one sigma, with d = phi(x + sigma eps) - phi(x)."""

    distortion: Float[Tensor, " row"]
    """1/N sum_k w_k d_k^2."""
    slope: Float[Tensor, "row token"]
    """d distortion / d log sigma_i."""


def pose(
    phi: Phi,
    x: Float[Tensor, "row token width"],
    mask: Bool[Tensor, "row token"],
    *,
    regularization: Float[Tensor, "..."] | None = None,
    counted: Bool[Tensor, "..."] | None = None,
) -> Problem:
    """Weights w_k = 1 / R_k^2, or 1 / mean_k phi(x)_k^2 without R, over the N features that count.

    R is a standard deviation over a corpus; R and `counted` broadcast to phi's answer. A feature with R_k = 0 never
    varies: it is left out, as if phi did not return it. Name padding with `counted`, or N grows with it.
    Without R the answer changes when a constant is added to phi: the second moment is not a variance.
    """
    x = x.detach()
    clean = _clean_state(phi, x)
    counts = _broadcast(counted if counted is not None else torch.tensor(True), clean, "counted")
    inverse = _self_weight(clean, counts) if regularization is None else _weight(regularization, clean)
    counts = counts & (inverse > 0)
    _refuse(~_any_feature(counts), "no feature of phi counts", "a regularization that is not zero everywhere")
    weight = (inverse * counts).flatten(1) / counts.flatten(1).sum(1, keepdim=True)
    return Problem(phi=phi, x=x, mask=mask, clean=clean.flatten(1), weight=weight)


def measure(
    problem: Problem,
    log_sigma: Float[Tensor, "active token"],
    rows: Int[Tensor, " active"],
    noise: Float[Tensor, "sample token width"],
    copies_per_call: int = 256,
) -> Measurement:
    """The distortion of some rows and its slope, in calls of phi on at most `copies_per_call` noisy sentences."""
    groups = zip(torch.split(log_sigma, copies_per_call), torch.split(rows, copies_per_call), strict=True)
    measured = _join([_measure_rows(problem, values, group, noise, copies_per_call) for values, group in groups])
    _check_finite(measured, log_sigma, rows)
    return measured


def _join(parts: Sequence[Measurement]) -> Measurement:
    if len(parts) == 1:
        return parts[0]
    return Measurement(torch.cat([part.distortion for part in parts]), torch.cat([part.slope for part in parts]))


def _measure_rows(
    problem: Problem,
    log_sigma: Float[Tensor, "active token"],
    rows: Int[Tensor, " active"],
    noise: Float[Tensor, "sample token width"],
    copies_per_call: int,
) -> Measurement:
    distortion, slope = torch.zeros_like(log_sigma[:, 0]), torch.zeros_like(log_sigma)
    for chunk in torch.split(noise, max(1, copies_per_call // len(rows))):
        part = _sum_over_samples(problem, log_sigma, rows, chunk)
        distortion, slope = distortion + part.distortion, slope + part.slope
    return Measurement(distortion / len(noise), slope / len(noise))


def _sum_over_samples(
    problem: Problem,
    log_sigma: Float[Tensor, "active token"],
    rows: Int[Tensor, " active"],
    noise: Float[Tensor, "sample token width"],
) -> Measurement:
    sigma = log_sigma.exp() * problem.mask[rows]
    noisy = problem.x[rows] + sigma[..., None] * noise[:, None]
    leaf = noisy.flatten(0, 1).requires_grad_()
    with torch.enable_grad():
        state = problem.phi(leaf, rows.expand(len(noise), -1).flatten())
    change = state.detach().reshape(len(noise), len(rows), -1) - problem.clean[rows]
    pull = problem.weight[rows] * change
    # slope_i = sigma_i eps_i . J_i' (2 w d): one product with the Jacobian, whatever the number of features and rows.
    gradient = _pull_back(state, leaf, 2 * pull).view_as(noisy)
    return Measurement((pull * change).sum((0, 2)), sigma * (gradient * noise[:, None]).sum((0, 3)))


def _clean_state(phi: Phi, x: Float[Tensor, "row token width"]) -> Float[Tensor, "row ..."]:
    rows = torch.arange(len(x), device=x.device)
    with torch.no_grad():
        clean, again = phi(x, rows), phi(x, rows)
    if clean.dim() < 1 or len(clean) != len(x):
        raise InputError(f"phi gave shape {tuple(clean.shape)} for {len(x)} rows; its first axis must be the row")
    clean, again = (clean[:, None], again[:, None]) if clean.dim() == 1 else (clean, again)
    bad = ~clean.flatten(1).isfinite().all(1)
    if bad.any():
        raise NumericsError(f"phi(x) is NaN or infinite without any noise, in rows {_indices(bad)}")
    if not torch.allclose(clean, again, rtol=1e-3, atol=1e-5):
        raise InputError("phi(x) differs between two calls on the same x; turn dropout off with model.eval()")
    return clean


def _self_weight(
    clean: Float[Tensor, "row *feature"], counts: Bool[Tensor, "row *feature"]
) -> Float[Tensor, "row *feature"]:
    moment = (clean.square() * counts).flatten(1).sum(1) / counts.flatten(1).sum(1).clamp(min=1)
    _refuse(_any_feature(counts) & (moment == 0), "phi(x) is zero everywhere", "an explicit regularization")
    return moment.reciprocal().view(-1, *[1] * (clean.dim() - 1)).expand(clean.shape)


def _weight(
    regularization: Float[Tensor, "..."], clean: Float[Tensor, "row *feature"]
) -> Float[Tensor, "row *feature"]:
    if not (regularization.isfinite() & (regularization >= 0)).all():
        raise InputError("regularization must be a finite standard deviation, 0 or more, for every feature of phi")
    inverse = torch.where(regularization > 0, regularization.square().reciprocal(), 0)
    return _broadcast(inverse.to(clean), clean, "regularization")


def _broadcast(values: Shaped[Tensor, "..."], clean: Float[Tensor, "row *feature"], name: str) -> Shaped[Tensor, "..."]:
    try:
        return values.to(clean.device).broadcast_to(clean.shape)
    except RuntimeError as error:
        given, wanted = tuple(values.shape), tuple(clean.shape)
        raise InputError(f"{name} has shape {given}, which does not broadcast to phi's answer {wanted}") from error


def _any_feature(counts: Bool[Tensor, "row *feature"]) -> Bool[Tensor, " row"]:
    return counts.flatten(1).any(1)


def _refuse(bad: Bool[Tensor, " row"], what: str, remedy: str) -> None:
    if bad.any():
        raise InputError(f"{what} in rows {_indices(bad)}, so there is nothing to compare noise with; pass {remedy}")


def _pull_back(
    state: Float[Tensor, "copy ..."],
    leaf: Float[Tensor, "copy token width"],
    pull: Float[Tensor, "sample active feature"],
) -> Float[Tensor, "copy token width"]:
    if not state.requires_grad:
        raise InputError("phi's answer has no gradient to its input; use torch operations and no detach() or no_grad()")
    (gradient,) = torch.autograd.grad(state, leaf, pull.view_as(state), allow_unused=True)
    return gradient if gradient is not None else torch.zeros_like(leaf)


def _check_finite(
    measured: Measurement, log_sigma: Float[Tensor, "active token"], rows: Int[Tensor, " active"]
) -> None:
    bad = ~(measured.distortion + measured.slope.sum(1)).isfinite()
    if bad.any():
        largest = math.exp(log_sigma[bad].max().item())
        raise NumericsError(
            f"phi or its gradient is NaN or infinite on noisy copies of rows {rows[bad].tolist()}, though phi(x) is"
            f" finite; the largest sigma tried was {largest:.3g}: lower `scale` if phi is not defined so far from x"
        )


def _indices(bad: Bool[Tensor, " row"]) -> Sequence[int]:
    return [int(row) for row in bad.nonzero().flatten()]
