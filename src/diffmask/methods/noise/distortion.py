"""Distortion of a hidden state by noise on the word vectors: the measured term of Guan et al. 2019, eq. 7."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from diffmask.errors import InputError, NumericsError

Phi = Callable[[Float[Tensor, "copy token width"], Int[Tensor, " copy"]], Float[Tensor, "copy ..."]]
"""The hidden state to explain, s = phi(x, rows), as a function of the word vectors.

`rows[k]` is the row that copy k is a noisy version of, so that a closure can index its own inputs, for example
`attention_mask[rows]`. The state of a copy must depend on that copy alone. Copies are ordered by sample: all rows with
the first noise sample, then all rows with the second.
"""


@dataclass(frozen=True)
class DistortionProblem:
    """A hidden state phi, its inputs, and the weights of its features. Made by `define_problem`."""

    phi: Phi
    x: Float[Tensor, "row token width"]
    mask: Bool[Tensor, "row token"]
    """Tokens that receive noise."""
    reference: Float[Tensor, "row feature"]
    """phi(x), without noise."""
    weight: Float[Tensor, "row feature"]
    """w_k / N of `DistortionEstimate.distortion`; 0 for an excluded feature."""


@dataclass(frozen=True)
class DistortionEstimate:
    """Averages over noise eps ~ N(0, 1) at one sigma, with d = phi(x + sigma eps) - phi(x)."""

    distortion: Float[Tensor, " row"]
    """1/N sum_k w_k d_k^2."""
    slope: Float[Tensor, "row token"]
    """d distortion / d log sigma_i."""


def define_problem(
    phi: Phi,
    x: Float[Tensor, "row token width"],
    mask: Bool[Tensor, "row token"],
    *,
    regularization: Float[Tensor, "..."] | None = None,
    feature_mask: Bool[Tensor, "..."] | None = None,
) -> DistortionProblem:
    """Compute the weights w_k = 1 / R_k^2, or 1 / mean_k phi(x)_k^2 without R, over the N features of phi.

    R (`regularization`) is a standard deviation over a corpus. R and `feature_mask` broadcast to the shape of phi(x). A
    feature with R_k = 0 never varies and is excluded. Exclude padding with `feature_mask`, otherwise N grows with it.
    Without R, adding a constant to phi changes the result, because a second moment is not a variance.
    """
    x = x.detach()
    reference = _reference_state(phi, x)
    included = _broadcast(feature_mask if feature_mask is not None else torch.tensor(True), reference, "feature_mask")
    if regularization is None:
        inverse = _second_moment_weight(reference, included)
    else:
        inverse = _deviation_weight(regularization, reference)
    included = included & (inverse > 0)
    _require(_any_feature(included), "every feature of phi is excluded", "a regularization that is not zero everywhere")
    weight = (inverse * included).flatten(1) / included.flatten(1).sum(1, keepdim=True)
    return DistortionProblem(phi=phi, x=x, mask=mask, reference=reference.flatten(1), weight=weight)


def estimate_distortion(
    problem: DistortionProblem,
    log_sigma: Float[Tensor, "active token"],
    rows: Int[Tensor, " active"],
    noise: Float[Tensor, "sample token width"],
    internal_batch_size: int = 256,
) -> DistortionEstimate:
    """Estimate the distortion of the given rows and its slope, with at most `internal_batch_size` copies per call."""
    groups = zip(torch.split(log_sigma, internal_batch_size), torch.split(rows, internal_batch_size), strict=True)
    estimates = [_estimate_rows(problem, values, group, noise, internal_batch_size) for values, group in groups]
    estimate = _concatenate(estimates)
    _check_finite(estimate, log_sigma, rows)
    return estimate


def _concatenate(estimates: Sequence[DistortionEstimate]) -> DistortionEstimate:
    if len(estimates) == 1:
        return estimates[0]
    return DistortionEstimate(
        torch.cat([estimate.distortion for estimate in estimates]),
        torch.cat([estimate.slope for estimate in estimates]),
    )


def _estimate_rows(
    problem: DistortionProblem,
    log_sigma: Float[Tensor, "active token"],
    rows: Int[Tensor, " active"],
    noise: Float[Tensor, "sample token width"],
    internal_batch_size: int,
) -> DistortionEstimate:
    distortion, slope = torch.zeros_like(log_sigma[:, 0]), torch.zeros_like(log_sigma)
    for chunk in torch.split(noise, max(1, internal_batch_size // len(rows))):
        total = _sum_over_samples(problem, log_sigma, rows, chunk)
        distortion, slope = distortion + total.distortion, slope + total.slope
    return DistortionEstimate(distortion / len(noise), slope / len(noise))


def _sum_over_samples(
    problem: DistortionProblem,
    log_sigma: Float[Tensor, "active token"],
    rows: Int[Tensor, " active"],
    noise: Float[Tensor, "sample token width"],
) -> DistortionEstimate:
    sigma = log_sigma.exp() * problem.mask[rows]
    noisy = problem.x[rows] + sigma[..., None] * noise[:, None]
    leaf = noisy.flatten(0, 1).requires_grad_()
    with torch.enable_grad():
        state = problem.phi(leaf, rows.expand(len(noise), -1).flatten())
    change = state.detach().reshape(len(noise), len(rows), -1) - problem.reference[rows]
    weighted = problem.weight[rows] * change
    # slope_i = sigma_i eps_i . J_i' (2 w d): one vector-Jacobian product for all features and rows.
    gradient = _vector_jacobian_product(state, leaf, 2 * weighted).view_as(noisy)
    return DistortionEstimate((weighted * change).sum((0, 2)), sigma * (gradient * noise[:, None]).sum((0, 3)))


def _reference_state(phi: Phi, x: Float[Tensor, "row token width"]) -> Float[Tensor, "row ..."]:
    rows = torch.arange(len(x), device=x.device)
    with torch.no_grad():
        state, repeated = phi(x, rows), phi(x, rows)
    if state.dim() < 1 or len(state) != len(x):
        raise InputError(f"phi returned shape {tuple(state.shape)} for {len(x)} rows; its first axis must be the row")
    state, repeated = (state[:, None], repeated[:, None]) if state.dim() == 1 else (state, repeated)
    bad = ~state.flatten(1).isfinite().all(1)
    if bad.any():
        raise NumericsError(f"phi(x) is NaN or infinite without any noise, in rows {_indices(bad)}")
    if not torch.allclose(state, repeated, rtol=1e-3, atol=1e-5):
        raise InputError("phi(x) differs between two calls on the same x; turn dropout off with model.eval()")
    return state


def _second_moment_weight(
    reference: Float[Tensor, "row *feature"], included: Bool[Tensor, "row *feature"]
) -> Float[Tensor, "row *feature"]:
    moment = (reference.square() * included).flatten(1).sum(1) / included.flatten(1).sum(1).clamp(min=1)
    _require(~_any_feature(included) | (moment != 0), "phi(x) is zero everywhere", "an explicit regularization")
    return moment.reciprocal().view(-1, *[1] * (reference.dim() - 1)).expand(reference.shape)


def _deviation_weight(
    regularization: Float[Tensor, "..."], reference: Float[Tensor, "row *feature"]
) -> Float[Tensor, "row *feature"]:
    if not (regularization.isfinite() & (regularization >= 0)).all():
        raise InputError("regularization must be a finite standard deviation, 0 or more, for every feature of phi")
    inverse = torch.where(regularization > 0, regularization.square().reciprocal(), 0)
    return _broadcast(inverse.to(reference), reference, "regularization")


def _broadcast(
    values: Shaped[Tensor, "..."], reference: Float[Tensor, "row *feature"], name: str
) -> Shaped[Tensor, "..."]:
    try:
        return values.to(reference.device).broadcast_to(reference.shape)
    except RuntimeError as error:
        shape, expected = tuple(values.shape), tuple(reference.shape)
        raise InputError(f"{name} has shape {shape}, which does not broadcast to phi's shape {expected}") from error


def _any_feature(included: Bool[Tensor, "row *feature"]) -> Bool[Tensor, " row"]:
    return included.flatten(1).any(1)


def _require(valid: Bool[Tensor, " row"], problem: str, remedy: str) -> None:
    if not valid.all():
        raise InputError(f"{problem} in rows {_indices(~valid)}, so noise has no reference size; pass {remedy}")


def _vector_jacobian_product(
    state: Float[Tensor, "copy ..."],
    leaf: Float[Tensor, "copy token width"],
    vector: Float[Tensor, "sample active feature"],
) -> Float[Tensor, "copy token width"]:
    if not state.requires_grad:
        raise InputError("phi(x) has no gradient to x; use torch operations and no detach() or no_grad()")
    (gradient,) = torch.autograd.grad(state, leaf, vector.view_as(state), allow_unused=True)
    return gradient if gradient is not None else torch.zeros_like(leaf)


def _check_finite(
    estimate: DistortionEstimate, log_sigma: Float[Tensor, "active token"], rows: Int[Tensor, " active"]
) -> None:
    bad = ~(estimate.distortion + estimate.slope.sum(1)).isfinite()
    if bad.any():
        largest = math.exp(log_sigma[bad].max().item())
        raise NumericsError(
            f"phi or its gradient is NaN or infinite on noisy copies of rows {rows[bad].tolist()}, although phi(x) is"
            f" finite; the largest sigma tried was {largest:.3g}. Lower `scale` if phi is undefined so far from x"
        )


def _indices(bad: Bool[Tensor, " row"]) -> Sequence[int]:
    return [int(row) for row in bad.nonzero().flatten()]
