"""Amortised attribution: a network learns scores once and explains a text in one forward pass. Jethani et al. 2022."""

import math
import time
import warnings
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor, nn
from torch.distributions import Distribution

from diffmask.core.baseline_states import Baseline, baseline_state, site_statistics
from diffmask.core.batch import Attribution, Batch, iter_by_length, map_by_length
from diffmask.core.capabilities import ErasesUnits, prepare_resume
from diffmask.core.coarse_answers import coarse_outcome, coarsen
from diffmask.core.config import parse
from diffmask.core.distributions import flat_logits, log_odds_gradient, predicted_outcome
from diffmask.core.explainer import Explainer, Method
from diffmask.core.task import Task
from diffmask.core.training import generator, infinite_minibatches, seeded, split_held_out
from diffmask.errors import ConfigError, FitWarning
from diffmask.methods.amortised.network import AttributionNetwork, ood_score
from diffmask.methods.amortised.network_diagnostics import additivity, interaction_only
from diffmask.methods.amortised.network_training import (
    AmortisedTraining,
    BatchT,
    Budget,
    Objective,
    TrainingSchedule,
    parse_budget,
)
from diffmask.methods.amortised.objectives import (
    AdditiveObjective,
    DistillationObjective,
    TeacherEnsemble,
    teacher_store,
)
from diffmask.methods.amortised.parts import PartAmortisedExplainer
from diffmask.methods.amortised.refine import RefinedExplainer


@dataclass(frozen=True, kw_only=True)
class Amortised(Method):
    """Scores phi such that f(kept tokens) = f(none) + sum of phi over the kept tokens, f the model's logits.

    A network predicts phi from the model's states. It is trained on random token sets, as FastSHAP is, or
    on the scores of slower methods, its teachers. Jethani et al. 2022.
    """

    name: ClassVar[str] = "amortised"
    revision: ClassVar[int] = 1

    teacher: Any = None
    """Method to imitate: a name, a method config, or a list of either, whose mean is taken. None learns from the model.

    `greedy-search` gives scores optimised for sufficiency and comprehensiveness."""
    budget: str | None = None
    """Cost limit of the fit: '3000 texts', or a time such as '5min'. Only a number of texts is reproducible.

    Default: 4000 texts, or 1500 with a teacher."""
    sites: tuple[str, ...] = ()
    """Sites whose states the network reads. Default: the first, two in between and the last."""
    width: int = 256
    """Units of the network's hidden layers."""
    baseline: Baseline = "auto"
    """Embedding that replaces an erased token."""
    mask_pairs: int = 4
    """Random masks per text; the complement of each is used too."""
    guided_masks: int = 0
    """Number of these masks that keep the tokens with the highest current scores."""
    batch_size: int = 16
    """Texts per batch."""
    steps_per_batch: int | None = None
    """Optimiser steps after each batch of texts. Default: 6, or 12 with a teacher."""
    replay_tokens: int = 150_000
    """Tokens whose states stay in the replay buffer, in half precision; the oldest batches are dropped first."""
    learning_rate: float = 1e-3
    """Highest learning rate of AdamW."""
    held_out: int = 128
    """Validation rows used for early stopping and diagnostics."""
    patience: int = 4
    """Evaluations on held-out rows without improvement before the fit stops."""
    statistics_rows: int = 512
    """Training rows from which the mean and deviation of each site are estimated."""
    refine: int = 0
    """Number of masked copies of each explained text that refine its scores; 0 uses one forward pass alone."""
    cached: bool = False
    """Whether the copies of a prompt hide parts from the question and the response alone, on the keys and values of the
    whole prompt: less exact, and far cheaper for long prompts."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "teacher", _teacher_to_dict(self.teacher))
        parse_budget(self.budget or "1 text")
        counts = (self.width, self.mask_pairs, self.batch_size, self.replay_tokens, self.held_out, self.patience)
        if min(*counts, self.steps_per_batch or 1) < 1 or not 0 <= self.guided_masks < self.mask_pairs:
            raise ConfigError("amortised: sizes and counts must be at least 1, and guided_masks less than mask_pairs")
        if self.refine < 0 or self.refine == 1:
            raise ConfigError(f"amortised: refine must be 0 or at least 2, found {self.refine}")
        if self.cached and not self.refine:
            raise ConfigError("amortised: cached=True is about the copies of refine; give refine=16 or another number")

    def teachers(self) -> list[Method]:
        """Return the methods to imitate."""
        nodes = self.teacher if isinstance(self.teacher, list) else [] if self.teacher is None else [self.teacher]
        return [parse("method", node, "amortised: teacher") for node in nodes]

    def build(self, task: Task, seed: int) -> "AmortisedExplainer | PartAmortisedExplainer":
        """Build the network, or weights of attention heads for a task with units such as the parts of a prompt."""
        if isinstance(task, ErasesUnits):
            if self.teacher is not None:
                raise ConfigError("amortised: parts of prompts are learned from the model; leave teacher out")
            return PartAmortisedExplainer(task, self.refine, cached=self.cached)
        if self.cached:
            raise ConfigError(f"amortised: cached=True is for parts of prompts; {type(task).__name__} has none")
        return self.build_tokens(task, seed)

    def build_tokens(self, task: Task, seed: int) -> "AmortisedExplainer":
        """Build a network that scores every token 0."""
        sites = self.sites or spread_sites(task.sites)
        for site in sites:
            task.site(site)
        statistics = site_statistics(task, sites, self.statistics_rows)
        with torch.no_grad():
            answer = task.predict(task.data["train"][:1].trim())
            features = flat_logits(coarsen(answer, answer)).shape[1]
        with seeded(seed, "amortised"):
            network = AttributionNetwork({site: statistics[site] for site in sites}, features, self.width)
        return AmortisedExplainer(task, network, baseline_state(task, task.sites[0], self.baseline), self.refine)

    def train(self, explainer: "AmortisedExplainer | PartAmortisedExplainer", task: Task, seed: int) -> None:
        """Train the network until the budget is spent, then measure additivity and the threshold for unusual texts."""
        if isinstance(explainer, PartAmortisedExplainer):
            texts = min(self._budget().texts, len(task.data["train"]))
            explainer.learn(task.data["train"].spread(int(texts)), self.mask_pairs, seed, self.label)
            return
        start, source = time.perf_counter(), generator(seed, "amortised")
        rows, held_out = split_held_out(task, self.held_out)
        additive = AdditiveObjective(
            task, explainer.network, explainer.baseline, self.mask_pairs, self.guided_masks, source
        )
        masked = query_by_length(additive, held_out, self.batch_size)
        if self.teacher is None:
            training: AmortisedTraining[AttributionNetwork, Any] = AmortisedTraining(
                explainer.network, additive, self._schedule(), masked, source, start, f"fit {self.label}"
            )
            training.run(infinite_minibatches(rows, self.batch_size, source, pool=16))
        else:
            teachers = TeacherEnsemble(self.teachers(), task, teacher_store())
            distillation = DistillationObjective(task, explainer.network.sites, teachers)
            scored = query_by_length(distillation, held_out, self.batch_size)
            training = AmortisedTraining(
                explainer.network, distillation, self._schedule(), scored, source, start, f"fit {self.label}"
            )
            # The same texts in the same batches for every seed, so that stored teacher scores are found again.
            training.run(infinite_minibatches(rows, self.batch_size, generator(0, "teacher"), pool=16))
        ood_scores = [ood_score(explainer.network, *batch.cached.restore()) for batch in masked]
        explainer.ood_threshold.copy_(torch.cat(ood_scores).quantile(0.99))
        fit_additivity = additivity(explainer.network, masked)
        if self.teacher is not None:
            fit_additivity = interaction_only(fit_additivity)
        explainer.diagnostics = {"network": {**training.diagnostics(), **fit_additivity}}
        for name, text in fit_additivity["problems"].items():
            warnings.warn(f"{self.label}: {name}: {text}", FitWarning, stacklevel=4)

    @property
    def effort(self) -> int | None:
        """Batches of texts in the budget; None if the budget is a time."""
        texts = self._budget().texts
        return math.ceil(texts / self.batch_size) if math.isfinite(texts) else None

    def with_effort(self, steps: int) -> "Amortised":
        """Return a copy with a budget of `steps` batches."""
        return replace(self, budget=f"{steps * self.batch_size} texts")

    def _budget(self) -> Budget:
        return parse_budget(self.budget or ("4000 texts" if self.teacher is None else "1500 texts"))

    def _schedule(self) -> TrainingSchedule:
        return TrainingSchedule(
            budget=self._budget(),
            steps_per_batch=self.steps_per_batch or (6 if self.teacher is None else 12),
            replay_tokens=self.replay_tokens,
            learning_rate=self.learning_rate,
            patience=self.patience,
        )


def query_by_length(objective: Objective[Any, BatchT], rows: Batch, batch_size: int) -> list[BatchT]:
    """Query the model about all rows, in batches of similar length."""
    return [objective.query_model(texts) for _, texts in iter_by_length(rows, batch_size)]


def _teacher_to_dict(teacher: Any) -> Any:
    """Return the YAML form of the teacher option: a name, a mapping, or a list of these."""
    if isinstance(teacher, Method):
        return teacher.to_dict()
    return [_teacher_to_dict(item) for item in teacher] if isinstance(teacher, list | tuple) else teacher


def spread_sites(sites: tuple[str, ...]) -> tuple[str, ...]:
    """Return the first site, two in between and the last.

    >>> spread_sites(("embedding", "1", "2", "3", "4", "5", "6", "output"))
    ('embedding', '2', '4', 'output')
    """
    last = len(sites) - 1
    return tuple(sites[index] for index in sorted({0, last // 3, (2 * last) // 3, last}))


class AmortisedExplainer(Explainer):
    """Explainer that runs the model once and applies the network to its states, then refines the scores if asked to."""

    ood_threshold: Tensor
    """99th percentile of `ood_score` on held-out texts."""

    def __init__(self, task: Task, network: AttributionNetwork, baseline: Tensor, copies: int = 0) -> None:
        super().__init__(task)
        prepare_resume(task)
        self.network, self.copies = network, copies
        self.baseline = nn.Parameter(baseline, requires_grad=False)
        self.register_buffer("ood_threshold", baseline.new_tensor(torch.inf))

    def forward(self, batch: Batch, target: Any = None, *, rows_at_once: int = 256) -> Attribution:
        """Explain a batch; without a target, one forward pass gives both the prediction and its explanation."""
        if target is None and not self.copies:
            return self.explain_with_answer(batch, rows_at_once=rows_at_once)[1]
        return super().forward(batch, target, rows_at_once=rows_at_once)

    @torch.no_grad()
    def explain(self, batch: Batch, target: Shaped[Tensor, "row *event"]) -> Attribution:
        """Return signed scores for an outcome per row."""
        return self.refined(self.copies).explain(batch, target) if self.copies else self.one_pass_scores(batch, target)

    def one_pass_scores(self, batch: Batch, target: Shaped[Tensor, "row *event"]) -> Attribution:
        """Return the scores of one forward pass."""
        return self._predict_and_score(batch, target)[1]

    @torch.no_grad()
    def answer(self, batch: Batch) -> tuple[Distribution, Attribution]:
        """Return the prediction and the scores for it, from one forward pass unless scores are refined."""
        if self.copies:
            return super().answer(batch)
        return self._predict_and_score(batch, None)

    def refined(self, copies: int = 64) -> RefinedExplainer:
        """Return an explainer that refines these scores with `copies` masked copies of each text."""
        return RefinedExplainer(self, copies)

    @torch.no_grad()
    def is_out_of_distribution(self, batch: Batch, rows_at_once: int = 256) -> Bool[Tensor, " row"]:
        """Return whether each text is farther from the training texts than 99 % of the held-out texts."""

        def scores(texts: Batch) -> Float[Tensor, " row"]:
            return ood_score(self.network, self.task.trace(texts)[1], texts.present)

        return map_by_length(scores, batch, rows_at_once) > self.ood_threshold

    def _predict_and_score(
        self, batch: Batch, target: Shaped[Tensor, "row *event"] | None
    ) -> tuple[Distribution, Attribution]:
        prediction, states = self.task.trace(batch)
        contributions = self.network(states, batch.present).masked_fill(~batch.maskable[..., None], 0.0)
        coarse = coarsen(prediction, prediction)
        empty_logits = flat_logits(coarse) - contributions.sum(dim=1)
        outcome = predicted_outcome(prediction) if target is None else target
        gradient = log_odds_gradient(coarse, empty_logits, coarse_outcome(outcome, prediction))
        return prediction, Attribution((contributions @ gradient[..., None]).squeeze(-1))
