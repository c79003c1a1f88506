"""Fitting masks from masked copies: what tokens add, seen from every site; then a threshold for every site."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.distributions import Distribution

from diffmask.batch import Batch
from diffmask.clean import CleanPass, clean_passes
from diffmask.diagnostics import diagnose, report
from diffmask.leaning import read_leanings
from diffmask.methods.amortised import ask_all, split_off
from diffmask.methods.amortised_answer import numbers
from diffmask.methods.amortised_budget import Budget
from diffmask.methods.amortised_copies import draw_kept, misfit, told_of_copies
from diffmask.methods.amortised_fit import Course, Fit, Schedule
from diffmask.methods.amortised_student import Reading, Student, keep
from diffmask.methods.diffmask_copies import KEEPS_ALL, CopiesExplainer, Layered
from diffmask.probe import statistics_of
from diffmask.task import Task
from diffmask.training import endless, generator, seeded, track

if TYPE_CHECKING:
    from diffmask.methods.diffmask import DiffMask


def build_copies(method: "DiffMask", task: Task, seed: int) -> CopiesExplainer:
    """Students that score every token 0, thresholds that keep all."""
    sites = method.sites or task.sites
    passes = list(clean_passes(task, task.data["train"].spread(method.statistics_rows)))
    known = statistics_of(passes, {task.sites[0], *sites})
    features = numbers(passes[0].answer).shape[1]
    read = {site: (task.sites[0], site) if method.reads_first and site != task.sites[0] else (site,) for site in sites}
    with seeded(seed, "diffmask"):
        students = {
            site: Student({name: known[name] for name in read[site]}, features, method.probe_width or 128)
            for site in sites
        }
        baselines = method.start_baselines(task, sites, known)
    return CopiesExplainer(task, method.mask, Layered(students), read_leanings(passes, sites), baselines)


def train_copies(method: "DiffMask", explainer: CopiesExplainer, task: Task, seed: int) -> None:
    """Ask about masked copies, learn what tokens add, then set the thresholds where hard masks hold the margin."""
    start, source = time.perf_counter(), generator(seed, "diffmask")
    rows, held_out = split_off(task, method.held_out)
    course = LayeredCopies(explainer, method.pairs, method.sites_per_step, source)
    schedule = Schedule(
        budget=Budget(texts=float(method.steps * method.batch_size)),
        updates=method.updates,
        replay=method.replay,
        learning_rate=method.learning_rate,
        patience=Schedule.looks,
    )
    asked = ask_all(course, held_out, method.batch_size)
    fit = Fit(explainer.layered, course, schedule, asked, source, start)
    fit.run(endless(rows, method.batch_size, source, method.length_pool))
    _, others = split_off(task, len(rows))
    set_thresholds(explainer, others[::2].spread(method.settle_rows), method.site_margins(explainer.sites))
    explainer.diagnostics = diagnose(explainer, method.margin, held_out=others[1::2])
    report(explainer.diagnostics, method.label)


@dataclass(frozen=True)
class LayeredLesson:
    """A few texts of like length, and the answer's numbers for masked copies of them, masked at one place or more."""

    reading: Reading
    answer: Distribution
    """To the whole text."""
    kept: Mapping[str, Bool[Tensor, "row copy token"]]
    """By the place that was masked."""
    told: Mapping[str, Float[Tensor, "row copy feature"]]
    empty: Mapping[str, Float[Tensor, "row feature"]]
    """The answer's numbers with nothing kept."""


@dataclass(frozen=True)
class LayeredCopies(Course[Layered, LayeredLesson]):
    """f(kept) = f(nothing) + sum of the kept tokens' scores, for every site's own scores."""

    explainer: CopiesExplainer
    pairs: int
    """Masks drawn a text, each asked with its complement."""
    places: int
    """How many sites' states are masked in turn; inputs are masked at one place for all."""
    source: torch.Generator

    @torch.no_grad()
    def ask(self, batch: Batch) -> LayeredLesson:
        """One clean pass, and for every place a pass over all copies: nothing kept, then the masks."""
        clean = CleanPass.over(self.explainer.task, batch)
        kept, told, empty = {}, {}, {}
        for site in self._drawn():
            place = self.explainer.place(site)
            kept[place] = draw_kept(batch.maskable, self.pairs, self.source)
            baseline = self.explainer.baseline(site)
            told[place], empty[place] = told_of_copies(self.explainer.task, clean, place, baseline, kept[place])
        reading = keep(
            clean.states, tuple(dict.fromkeys((self.explainer.task.sites[0], *self.explainer.sites))), batch.present
        )
        return LayeredLesson(reading, clean.answer, kept, told, empty)

    def loss(self, student: Layered, lesson: LayeredLesson) -> Float[Tensor, "row copy"]:
        """KL(the model's answer to a masked copy || the answer that a site's scores add up to), for all sites asked."""
        states, present = lesson.reading.full()
        found = []
        for site in self.explainer.sites:
            place = self.explainer.place(site)
            if place in lesson.told:
                kept = lesson.kept[place]
                scores = student(states, present, site)
                summed = lesson.empty[place][:, None] + kept.to(scores) @ scores
                found.append(misfit(lesson.answer, lesson.told[place], summed))
        return torch.cat(found, dim=1)

    def _drawn(self) -> tuple[str, ...]:
        sites = self.explainer.sites
        if self.explainer.mask == "inputs":
            return sites[:1]
        order = torch.randperm(len(sites), generator=self.source)[: self.places]
        return tuple(sites[index] for index in order.tolist())


@torch.no_grad()
def set_thresholds(
    explainer: CopiesExplainer, rows: Batch, margins: Mapping[str, float], slack: float = 0.95, halvings: int = 6
) -> None:
    """For every site, first to last, the highest threshold with which hard masks hold a little less than its margin."""
    parts = list(clean_passes(explainer.task, rows))
    before = [part.rows.maskable for part in parts]
    for index, site in enumerate(track(explainer.sites, "set the thresholds")):
        needed = [explainer.needs(part, site) for part in parts]
        every = torch.cat([need[part.rows.maskable] for need, part in zip(needed, parts, strict=True)])
        low, high = 0.0, 1.0
        for _ in range(halvings):
            middle = (low + high) / 2
            kept = [old & (need > every.quantile(middle)) for old, need in zip(before, needed, strict=True)]
            held = explainer.caused(parts, site, kept) <= slack * margins[site]
            low, high = (middle, high) if held else (low, middle)
        threshold = every.quantile(low) if low else every.new_tensor(KEEPS_ALL)
        explainer.thresholds[index] = threshold
        if explainer.mask == "inputs":
            before = [old & (need > threshold) for old, need in zip(before, needed, strict=True)]
