"""Fitting masks from masked copies: what goes with a token, seen from every site; then a threshold for every site."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.distributions import Distribution

from diffmask.core.baselines import trace_statistics
from diffmask.core.batch import Batch
from diffmask.core.distributions import flat_logits
from diffmask.core.explainer import ForwardTrace, iter_traces
from diffmask.core.task import Task
from diffmask.core.training import generator, infinite_minibatches, seeded
from diffmask.methods.amortised.amortised import query_by_length, split_held_out
from diffmask.methods.amortised.network import AttributionNetwork, CachedStates, cache_states
from diffmask.methods.amortised.objectives import logit_divergence, masked_logits, sample_mask_pairs
from diffmask.methods.amortised.training import AmortisedTraining, Budget, Objective, TrainingSchedule
from diffmask.methods.diffmask.baseline import learn_baselines
from diffmask.methods.diffmask.diagnostics import diagnose, report
from diffmask.methods.diffmask.linear_probe import fit_linear_probes
from diffmask.methods.diffmask.surrogate import LayerwiseAttributor, SurrogateMaskExplainer
from diffmask.methods.diffmask.thresholds import set_thresholds

if TYPE_CHECKING:
    from diffmask.methods.diffmask.diffmask import DiffMask

WEIGHT_DECAY = 0.3
"""Of the students: with less they learn their texts by heart."""


def build_copies(method: "DiffMask", task: Task, seed: int) -> SurrogateMaskExplainer:
    """Students that score every token 0, thresholds that keep all."""
    sites = method.sites or task.sites
    passes = list(iter_traces(task, task.data["train"].spread(method.statistics_rows)))
    read = {site: method.reads_at(task.sites, site) for site in sites}
    known = trace_statistics(passes, {task.sites[0], *sites}.union(*read.values()))
    features = flat_logits(passes[0].answer).shape[1]
    with seeded(seed, "diffmask"):
        students = {
            site: AttributionNetwork({name: known[name] for name in read[site]}, features, method.probe_width or 64)
            for site in sites
        }
        baselines = method.start_baselines(task, sites, known)
    return SurrogateMaskExplainer(
        task, method.mask, LayerwiseAttributor(students), fit_linear_probes(passes, sites), baselines
    )


def train_copies(method: "DiffMask", explainer: SurrogateMaskExplainer, task: Task, seed: int) -> None:
    """Ask about masked copies, learn what tokens add, then set the thresholds where hard masks hold the margin."""
    start, source = time.perf_counter(), generator(seed, "diffmask")
    rows, held_out = split_held_out(task, method.held_out)
    batches = infinite_minibatches(rows, method.batch_size, source, method.length_pool)
    course = LayeredCopies(explainer, method.pairs, method.own, method.sites_per_step, source)
    if method.learn_baseline:
        learn_baselines(explainer, batches, course.drawn, source)
    schedule = TrainingSchedule(
        budget=Budget(texts=float(method.steps * method.batch_size)),
        steps_per_batch=method.updates,
        replay_tokens=method.replay,
        learning_rate=method.rate,
        patience=TrainingSchedule.evaluations,
        weight_decay=WEIGHT_DECAY,
    )
    asked = query_by_length(course, held_out, method.batch_size)
    training = AmortisedTraining(explainer.layered, course, schedule, asked, source, start)
    training.run(batches, keep="last")  # held-out texts are asked about sets of no student's choice
    _, others = split_held_out(task, len(rows))
    set_thresholds(explainer, others[::2].spread(method.settle_rows), method.site_margins(explainer.sites))
    explainer.diagnostics = diagnose(explainer, method.margin, held_out=others[1::2], rows=method.settle_rows)
    report(explainer.diagnostics, method.label)


@dataclass(frozen=True)
class LayeredLesson:
    """A few texts of like length, and the answer's numbers for masked copies of them, masked at one place or more."""

    cached: CachedStates
    answer: Distribution
    """To the whole text."""
    maskable: Bool[Tensor, "row token"]
    kept: Mapping[str, Bool[Tensor, "row copy token"]]
    """By the place that was masked."""
    told: Mapping[str, Float[Tensor, "row copy feature"]]


@dataclass(frozen=True)
class LayeredCopies(Objective[LayerwiseAttributor, LayeredLesson]):
    """f(kept) = f(all) - sum of the erased tokens' scores, for every site's own scores.

    Masks start from the whole text, and so do these sums: from nothing, they are least exact where most is kept.
    """

    explainer: SurrogateMaskExplainer
    pairs: int
    """Masks drawn a text, each asked with its complement."""
    own: int
    """Masks a text that erase what the students, so far, tell to be needed least: the sets that they will choose.

    A set chosen by what is foretold of it is one that was foretold too well; asked about it, they learn better."""
    places: int
    """How many sites' states are masked in turn; inputs are masked at one place for all."""
    source: torch.Generator

    @torch.no_grad()
    def query_model(self, batch: Batch) -> LayeredLesson:
        """One clean pass, and for every place a pass over all copies."""
        clean = ForwardTrace.of(self.explainer.task, batch)
        kept, told = {}, {}
        for site in self.drawn():
            place = self.explainer.place(site)
            chosen = [self._chosen(clean, site)] if self.own else []
            kept[place] = torch.cat([sample_mask_pairs(batch.maskable, self.pairs, self.source), *chosen], dim=1)
            baseline = self.explainer.baseline(site)
            told[place] = masked_logits(self.explainer.task, clean, place, baseline, kept[place])
        cached = cache_states(clean.states, self.explainer.layered.reads, batch.present)
        return LayeredLesson(cached, clean.answer, batch.maskable, kept, told)

    def loss(self, network: LayerwiseAttributor, batch: LayeredLesson) -> Float[Tensor, "row copy"]:
        """KL(the model's answer to a masked copy || the answer that a site's scores add up to), for all sites asked."""
        states, present = batch.cached.restore()
        sites = tuple(site for site in self.explainer.sites if self.explainer.place(site) in batch.told)
        found = []
        for site, lost in zip(sites, network(states, present, sites), strict=True):
            place = self.explainer.place(site)
            erased = batch.maskable[:, None] & ~batch.kept[place]
            remaining = flat_logits(batch.answer)[:, None] - erased.to(lost) @ lost
            found.append(logit_divergence(batch.answer, batch.told[place], remaining))
        return torch.cat(found, dim=1)

    def drawn(self) -> tuple[str, ...]:
        """The sites that are asked about next."""
        sites = self.explainer.sites
        if self.explainer.mask == "inputs":
            return sites[:1]
        order = torch.randperm(len(sites), generator=self.source)[: self.places]
        return tuple(sites[index] for index in order.tolist())

    def _chosen(self, clean: ForwardTrace, site: str) -> Bool[Tensor, "row copy token"]:
        """What would be kept, seen from the site that is masked; for inputs from any, half the time from the last."""
        sites = self.explainer.sites
        if self.explainer.mask == "inputs":
            index = int(torch.randint(2 * len(sites), (), generator=self.source))
            site = sites[min(index, len(sites) - 1)]
        needed = self.explainer.needs(clean, site)
        return draw_needed(needed, clean.rows.maskable, self.own, self.source)


def draw_needed(
    needed: Float[Tensor, "row token"], maskable: Bool[Tensor, "row token"], copies: int, source: torch.Generator
) -> Bool[Tensor, "row copy token"]:
    """What is kept when the tokens needed least are erased, any share of a row; the order is drawn, e^(N / 3) the need.

    The shares of a row's copies are stratified.
    """
    rows, tokens = maskable.shape
    noise = torch.randn(rows, copies, tokens, generator=source).to(needed)
    order = (needed[:, None] * (noise / 3).exp()).masked_fill(~maskable[:, None], torch.inf).argsort(dim=2)
    share = (torch.arange(copies) + torch.rand(rows, copies, generator=source)) / copies
    erased = (share.to(needed) * maskable.sum(dim=1, keepdim=True)).round()
    return maskable[:, None] & (order.argsort(dim=2) >= erased[..., None])
