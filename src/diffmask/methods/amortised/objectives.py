"""Objectives of an amortised explainer: additivity on masked inputs, or distillation of slower methods.

Without a teacher the scores must add up to the model's logits on masked copies (FastSHAP, Jethani et al. 2022). With
teachers their scores are computed once, stored, and imitated.
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
from diffmask.core.coarse_answers import coarsen
from diffmask.core.config import digest_of
from diffmask.core.distributions import divergence, flat_logits, from_logits, log_odds_gradient, predicted_outcome
from diffmask.core.explainer import Explainer, ForwardTrace, Method
from diffmask.core.hooks import erase_states
from diffmask.core.store import Artefact, Store
from diffmask.core.task import Task
from diffmask.methods.amortised.network import AttributionNetwork, CachedStates, cache_states
from diffmask.methods.amortised.network_training import Objective


@dataclass(frozen=True)
class MaskedBatch:
    """Texts of similar length and the model's logits for masked copies of each."""

    cached: CachedStates
    prediction: Distribution
    """Prediction for the unmasked texts."""
    kept: Bool[Tensor, "row copy token"]
    masked_logits: Float[Tensor, "row copy feature"]
    """f(kept)."""
    empty_logits: Float[Tensor, "row feature"]
    """f(no token kept)."""


@dataclass(frozen=True)
class AdditiveObjective(Objective[AttributionNetwork, MaskedBatch]):
    """f(kept) = f(none) + sum of the kept tokens' scores; the embedding of an erased token is the baseline."""

    task: Task
    network: AttributionNetwork
    """Network whose current scores choose the guided masks."""
    baseline: Float[Tensor, " width"]
    mask_pairs: int
    """Masks per text; the complement of each is used too."""
    guided_masks: int
    """Number of these masks that keep the tokens with the highest current scores."""
    source: torch.Generator

    @torch.no_grad()
    def query_model(self, batch: Batch) -> MaskedBatch:
        """Run the model on the texts, on the fully erased texts and on every masked copy."""
        answer, states = self.task.trace(batch)
        prediction = coarsen(answer, answer)
        kept = sample_mask_pairs(batch.maskable, self.mask_pairs - self.guided_masks, self.source)
        if self.guided_masks:
            gradient = log_odds_gradient(prediction, flat_logits(prediction), predicted_outcome(prediction))
            scores = (self.network(states, batch.present) * gradient[:, None]).sum(dim=-1)
            kept = torch.cat([kept, sample_guided_masks(scores, batch.maskable, self.guided_masks, self.source)], dim=1)
        masks = torch.cat([torch.zeros_like(kept[:, :1]), kept], dim=1)
        trace = ForwardTrace(batch, answer, states)
        logits = masked_logits(self.task, trace, self.task.sites[0], self.baseline, masks)
        cached = cache_states(states, self.network.sites, batch.present)
        return MaskedBatch(cached, prediction, kept, logits[:, 1:], logits[:, 0])

    def loss(self, network: AttributionNetwork, batch: MaskedBatch) -> Float[Tensor, "row copy"]:
        """Return KL(model's prediction for a masked copy || prediction that the scores add up to)."""
        return logit_divergence(batch.prediction, batch.masked_logits, additive_logits(network, batch))


def masked_logits(
    task: Task,
    trace: ForwardTrace,
    site: str,
    baseline: Float[Tensor, " width"],
    kept: Bool[Tensor, "row copy token"],
) -> Float[Tensor, "row copy feature"]:
    """Return the model's logits for every masked copy, from one forward pass that starts at the masked site.

    Answers with very many classes are coarsened: see `diffmask.core.coarse_answers.coarsen`.
    """
    copies = kept.shape[1]
    erased = (trace.rows.maskable[:, None] & ~kept).flatten(0, 1)
    state = {site: trace.states[site].repeat_interleave(copies, dim=0)}
    prediction = task.resume(trace.rows.repeat(copies), state, {site: erase_states(erased, baseline)})
    return flat_logits(coarsen(prediction, trace.answer)).unflatten(0, (len(trace.rows), copies))


def logit_divergence(
    prediction: Distribution,
    logits: Float[Tensor, "row copy feature"],
    estimate: Float[Tensor, "row copy feature"],
) -> Float[Tensor, "row copy"]:
    """Return KL(logits || estimate), both as distributions of the family of `prediction`."""
    nats = divergence(from_logits(prediction, logits.flatten(0, 1)), from_logits(prediction, estimate.flatten(0, 1)))
    return nats.unflatten(0, logits.shape[:2])


def additive_logits(network: AttributionNetwork, batch: MaskedBatch) -> Float[Tensor, "row copy feature"]:
    """Return f(none) + sum of the kept tokens' scores."""
    scores = network(*batch.cached.restore())
    return batch.empty_logits[:, None] + batch.kept.to(scores) @ scores


def sample_mask_pairs(
    maskable: Bool[Tensor, "row token"], pairs: int, source: torch.Generator
) -> Bool[Tensor, "row copy token"]:
    """Sample masks that keep each token with probability u, u ~ U(0, 1/2); each is followed by its complement.

    The keep rates of a row are stratified: every text is masked both lightly and heavily.
    """
    rows, tokens = maskable.shape
    rate = (torch.arange(pairs) + torch.rand(rows, pairs, generator=source)) / (2 * pairs)
    first = torch.rand(rows, pairs, tokens, generator=source) < rate[..., None]
    both = torch.stack([first, ~first], dim=2).flatten(1, 2).to(maskable.device)
    return both & maskable[:, None]


def sample_guided_masks(
    scores: Float[Tensor, "row token"], maskable: Bool[Tensor, "row token"], pairs: int, source: torch.Generator
) -> Bool[Tensor, "row copy token"]:
    """Sample masks that keep the highest-scored tokens, at most half of a row; each is followed by its complement.

    Ranks are randomised: Gumbel noise is added to twice the scores in units of their root mean square. These are the
    masks that faithfulness metrics evaluate.
    """
    rows, tokens = maskable.shape
    count = maskable.sum(dim=1, keepdim=True)
    size = ((scores * maskable).square().sum(dim=1, keepdim=True) / count.clamp(min=1)).sqrt().clamp(min=1e-9)
    noise = -(-torch.rand(rows, pairs, tokens, generator=source).clamp(1e-9, 1 - 1e-6).log()).log()
    perturbed = (2 * scores / size)[:, None] + noise.to(scores)
    rank = perturbed.masked_fill(~maskable[:, None], -torch.inf).argsort(dim=2, descending=True).argsort(dim=2)
    rate = (torch.arange(pairs) + torch.rand(rows, pairs, generator=source)) / (2 * pairs)
    top = (rank < (rate.to(scores) * count).ceil()[..., None]) & maskable[:, None]
    return torch.stack([top, maskable[:, None] & ~top], dim=2).flatten(1, 2)


@dataclass(frozen=True)
class DistillationBatch:
    """Texts of similar length and the teachers' scores for them."""

    cached: CachedStates
    gradient: Float[Tensor, "row feature"]
    """Gradient of the predicted outcome's log-odds with respect to the logits."""
    maskable: Bool[Tensor, "row token"]
    scores: Float[Tensor, "row token"]


class TeacherEnsemble:
    """Mean of the teachers' scores, each in units of its root mean square over the maskable tokens of a row.

    Scores are stored per batch under a digest of model, teacher and texts. An interrupted fit resumes, and a second fit
    runs no teacher again.
    """

    def __init__(self, teachers: Sequence[Method], task: Task, store: Store) -> None:
        self.teachers, self.task, self.store = teachers, task, store
        self.fingerprint = task.fingerprint()
        self._explainers: dict[str, Explainer] = {}

    def scores(self, batch: Batch) -> Float[Tensor, "row token"]:
        """Return the mean of the teachers' scores for the predicted outcomes."""
        return torch.stack([self._scores(teacher, batch) for teacher in self.teachers]).mean(dim=0)

    def _scores(self, teacher: Method, batch: Batch) -> Float[Tensor, "row token"]:
        texts = hashlib.sha256(repr([batch.tokens.tolist(), batch.present.tolist()]).encode())
        for name, value in sorted({**batch.inputs, **batch.token_inputs}.items()):
            texts.update(repr((name, value.tolist())).encode())
        digest = digest_of(["teacher", self.fingerprint, teacher.digest, texts.hexdigest()])

        def make() -> Artefact:
            return Artefact({"scores": self._explainer(teacher)(batch).scores})

        scores = self.store.get_or_make("teacher", digest, make).tensors["scores"].to(batch.tokens.device)
        count = batch.maskable.sum(dim=1, keepdim=True).clamp(min=1)
        size = (scores.square().sum(dim=1, keepdim=True) / count).sqrt()
        return scores / size.clamp(min=1e-9)

    def _explainer(self, teacher: Method) -> Explainer:
        """Fit a teacher on first use; a teacher whose scores are all stored is never fitted."""
        if teacher.digest not in self._explainers:
            self._explainers[teacher.digest] = teacher.fit(self.task, keep_interrupted=False)
        return self._explainers[teacher.digest]


@dataclass(frozen=True)
class DistillationObjective(Objective[AttributionNetwork, DistillationBatch]):
    """The network's score for the predicted outcome equals the teachers' score."""

    task: Task
    sites: tuple[str, ...]
    teachers: TeacherEnsemble

    @torch.no_grad()
    def query_model(self, batch: Batch) -> DistillationBatch:
        """Run the model once for its states, and the teachers for their scores."""
        answer, states = self.task.trace(batch)
        scores = self.teachers.scores(batch)
        cached = cache_states(states, self.sites, batch.present)
        return DistillationBatch(cached, predicted_gradient(coarsen(answer, answer)), batch.maskable, scores)

    def loss(self, network: AttributionNetwork, batch: DistillationBatch) -> Float[Tensor, "row copy"]:
        """Return the smooth L1 distance, averaged over the maskable tokens of a row."""
        scores = (network(*batch.cached.restore()) * batch.gradient[:, None]).sum(dim=-1)
        error = smooth_l1_loss(scores, batch.scores.to(scores), reduction="none") * batch.maskable
        return error.sum(dim=1, keepdim=True) / batch.maskable.sum(dim=1, keepdim=True).clamp(min=1)


def predicted_gradient(prediction: Distribution) -> Float[Tensor, "row feature"]:
    """Return the gradient of the predicted outcome's log-odds with respect to the logits, at zero logits."""
    return log_odds_gradient(prediction, torch.zeros_like(flat_logits(prediction)), predicted_outcome(prediction))


def teacher_store() -> Store:
    """Open the store of the teachers' scores: `$DIFFMASK_CACHE`, or a folder of the user's cache."""
    return Store(Path(os.environ.get("DIFFMASK_CACHE", Path.home() / ".cache" / "diffmask")))
