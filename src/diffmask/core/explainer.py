"""`Method` and `Explainer`: a frozen config that is fitted to a task, and the fitted map from a batch to scores.

`ForwardTrace` is the unmodified forward pass that methods read states from and compare masked passes with.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from numbers import Integral
from pathlib import Path
from typing import Any, ClassVar, cast

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor, nn
from torch.distributions import Distribution
from torch.nn.functional import pad

from diffmask.core.batch import Attribution, Batch, iter_by_length, order_by_length, require_tokens
from diffmask.core.capabilities import ErasesUnits, ExplainsInputs, explained_outcome, require
from diffmask.core.checkpoints import checkpoints_in
from diffmask.core.coarse_answers import coarsen
from diffmask.core.config import Config
from diffmask.core.distributions import logits
from diffmask.core.hooks import exclusive
from diffmask.core.progress import keep_if_interrupted, progress_bar
from diffmask.core.resources import AdaptiveBatchSize, Cost, metering, release_free_memory
from diffmask.core.task import Task
from diffmask.errors import ConfigError, InputError, TaskError
from diffmask.results.formatting import format_duration

DEFAULT_MARGIN = 0.1
"""Largest KL(original || masked) of a verified set, in nats, for methods without a margin of their own."""

States = dict[str, Float[Tensor, "row token width"]]


@dataclass(frozen=True)
class ForwardTrace:
    """One unmodified forward pass: its rows, the model's answer and the states at every site."""

    rows: Batch
    answer: Distribution
    states: States

    @cached_property
    def coarse_answer(self) -> Distribution:
        """The answer over few classes, for surrogates that predict its logits."""
        return coarsen(self.answer, self.answer)

    @staticmethod
    def of(task: Task, rows: Batch) -> "ForwardTrace":
        """Run the model once on the given rows."""
        return ForwardTrace(rows, *task.trace(rows))


def iter_traces(task: Task, rows: Batch, size: int = 64) -> Iterator[ForwardTrace]:
    """Yield traces of `size` rows each, in order of length."""
    return (ForwardTrace.of(task, part) for _, part in iter_by_length(rows, size))


def pool_states(
    state: Float[Tensor, "row token width"], present: Bool[Tensor, "row token"]
) -> tuple[Float[Tensor, "row width"], Float[Tensor, "row width"], Float[Tensor, "row width"]]:
    """Return the state of each row's first and last real token, which most models predict from, and the mean state."""
    real = present.to(state.dtype)
    rows = torch.arange(len(state), device=state.device)
    last = present.shape[1] - 1 - present.flip(1).to(torch.uint8).argmax(dim=1)
    # A matrix product instead of a masked sum: no second copy of the states.
    mean = ((real / real.sum(dim=1, keepdim=True))[:, None] @ state).squeeze(1)
    return state[rows, present.to(torch.uint8).argmax(dim=1)], state[rows, last], mean


class Explainer(nn.Module, ABC):
    """A method fitted to one task. Its `state_dict` holds everything learned; the explained model is not part of it.

    An explainer may be called from several threads: calls and fits on one model run one after another.
    """

    explains_target: ClassVar[bool] = True
    """Whether scores depend on the explained class. Masks, for example, keep the whole prediction instead."""
    max_rows_at_once: ClassVar[int | None] = None
    """Largest number of rows per forward pass, whatever the caller asks for; None for any number."""

    def __init__(self, task: Task) -> None:
        super().__init__()
        self.task = task
        self.fit_cost = Cost()
        """Cost of the fit."""
        self.cost = Cost()
        """Cost of all explanations so far."""
        self.diagnostics: dict[str, Any] = {}
        """Diagnostics of the fit, by site."""
        self.training_history: list[dict[str, Any]] = []
        """Course of the fit: a record per site and some steps; empty for methods that keep none."""
        self.config: Method | None = None
        """The method that fitted this explainer."""

    def __repr__(self) -> str:
        """Return the method, the model and the cost of the fit in one line, not the tree of modules."""
        method = type(self).__name__ if self.config is None else self.config.label
        seconds = self.fit_cost.seconds
        cost = f", fitted in {format_duration(seconds)}" if seconds >= 1 else ""
        return f"{type(self).__name__}({method} of {type(self.task.model).__name__}{cost})"

    def _repr_html_(self) -> str:
        from diffmask.report.notebook import render_fit

        return render_fit(repr(self), self.diagnostics)

    @abstractmethod
    def explain(self, batch: Batch, target: Shaped[Tensor, "row *event"]) -> Attribution:
        """Score every token of a few rows for the outcome `target` of each row."""

    def forward(
        self, batch: Batch, target: Shaped[Tensor, "row *event"] | int | None = None, *, rows_at_once: int = 256
    ) -> Attribution:
        """Score every token of the batch for one outcome per row, or for one class; by default the predicted one.

        Rows are processed in order of length to save padding, and in smaller portions if memory runs out. Positions
        that are not maskable score 0; `diffmask.core.batch.ranking` puts them last whatever the other scores are.
        """
        outcome = _outcome(batch, target)

        def explain(part: Batch, rows: Tensor) -> Attribution:
            return self.explain(part, self.outcome(part) if outcome is None else outcome[rows])

        attributions, restore = self._by_length(batch, rows_at_once, explain)
        return Attribution.join(attributions)[restore]

    def explain_with_answer(
        self, batch: Batch, target: Shaped[Tensor, "row *event"] | None = None, *, rows_at_once: int = 256
    ) -> tuple[Float[Tensor, "row *feature"], Attribution]:
        """Return the logits of the model's answers and the scores for them or for a target, in constant memory."""
        parts: list[Tensor] = []

        def explain(part: Batch, rows: Tensor) -> Attribution:
            if parts:
                release_free_memory()
            answer, attribution = self.answer(part) if target is None else self._answer_and_explain(part, target[rows])
            parts.append(logits(answer))
            return attribution

        attributions, restore = self._by_length(batch, rows_at_once, explain)
        return torch.cat(parts)[restore], Attribution.join(attributions)[restore]

    def _by_length(
        self, batch: Batch, rows_at_once: int, explain: Callable[[Batch, Tensor], Attribution]
    ) -> tuple[list[Attribution], Int[Tensor, " row"]]:
        """Explain rows in order of length; also return the index that restores the order of the batch."""
        require_tokens(batch)
        if type(rows_at_once) is not int or rows_at_once < 1:
            raise InputError(f"rows_at_once is a whole number from 1; found {rows_at_once!r}")
        largest = min(rows_at_once, self.max_rows_at_once or rows_at_once)
        order = order_by_length(batch)

        def work(items: slice) -> Attribution:
            part = batch[order[items]].trim()
            attribution = _widen(explain(part, order[items]), part, batch.tokens.shape[1])
            bar.update(len(part))
            return attribution

        model = self.task.model
        with exclusive(model), metering(model, self.cost), progress_bar(order, "explain") as bar:
            return AdaptiveBatchSize(largest).split(len(batch), work), order.argsort()

    def answer(self, batch: Batch) -> tuple[Distribution, Attribution]:
        """Return the model's answer and the scores for its prediction; a subclass may need one pass for both."""
        return self._answer_and_explain(batch, None)

    def _answer_and_explain(
        self, batch: Batch, target: Shaped[Tensor, "row *event"] | None
    ) -> tuple[Distribution, Attribution]:
        with torch.no_grad():
            answer = self.task.predict(batch)
        outcome = explained_outcome(self.task, batch, answer) if target is None else target
        return answer, self.explain(batch, outcome)

    @torch.no_grad()
    def outcome(self, batch: Batch) -> Shaped[Tensor, "row *event"]:
        """Return the outcome that is explained by default: the model's prediction."""
        return explained_outcome(self.task, batch)

    @property
    def erases_states(self) -> bool:
        """Whether masks of layers erase the states of that layer; otherwise all of them erase the inputs."""
        return False

    def margin_at(self, layer: str | None) -> float:
        """Return the largest KL(original || masked) of a verified mask of `layer`, in nats."""
        return float(getattr(self.config, "margin", DEFAULT_MARGIN))

    @torch.no_grad()
    def predict_kept(self, batch: Batch, kept: Bool[Tensor, "row token"], layer: str | None) -> Distribution:
        """Run the model with every maskable token erased that is not kept.

        A task that erases in its own way does so. Otherwise the mask token replaces an erased token; in a vocabulary
        without one, a zero embedding does.
        """
        erased = batch.maskable & ~kept
        if isinstance(self.task, ErasesUnits):
            return self.task.predict(self.task.erase(batch, erased))
        if self.task.mask_token is not None:
            return self.task.predict(replace(batch, tokens=batch.tokens.masked_fill(erased, self.task.mask_token)))
        return self.task.predict(batch, {self.task.sites[0]: lambda state: state.masked_fill(erased[..., None], 0.0)})

    def save_pretrained(self, folder: str | Path) -> None:
        """Write the learned weights and the config, without the model; `diffmask.load_explainer` reads them."""
        from diffmask import save_explainer

        save_explainer(self, self._known_config(), folder)

    def push_to_hub(self, repository: str, *, private: bool = False) -> str:
        """Upload the files of `save_pretrained` to the Hugging Face hub and return their address."""
        from diffmask import push_explainer

        return push_explainer(self, self._known_config(), repository, private=private)

    def _known_config(self) -> "Method":
        if self.config is None:
            raise TaskError("this explainer was not made by Method.fit: save it with diffmask.save_explainer")
        return self.config

    def __call__(self, inputs: Any = None, *choices: Any, **named: Any) -> Any:
        """Return the attribution of a batch, or the explanation of raw inputs such as texts, if the task reads them.

        Named fields of one input, such as `question=` and `context=`, are passed on to the task.
        """
        if isinstance(inputs, Batch):
            return super().__call__(inputs, *choices, **named)
        task = require(self.task, ExplainsInputs, f"explaining a {type(inputs).__name__}")
        return task.explain(self, inputs, *choices, **named)


def _outcome(batch: Batch, target: Shaped[Tensor, "row *event"] | int | None) -> Shaped[Tensor, "row *event"] | None:
    """Return one outcome per row, or None for the predicted ones."""
    if target is None:
        return None
    if type(target) is int and abs(target) < 2**31:
        return torch.full_like(batch.target, target)
    if not isinstance(target, Tensor):
        raise InputError(f"target is a class, a tensor with one outcome per row, or None; found {target!r:.100}")
    if target.shape != batch.target.shape:
        shape, expected = tuple(target.shape), tuple(batch.target.shape)
        raise InputError(f"a target of shape {shape} for {len(batch)} rows of shape {expected}; give one per row")
    return target


def _widen(attribution: Attribution, batch: Batch, width: int) -> Attribution:
    """Set scores of unmaskable tokens to zero and pad the scores of a trimmed batch to `width` tokens."""
    missing = (0, width - batch.tokens.shape[1])
    scores = pad(attribution.scores.masked_fill(~batch.maskable, 0.0), missing)
    by_layer = attribution.by_layer
    if by_layer is not None:
        by_layer = pad(by_layer.masked_fill(~batch.maskable[:, None], 0.0), missing)
    return Attribution(scores, by_layer, attribution.layers)


@dataclass(frozen=True, kw_only=True)
class Method(Config, ABC):
    """Config of an explainer; `fit` builds and trains it."""

    kind: ClassVar[str] = "method"
    is_baseline: ClassVar[bool] = False
    """Whether scores ignore the model: a reference that methods should beat, not a method."""
    writes_checkpoints: ClassVar[bool] = False
    """Whether a fit can write checkpoints and resume from them."""

    @abstractmethod
    def build(self, task: Task, seed: int) -> Explainer:
        """Return an untrained explainer; raise an error if the task lacks something the method needs."""

    def train(self, explainer: Any, task: Task, seed: int) -> None:
        """Train the explainer on the task's training rows; methods without parameters do nothing."""

    def fit(
        self, task: Task, seed: int = 0, *, keep_interrupted: bool = True, checkpoints: str | Path | None = None
    ) -> Explainer:
        """Return a fitted explainer. The same seed gives the same explainer, bit for bit.

        Ctrl-C ends the training of a method that learns, and keeps what it has learned, unless `keep_interrupted` is
        False. With a folder for checkpoints, ten are written during the fit, and a killed fit resumes from the last.
        """
        if checkpoints is not None and not self.writes_checkpoints:
            raise ConfigError(f"{self.name} writes no checkpoints; leave `checkpoints` out")
        if isinstance(seed, bool) or not isinstance(seed, Integral) or seed < 0:
            raise ConfigError(f"seed is a whole number from 0; got {seed!r}")
        with keep_if_interrupted(keep_interrupted), checkpoints_in(checkpoints), exclusive(task.model):
            explainer = self.build(task, seed)
            self.train_metered(explainer, task, seed)
        return explainer

    def train_metered(self, explainer: Explainer, task: Task, seed: int) -> None:
        """Train a built explainer and record the cost in its `fit_cost`."""
        with exclusive(task.model), metering(task.model, explainer.fit_cost):
            self.train(explainer, task, seed)
        explainer.config = self
        explainer.eval()

    @property
    def effort(self) -> int | None:
        """Number of training steps, or None for a method without any."""
        return getattr(self, "steps", None)

    def with_effort(self, steps: int) -> "Method":
        """Return the method with another number of training steps."""
        return cast(Method, replace(cast(Any, self), steps=steps))

    def site_of(self, task: Task, site: str | None) -> str:
        """Return `site` after checking that the task has it, or the token embedding for None."""
        chosen = site if site is not None else task.sites[0]
        task.site(chosen)
        return chosen
