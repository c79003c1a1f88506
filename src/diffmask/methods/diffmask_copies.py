"""Masks from what tokens add: a student for every site, which learns from the model's answers to masked copies.

A token is needed as far as it speaks for what the model may be about to answer: "dreadful" is needed for a bad review
and in the way of a good one. How much a token adds to each answer is learned as FastSHAP does (Jethani et al. 2022),
from sets of tokens drawn at random; what the answer may turn out to be, seen from a site, is read off that site's own
states. No gradient passes through a gate, and none through the model.
"""

from typing import Literal, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from diffmask.answer import sharpened
from diffmask.clean import CleanPass, States
from diffmask.leaning import Leaning
from diffmask.mask import MaskExplainer
from diffmask.methods.amortised_answer import need
from diffmask.methods.amortised_student import Student
from diffmask.task import Task

KEEPS_ALL = -1.0
"""The threshold of a site that may erase nothing: no need is below 0."""


class Layered(nn.Module):
    """A student for every site, each of which reads what is known there and nothing above it."""

    def __init__(self, students: dict[str, Student]) -> None:
        super().__init__()
        self.sites = tuple(students)
        self.students = nn.ModuleList(students.values())

    def forward(self, states: States, present: Tensor, site: str) -> Float[Tensor, "row token feature"]:
        """What each token adds to each of the answer's numbers, as far as a site can know."""
        return cast(Student, self.students[self.sites.index(site)])(states, present)


class CopiesExplainer(MaskExplainer):
    """P(token kept) = n / (n + threshold), n how much it is needed; for inputs, the least of the sites so far."""

    thresholds: Tensor

    def __init__(
        self,
        task: Task,
        mask: Literal["inputs", "states"],
        layered: Layered,
        leanings: dict[str, Leaning],
        baselines: dict[str, nn.Parameter],
    ) -> None:
        super().__init__(task, mask, layered.sites, baselines)
        self.layered = layered
        self.leanings = nn.ModuleList(leanings.values())
        self.register_buffer(
            "thresholds", torch.full((len(layered.sites),), KEEPS_ALL).to(leanings[layered.sites[0]].bias)
        )

    def needs(self, clean: CleanPass, site: str) -> Float[Tensor, "row token"]:
        """By how many nats of log-odds each token speaks for what may be answered, as far as this site can know."""
        added = self.layered(clean.states, clean.rows.present, site)
        return need(clean.answer, added, self._belief(clean, site))

    def opened(self, clean: CleanPass, sites: tuple[str, ...]) -> Float[Tensor, "row site token"]:
        """What was dropped as an input is dropped for good: a later site can only lower the probability."""
        last = max(map(self.sites.index, sites))
        asked = sites if self.mask == "states" else self.sites[: last + 1]
        votes = torch.stack([self._vote(clean, site) for site in asked], dim=1)
        if self.mask == "states":
            return votes
        return votes.cummin(dim=1).values[:, [self.sites.index(site) for site in sites]]

    def _vote(self, clean: CleanPass, site: str) -> Float[Tensor, "row token"]:
        threshold = self.thresholds[self.sites.index(site)]
        needed = self.needs(clean, site)
        return torch.where(threshold < 0, 1.0, needed / (needed + threshold.clamp(min=1e-9)))

    def _belief(self, clean: CleanPass, site: str) -> Float[Tensor, "row number"]:
        """What the model may be about to answer; at its last site, what it does answer, and more surely."""
        if site == self.task.sites[-1]:
            return sharpened(clean.answer)
        return cast(Leaning, self.leanings[self.sites.index(site)])(clean.states[site], clean.rows.present)
