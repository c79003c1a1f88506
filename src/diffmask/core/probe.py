"""The shallow network that reads a state and says whether it can be erased, and the statistics it starts from."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import linear

from diffmask.core.explainer import ForwardTrace, iter_traces
from diffmask.core.task import Task
from diffmask.errors import TaskError


@dataclass(frozen=True)
class SiteStatistics:
    """Mean and deviation of a site's states over real tokens."""

    mean: Float[Tensor, " width"]
    deviation: Float[Tensor, " width"]


def site_statistics(task: Task, sites: Iterable[str], rows: int) -> dict[str, SiteStatistics]:
    """Statistics of the named sites over `rows` training rows, a few rows at a time."""
    return statistics_of(iter_traces(task, task.data["train"].spread(rows), 128), sites)


def statistics_of(passes: Iterable[ForwardTrace], sites: Iterable[str]) -> dict[str, SiteStatistics]:
    """Statistics of the named sites over the rows of some passes."""
    moments = {site: _Moments() for site in sites}
    for clean in passes:
        for site, moment in moments.items():
            moment.add(clean.states[site][clean.rows.present])
    return {site: moment.statistics() for site, moment in moments.items()}


class _Moments:
    """Running count, sum and sum of squares, in double precision; given back in the states' own, single at least."""

    def __init__(self) -> None:
        self.count, self.total, self.squares, self.dtype = 0, torch.zeros(()), torch.zeros(()), torch.float32

    def add(self, states: Float[Tensor, "token width"]) -> None:
        self.dtype = torch.promote_types(states.dtype, torch.float32)
        self.count += len(states)
        self.total = self.total + states.double().sum(dim=0)
        self.squares = self.squares + states.double().square().sum(dim=0)

    def statistics(self) -> SiteStatistics:
        mean = self.total / self.count
        variance = (self.squares / self.count - mean.square()).clamp(min=0)
        return SiteStatistics(mean.to(self.dtype), variance.sqrt().clamp(min=1e-6).to(self.dtype))


def mask_state(task: Task, site: str, rows: int = 64) -> Float[Tensor, " width"]:
    """The mean state of the vocabulary's own mask token in texts made of nothing else."""
    if task.mask_token is None:
        raise TaskError(f"{type(task).__name__} has no mask token; use baseline 'mean' or 'zero'")
    return token_state(task, site, task.mask_token, rows)


def token_state(task: Task, site: str, token: int, rows: int = 64) -> Float[Tensor, " width"]:
    """The mean state of one token in texts made of nothing else; at the embedding, simply its vector."""
    batch = task.data["train"][:rows].trim()
    replaced = replace(batch, tokens=batch.tokens.masked_fill(batch.maskable, token))
    _, states = task.trace(replaced)
    return states[site][batch.maskable].mean(dim=0)


Baseline = Literal["auto", "zero", "mean", "mask", "pad"]
"""What stands for 'no token here': zeros, the mean state, or that of the mask or padding token.

`auto` is the mask token where the task has one, and the mean state where it has none.
"""


def baseline_state(task: Task, site: str, baseline: Baseline, rows: int = 2000) -> Float[Tensor, " width"]:
    """The state that replaces an erased one at a site."""
    chosen = ("mean" if task.mask_token is None else "mask") if baseline == "auto" else baseline
    if chosen == "mask":
        return mask_state(task, site)
    if chosen == "pad":
        return token_state(task, site, task.pad_token)
    mean = site_statistics(task, [site], rows)[site].mean
    return torch.zeros_like(mean) if chosen == "zero" else mean


class Probe(nn.Module):
    """logit = reach * tanh(v' tanh(W x + c) + d) + shift, x = the standardised states.

    De Cao et al. 2020, with the bounded output of the original code. `reach` grows during a fit: while it is small no
    gate saturates, open or shut, before it is known what it lets through. `shift` is set after it.
    """

    mean: Tensor
    deviation: Tensor
    reach: Tensor
    shift: Tensor

    def __init__(
        self, parts: list[SiteStatistics], width: int | None, reach: float, start: float, steepness: float
    ) -> None:
        super().__init__()
        self.register_buffer("mean", torch.cat([part.mean for part in parts]))
        self.register_buffer("deviation", torch.cat([part.deviation for part in parts]))
        self.register_buffer("reach", torch.tensor(reach))
        self.register_buffer("shift", torch.tensor(0.0))
        inputs, hidden = len(self.mean), width or max(32, len(parts[-1].mean) // 4)
        self.hidden = nn.Linear(inputs, hidden)
        self.vote = nn.Linear(hidden, 1)
        nn.init.normal_(self.hidden.weight, std=steepness / inputs**0.5)
        nn.init.uniform_(self.hidden.bias, -2 / 3 * steepness, 2 / 3 * steepness)
        nn.init.zeros_(self.vote.weight)
        nn.init.constant_(self.vote.bias, math.atanh(start / reach))
        self.to(self.mean.dtype)

    def forward(self, states: Float[Tensor, "row token width"]) -> Float[Tensor, "row token"]:
        """Logit of each token's gate."""
        # W (x - mean) / deviation + c with the weights standardised: the states are many, the weights few.
        weight = self.hidden.weight / self.deviation
        features = torch.tanh(linear(states, weight, self.hidden.bias - weight @ self.mean))
        return self.reach * torch.tanh(self.vote(features).squeeze(-1)) + self.shift
