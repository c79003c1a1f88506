"""Learning without a teacher: scores must add up to the model's answer on masked copies. Jethani et al. 2022.

Learning from a teacher: the scores of slower methods, computed once, kept, and imitated.
"""

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.distributions import Distribution
from torch.nn.functional import smooth_l1_loss

from diffmask.core.batch import Batch
from diffmask.core.config import digest_of
from diffmask.core.distributions import divergence, flat_logits, from_logits, log_odds_gradient, predicted_outcome
from diffmask.core.explainer import Explainer, ForwardTrace, Method
from diffmask.core.store import Artefact, Store
from diffmask.core.task import Task
from diffmask.methods.amortised.network import AttributionNetwork, Reading, keep
from diffmask.methods.amortised.training import Objective
from diffmask.methods.leave_one_out import fill


@dataclass(frozen=True)
class MaskedBatch:
    """A few texts of like length, and the answer's numbers for each masked copy of them."""

    reading: Reading
    answer: Distribution
    """To the whole text."""
    kept: Bool[Tensor, "row copy token"]
    told: Float[Tensor, "row copy feature"]
    """f(kept)."""
    empty: Float[Tensor, "row feature"]
    """f(nothing kept)."""


@dataclass(frozen=True)
class AdditiveObjective(Objective[AttributionNetwork, MaskedBatch]):
    """f(kept) = f(nothing) + sum of the kept tokens' scores; a token not kept has the baseline as embedding."""

    task: Task
    student: AttributionNetwork
    """Its own highest scores say where to look, as it learns."""
    baseline: Float[Tensor, " width"]
    pairs: int
    """Masks drawn a text; each is asked with its complement."""
    pointed: int
    """How many of them keep tokens that the student scores high."""
    source: torch.Generator

    @torch.no_grad()
    def ask(self, batch: Batch) -> MaskedBatch:
        """One clean pass, and a pass over every copy: nothing kept, then the masks."""
        answer, states = self.task.trace(batch)
        kept = draw_kept(batch.maskable, self.pairs - self.pointed, self.source)
        if self.pointed:
            towards = log_odds_gradient(answer, flat_logits(answer), predicted_outcome(answer))
            scores = (self.student(states, batch.present) * towards[:, None]).sum(dim=-1)
            kept = torch.cat([kept, draw_pointed(scores, batch.maskable, self.pointed, self.source)], dim=1)
        asked = torch.cat([torch.zeros_like(kept[:, :1]), kept], dim=1)
        clean = ForwardTrace(batch, answer, states)
        told = told_of_copies(self.task, clean, self.task.sites[0], self.baseline, asked)
        return MaskedBatch(keep(states, self.student.sites, batch.present), answer, kept, told[:, 1:], told[:, 0])

    def loss(self, student: AttributionNetwork, lesson: MaskedBatch) -> Float[Tensor, "row copy"]:
        """KL(the model's answer to a masked copy || the answer that the scores add up to)."""
        return misfit(lesson.answer, lesson.told, sums(student, lesson))


def told_of_copies(
    task: Task,
    clean: ForwardTrace,
    place: str,
    baseline: Float[Tensor, " width"],
    kept: Bool[Tensor, "row copy token"],
) -> Float[Tensor, "row copy feature"]:
    """The answer's numbers for every masked copy, in one pass over all."""
    copies = kept.shape[1]
    erased = (clean.rows.maskable[:, None] & ~kept).flatten(0, 1)
    state = {place: clean.states[place].repeat_interleave(copies, dim=0)}
    answer = task.resume(clean.rows.repeat(copies), state, {place: fill(erased, baseline)})
    return flat_logits(answer).unflatten(0, (len(clean.rows), copies))


def misfit(
    answer: Distribution, told: Float[Tensor, "row copy feature"], found: Float[Tensor, "row copy feature"]
) -> Float[Tensor, "row copy"]:
    """KL(the answer told || the answer found), both as numbers."""
    caused = divergence(from_logits(answer, told.flatten(0, 1)), from_logits(answer, found.flatten(0, 1)))
    return caused.unflatten(0, told.shape[:2])


def sums(student: AttributionNetwork, lesson: MaskedBatch) -> Float[Tensor, "row copy feature"]:
    """f(nothing) + the sum of the kept tokens' scores."""
    scores = student(*lesson.reading.full())
    return lesson.empty[:, None] + lesson.kept.to(scores) @ scores


def draw_kept(
    maskable: Bool[Tensor, "row token"], pairs: int, source: torch.Generator
) -> Bool[Tensor, "row copy token"]:
    """Each token kept with probability u, u ~ U(0, 1) a copy; every mask is followed by its complement.

    The keep-rates of a row's masks are stratified, so that small and large sets are asked of every text.
    """
    rows, tokens = maskable.shape
    rate = (torch.arange(pairs) + torch.rand(rows, pairs, generator=source)) / (2 * pairs)
    first = torch.rand(rows, pairs, tokens, generator=source) < rate[..., None]
    both = torch.stack([first, ~first], dim=2).flatten(1, 2).to(maskable.device)
    return both & maskable[:, None]


def draw_pointed(
    scores: Float[Tensor, "row token"], maskable: Bool[Tensor, "row token"], pairs: int, source: torch.Generator
) -> Bool[Tensor, "row copy token"]:
    """The tokens that score highest, up to half of a row, and then all others: the sets that users will look at.

    The order is drawn: Gumbel noise on twice the scores in units of their root mean square.
    """
    rows, tokens = maskable.shape
    count = maskable.sum(dim=1, keepdim=True)
    size = ((scores * maskable).square().sum(dim=1, keepdim=True) / count.clamp(min=1)).sqrt().clamp(min=1e-9)
    noise = -(-torch.rand(rows, pairs, tokens, generator=source).clamp(1e-9, 1 - 1e-6).log()).log()
    drawn = (2 * scores / size)[:, None] + noise.to(scores)
    place = drawn.masked_fill(~maskable[:, None], -torch.inf).argsort(dim=2, descending=True).argsort(dim=2)
    rate = (torch.arange(pairs) + torch.rand(rows, pairs, generator=source)) / (2 * pairs)
    top = (place < (rate.to(scores) * count).ceil()[..., None]) & maskable[:, None]
    return torch.stack([top, maskable[:, None] & ~top], dim=2).flatten(1, 2)


@dataclass(frozen=True)
class DistillationBatch:
    """A few texts of like length, and the teachers' scores of them."""

    reading: Reading
    towards: Float[Tensor, "row feature"]
    maskable: Bool[Tensor, "row token"]
    scores: Float[Tensor, "row token"]


class TeacherEnsemble:
    """One teacher, or the mean of several, each in units of its root mean square over a row's maskable tokens.

    Scores are kept in a store, batch by batch, by what they are made from: a fit that was interrupted goes on, and a
    second fit asks no teacher again.
    """

    def __init__(self, teachers: Sequence[Method], task: Task, store: Store) -> None:
        self.teachers, self.task, self.store = teachers, task, store
        self.fingerprint = task.fingerprint()
        self._explainers: dict[str, Explainer] = {}

    def scores(self, batch: Batch) -> Float[Tensor, "row token"]:
        """The mean of the teachers' scores for the model's own answers."""
        return torch.stack([self._scores(teacher, batch) for teacher in self.teachers]).mean(dim=0)

    def _scores(self, teacher: Method, batch: Batch) -> Float[Tensor, "row token"]:
        texts = hashlib.sha256(repr([batch.tokens.tolist(), batch.present.tolist()]).encode())
        for name, value in sorted({**batch.inputs, **batch.token_inputs}.items()):
            texts.update(repr((name, value.tolist())).encode())
        digest = digest_of(["teacher", self.fingerprint, teacher.digest, texts.hexdigest()])

        def make() -> Artefact:
            return Artefact({"scores": self._explainer(teacher)(batch).scores})

        found = self.store.get_or_make("teacher", digest, make).tensors["scores"].to(batch.tokens.device)
        count = batch.maskable.sum(dim=1, keepdim=True).clamp(min=1)
        size = (found.square().sum(dim=1, keepdim=True) / count).sqrt()
        return found / size.clamp(min=1e-9)

    def _explainer(self, teacher: Method) -> Explainer:
        """Fitted when it is first asked: not at all where every answer is known."""
        if teacher.digest not in self._explainers:
            self._explainers[teacher.digest] = teacher.fit(self.task)
        return self._explainers[teacher.digest]


@dataclass(frozen=True)
class DistillationObjective(Objective[AttributionNetwork, DistillationBatch]):
    """The student's score for the model's own answer is the teachers'."""

    task: Task
    sites: tuple[str, ...]
    faculty: TeacherEnsemble

    @torch.no_grad()
    def ask(self, batch: Batch) -> DistillationBatch:
        """One clean pass, and whatever the teachers need."""
        answer, states = self.task.trace(batch)
        scores = self.faculty.scores(batch)
        return DistillationBatch(keep(states, self.sites, batch.present), own_direction(answer), batch.maskable, scores)

    def loss(self, student: AttributionNetwork, lesson: DistillationBatch) -> Float[Tensor, "row copy"]:
        """Smooth L1 over a row's maskable tokens."""
        found = (student(*lesson.reading.full()) * lesson.towards[:, None]).sum(dim=-1)
        error = smooth_l1_loss(found, lesson.scores.to(found), reduction="none") * lesson.maskable
        return error.sum(dim=1, keepdim=True) / lesson.maskable.sum(dim=1, keepdim=True).clamp(min=1)


def own_direction(answer: Distribution) -> Float[Tensor, "row feature"]:
    """Towards the model's own decision."""
    return log_odds_gradient(answer, torch.zeros_like(flat_logits(answer)), predicted_outcome(answer))


def kept_scores() -> Store:
    """Where teachers' scores are kept: `$DIFFMASK_CACHE`, or a folder of the user's cache."""
    return Store(Path(os.environ.get("DIFFMASK_CACHE", Path.home() / ".cache" / "diffmask")))
