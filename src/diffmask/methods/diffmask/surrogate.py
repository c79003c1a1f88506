"""Masks from what tokens add: a student for every site, which learns from the model's answers to masked copies.

What the answer loses with each token is learned as FastSHAP does (Jethani et al. 2022), from sets of tokens drawn at
random; what the answer may turn out to be, seen from a site, is read off that site's own states. From both follows in
which order tokens can go, and how far the answer will have moved by then: "dreadful" is needed for a bad review and in
the way of a good one. No gradient passes through a gate, and none through the model.
"""

import math
from typing import Literal, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import softsign

from diffmask.core.distributions import (
    FlatLogits,
    flat_logits,
    log_odds_gradient,
    predicted_outcome,
    probabilities_to_logits,
)
from diffmask.core.explainer import ForwardTrace, States
from diffmask.core.task import Task
from diffmask.methods.amortised.network import AttributionNetwork, project_all
from diffmask.methods.diffmask.base import MaskExplainer, binarize
from diffmask.methods.diffmask.elimination import elimination
from diffmask.methods.diffmask.linear_probe import LinearProbe

KEEPS_ALL = -1.0
"""The threshold of a site that may erase nothing: no need is below 0."""
UPPER = 3
"""One site in so many, the last ones, says how much the decision loses with an input: their mean errs less than one."""


class LayerwiseAttributor(nn.Module):
    """A student for every site, each of which reads what is known there and nothing above it."""

    def __init__(self, students: dict[str, AttributionNetwork]) -> None:
        super().__init__()
        self.sites = tuple(students)
        self.students = nn.ModuleList(students.values())
        self.reads = tuple(dict.fromkeys(name for student in students.values() for name in student.sites))

    def student(self, site: str) -> AttributionNetwork:
        """The one of a site."""
        return cast(AttributionNetwork, self.students[self.sites.index(site)])

    def forward(
        self, states: States, present: Tensor, sites: tuple[str, ...]
    ) -> Float[Tensor, "site row token feature"]:
        """What each of the answer's numbers loses with each token, as far as each of these sites can know."""
        asked = [self.student(site) for site in sites]
        seen = {
            name: iter(
                project_all(states[name], [student.projection(name) for student in asked if name in student.sites])
            )
            for name in self.reads
        }
        own = [[next(seen[name]) for name in student.sites] for student in asked]
        return torch.stack(
            [student.from_projections(view, states, present) for student, view in zip(asked, own, strict=True)]
        )


class SurrogateMaskExplainer(MaskExplainer):
    """P(token kept) = n / (n + threshold), n how much it is needed; for inputs, the least of the sites so far."""

    thresholds: Tensor

    def __init__(
        self,
        task: Task,
        mask: Literal["inputs", "states"],
        layered: LayerwiseAttributor,
        leanings: dict[str, LinearProbe],
        baselines: dict[str, nn.Parameter],
    ) -> None:
        super().__init__(task, mask, layered.sites, baselines)
        self.layered = layered
        self.leanings = nn.ModuleList(leanings.values())
        self.register_buffer(
            "thresholds", torch.full((len(layered.sites),), KEEPS_ALL).to(leanings[layered.sites[0]].bias)
        )

    def read(self, clean: ForwardTrace) -> tuple[Float[Tensor, "row site token"], Float[Tensor, "row token"]]:
        """P(token kept) seen from every site, and scores.

        An input that the last site keeps scores over one half, another under it; the more the decision loses with it,
        the higher. By the order in which tokens go, near ties would decide: of two words that say the same, either may
        go first.
        """
        if self.mask == "states":
            return super().read(clean)
        lost = self._lost(clean, self.sites)
        opened = self._votes(clean, self.sites, lost).cummin(dim=1).values
        surest = lost[-math.ceil(len(self.sites) / UPPER) :].mean(dim=0)
        nothing = flat_logits(clean.answer) - (surest * clean.rows.maskable[..., None]).sum(dim=1)
        lead = (surest * log_odds_gradient(clean.answer, nothing, predicted_outcome(clean.answer))[:, None]).sum(dim=-1)
        return opened, (binarize(opened[:, -1]) + 0.5 + 0.5 * softsign(lead)) / 2

    def opened(self, clean: ForwardTrace, sites: tuple[str, ...]) -> Float[Tensor, "row site token"]:
        """What was dropped as an input is dropped for good: a later site can only lower the probability."""
        last = max(map(self.sites.index, sites))
        asked = sites if self.mask == "states" else self.sites[: last + 1]
        votes = self._votes(clean, asked, self._lost(clean, asked))
        if self.mask == "states":
            return votes
        return votes.cummin(dim=1).values[:, [self.sites.index(site) for site in sites]]

    def needs(self, clean: ForwardTrace, site: str) -> Float[Tensor, "row token"]:
        """How far the answer will have moved, in nats, when each token goes, as far as this site can know."""
        return self._needs(clean, (site,), self._lost(clean, (site,)))[:, 0]

    def _lost(self, clean: ForwardTrace, sites: tuple[str, ...]) -> Float[Tensor, "site row token feature"]:
        return self.layered(clean.states, clean.rows.present, sites)

    def _needs(
        self, clean: ForwardTrace, sites: tuple[str, ...], lost: Float[Tensor, "site row token feature"]
    ) -> Float[Tensor, "row site token"]:
        start = torch.cat([self._expected_numbers(clean, site) for site in sites])
        needed = elimination(clean.answer, start, lost.flatten(0, 1), clean.rows.maskable.repeat(len(sites), 1))
        return needed.unflatten(0, lost.shape[:2]).transpose(0, 1)

    def _votes(
        self, clean: ForwardTrace, sites: tuple[str, ...], lost: Float[Tensor, "site row token feature"]
    ) -> Float[Tensor, "row site token"]:
        threshold = self.thresholds[[self.sites.index(site) for site in sites]][None, :, None]
        needed = self._needs(clean, sites, lost)
        held = needed / (needed + threshold.clamp(min=1e-9))
        return torch.where((threshold < 0) | needed.isinf(), 1.0, held)

    def _expected_numbers(self, clean: ForwardTrace, site: str) -> FlatLogits:
        """What the model may be about to answer; where its last states are read, what it does answer."""
        if self.task.sites[-1] in self.layered.student(site).sites:
            return flat_logits(clean.answer)
        leaning = cast(LinearProbe, self.leanings[self.sites.index(site)])
        return probabilities_to_logits(clean.answer, leaning(clean.states[site], clean.rows.present))
