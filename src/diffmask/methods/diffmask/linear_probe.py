"""Which way a row leans at a site: how much of the model's answer its states already tell, read off linearly."""

from collections.abc import Iterable

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from diffmask.core.distributions import class_probabilities
from diffmask.core.explainer import ForwardTrace, pool_states


class LinearProbe(nn.Module):
    """The answer, bounded, as a linear function of a site's states at the first and last token and on average.

    Whether a word is needed depends on what is answered: "dreadful" is needed for a bad review and in the way of a good
    one. This tells what may be answered, as far as the site itself can know.
    """

    weight: Tensor
    bias: Tensor

    def __init__(self, inputs: int, numbers: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.register_buffer("weight", torch.zeros(numbers, inputs, dtype=dtype))
        self.register_buffer("bias", torch.zeros(numbers, dtype=dtype))

    def forward(
        self, state: Float[Tensor, "row token width"], present: Bool[Tensor, "row token"]
    ) -> Float[Tensor, "row number"]:
        """Numbers within [-1, 1]; for classes, about their probabilities."""
        return torch.nn.functional.linear(_seen(state, present), self.weight, self.bias).clamp(-1.0, 1.0)


@torch.no_grad()
def fit_linear_probes(passes: list[ForwardTrace], sites: Iterable[str]) -> dict[str, LinearProbe]:
    """A leaning for every site, by ridge regression over the rows of some passes."""
    wanted = torch.cat([class_probabilities(one.answer) for one in passes])
    wanted = wanted / wanted.abs().amax(dim=0).clamp(min=1.0)
    return {site: _regressed(_all_seen(passes, site), wanted) for site in sites}


def _seen(state: Tensor, present: Tensor) -> Float[Tensor, "row input"]:
    return torch.cat(pool_states(state, present), dim=-1)


def _all_seen(passes: list[ForwardTrace], site: str) -> Float[Tensor, "row input"]:
    return torch.cat([_seen(one.states[site], one.rows.present) for one in passes])


def _regressed(seen: Float[Tensor, "row input"], wanted: Float[Tensor, "row number"]) -> LinearProbe:
    """Ridge regression, its penalty the one that predicts left-out rows best."""
    middle, deviation = seen.mean(dim=0), seen.std(dim=0, correction=0).clamp(min=1e-6)
    centre = wanted.mean(dim=0)
    inputs, outputs = ((seen - middle) / deviation).double(), (wanted - centre).double()
    scales, directions = torch.linalg.eigh(inputs @ inputs.T)
    turned = directions.T @ outputs
    penalties = scales.mean().clamp(min=1e-9) * torch.logspace(-3, 2, 16, dtype=torch.double)
    best = min(penalties.tolist(), key=lambda penalty: _left_out_error(scales, directions, turned, penalty))
    weights = (inputs.T @ (directions @ (turned / (scales[:, None] + best)))).T.to(seen.dtype) / deviation
    found = LinearProbe(seen.shape[1], wanted.shape[1], seen.dtype)
    found.weight.copy_(weights)
    found.bias.copy_(centre - weights @ middle)
    return found


def _left_out_error(scales: Tensor, directions: Tensor, turned: Tensor, penalty: float) -> float:
    """Mean square error of predicting each row from all others: residual / (1 - leverage), in closed form."""
    shrunk = penalty / (scales + penalty)
    residual = directions @ (shrunk[:, None] * turned)
    free = (directions.square() @ shrunk).clamp(min=1e-9)
    return (residual / free[:, None]).square().mean().item()
