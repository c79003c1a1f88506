"""The frozen model's own pass over some rows, nothing erased: what masks are read from and judged against.

A `Method` is a frozen recipe; fitted to a task it is an `Explainer`, which maps a batch to an attribution.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, cast

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor, nn
from torch.distributions import Distribution
from torch.nn.functional import pad

from diffmask.core.batch import Attribution, Batch
from diffmask.core.config import Config
from diffmask.core.distributions import logits, predicted_outcome
from diffmask.core.resources import AdaptiveBatchSize, Cost, metering, release_free_memory
from diffmask.core.task import Task
from diffmask.core.training import progress_bar
from diffmask.errors import InputError, TaskError

States = dict[str, Float[Tensor, "row token width"]]


@dataclass(frozen=True)
class ForwardTrace:
    """Some rows, the model's answer to them, and its states at every site."""

    rows: Batch
    answer: Distribution
    states: States

    @staticmethod
    def of(task: Task, rows: Batch) -> "ForwardTrace":
        """One pass."""
        return ForwardTrace(rows, *task.trace(rows))


def iter_traces(task: Task, rows: Batch, size: int = 64) -> Iterator[ForwardTrace]:
    """Rows in order of length, some at a time."""
    order = rows.present.sum(dim=1).argsort(stable=True)
    return (ForwardTrace.of(task, rows[some].trim()) for some in order.split(size))


def pool_states(
    state: Float[Tensor, "row token width"], present: Bool[Tensor, "row token"]
) -> tuple[Float[Tensor, "row width"], Float[Tensor, "row width"], Float[Tensor, "row width"]]:
    """A row's states at its first and last real token, where models read their answer, and on average."""
    real = present.to(state.dtype)
    rows = torch.arange(len(state), device=state.device)
    last = present.shape[1] - 1 - present.flip(1).to(torch.uint8).argmax(dim=1)
    mean = ((real / real.sum(dim=1, keepdim=True))[:, None] @ state).squeeze(1)  # no second copy of the states
    return state[rows, present.to(torch.uint8).argmax(dim=1)], state[rows, last], mean


class Explainer(nn.Module, ABC):
    """A method fitted to one task. What it learned is its `state_dict`; the model itself is not part of it."""

    def __init__(self, task: Task) -> None:
        super().__init__()
        self.task = task
        self.fit_cost = Cost()
        """What the fit took."""
        self.cost = Cost()
        """What all explanations so far took."""
        self.diagnostics: dict[str, Any] = {}
        """What the fit found out about itself, by site."""
        self.config: Method | None = None
        """The method it was fitted by."""

    @abstractmethod
    def explain(self, batch: Batch, target: Shaped[Tensor, "row *event"]) -> Attribution:
        """Scores of every token of a few rows, for the outcome `target` of each."""

    def forward(
        self, batch: Batch, target: Shaped[Tensor, "row *event"] | int | None = None, *, rows_at_once: int = 256
    ) -> Attribution:
        """Scores of every token of the batch, for an outcome a row or a class; by default for the model's own answer.

        Rows are taken in order of length, so that little padding is computed, and fewer at once where memory runs out.
        Positions that are not maskable score 0; `diffmask.core.batch.ranking` puts them last whatever the others score.
        """
        outcome = _outcome(batch, target)

        def explain(part: Batch, rows: Tensor) -> Attribution:
            return self.explain(part, self.outcome(part) if outcome is None else outcome[rows])

        parts, back = self._by_length(batch, rows_at_once, explain)
        return Attribution.join(parts)[back]

    def explain_with_answer(
        self, batch: Batch, *, rows_at_once: int = 256
    ) -> tuple[Float[Tensor, "row *feature"], Attribution]:
        """The numbers of the model's own answers, and the scores for them; memory does not grow with the rows."""
        numbers: dict[int, Tensor] = {}

        def explain(part: Batch, rows: Tensor) -> Attribution:
            if numbers:
                release_free_memory()
            answer, attribution = self.answer(part)
            numbers[int(rows[0])] = logits(answer)
            return attribution

        parts, back = self._by_length(batch, rows_at_once, explain)
        return torch.cat(list(numbers.values()))[back], Attribution.join(parts)[back]

    def _by_length(
        self, batch: Batch, rows_at_once: int, explain: Callable[[Batch, Tensor], Attribution]
    ) -> tuple[list[Attribution], Int[Tensor, " row"]]:
        """Attributions of rows in order of length, some at a time, and the way back to the batch's order."""
        self.task.check(batch)
        order = batch.present.sum(dim=1).argsort(stable=True)

        def work(items: slice) -> Attribution:
            part = batch[order[items]].trim()
            found = _widen(explain(part, order[items]), part, batch.tokens.shape[1])
            bar.update(len(part))
            return found

        with metering(self.task.model, self.cost), progress_bar(order, "explain") as bar:
            return AdaptiveBatchSize(rows_at_once).split(len(batch), work), order.argsort()

    def answer(self, batch: Batch) -> tuple[Distribution, Attribution]:
        """The model's own answer and the scores for it; a method that sees the answer on its way asks only once."""
        with torch.no_grad():
            answer = self.task.predict(batch)
        return answer, self.explain(batch, predicted_outcome(answer))

    @torch.no_grad()
    def outcome(self, batch: Batch) -> Shaped[Tensor, "row *event"]:
        """What is explained where nothing else is asked for: the model's own decision."""
        return predicted_outcome(self.task.predict(batch))

    @torch.no_grad()
    def predict_kept(self, batch: Batch, kept: Bool[Tensor, "row token"], layer: str | None) -> Distribution:
        """The answer when every maskable token that is not kept is erased.

        Here: the mask token in its place or, in a vocabulary without one, a zero embedding.
        """
        erased = batch.maskable & ~kept
        if self.task.mask_token is not None:
            return self.task.predict(replace(batch, tokens=batch.tokens.masked_fill(erased, self.task.mask_token)))
        return self.task.predict(batch, {self.task.sites[0]: lambda state: state.masked_fill(erased[..., None], 0.0)})

    def save_pretrained(self, folder: str | Path) -> None:
        """Write what was learned, and how, without the model; `diffmask.load_explainer` reads it."""
        from diffmask import save_explainer

        save_explainer(self, self._known_config(), folder)

    def push_to_hub(self, repository: str, *, private: bool = False) -> str:
        """Upload to the hub what `save_pretrained` writes; returns where it is."""
        from diffmask import push_explainer

        return push_explainer(self, self._known_config(), repository, private=private)

    def _known_config(self) -> "Method":
        if self.config is None:
            raise TaskError("this explainer was not made by Method.fit: save it with diffmask.save_explainer")
        return self.config

    def __call__(self, inputs: Any, *choices: Any, **named: Any) -> Any:
        """A batch's attribution; what is not a batch (a text, texts), as the task explains it."""
        if isinstance(inputs, Batch):
            return super().__call__(inputs, *choices, **named)
        return self.task.explain(self, inputs)


def _outcome(batch: Batch, target: Shaped[Tensor, "row *event"] | int | None) -> Shaped[Tensor, "row *event"] | None:
    """One outcome a row."""
    if isinstance(target, int):
        return torch.full_like(batch.target, target)
    if target is not None and len(target) != len(batch):
        raise InputError(f"{len(target)} targets for {len(batch)} rows; give one a row, one class, or none")
    return target


def _widen(attribution: Attribution, batch: Batch, width: int) -> Attribution:
    """Scores of a trimmed batch, zero where nothing may be masked, padded back to `width` tokens."""
    missing = (0, width - batch.tokens.shape[1])
    scores = pad(attribution.scores.masked_fill(~batch.maskable, 0.0), missing)
    by_layer = attribution.by_layer
    if by_layer is not None:
        by_layer = pad(by_layer.masked_fill(~batch.maskable[:, None], 0.0), missing)
    return Attribution(scores, by_layer, attribution.layers)


@dataclass(frozen=True, kw_only=True)
class Method(Config, ABC):
    """The choices that make an explainer; `fit` makes it."""

    kind: ClassVar[str] = "method"

    @abstractmethod
    def build(self, task: Task, seed: int) -> Explainer:
        """Allocate the explainer for a task; what it needs of the task is checked here."""

    def train(self, explainer: Any, task: Task, seed: int) -> None:
        """Learn from the task's training rows, where there is something to learn."""

    def fit(self, task: Task, seed: int = 0) -> Explainer:
        """An explainer ready to explain; the same seed gives the same one, to the bit."""
        explainer = self.build(task, seed)
        self.teach(explainer, task, seed)
        return explainer

    def teach(self, explainer: Explainer, task: Task, seed: int) -> None:
        """Train a built explainer and count what it takes."""
        with metering(task.model, explainer.fit_cost):
            self.train(explainer, task, seed)
        explainer.config = self
        explainer.eval()

    @property
    def effort(self) -> int | None:
        """The steps of its fit; None where a fit has none."""
        return getattr(self, "steps", None)

    def with_effort(self, steps: int) -> "Method":
        """The same with so many steps in place of its own."""
        return cast(Method, replace(cast(Any, self), steps=steps))

    def site_of(self, task: Task, site: str | None) -> str:
        """The site asked for, or the token embedding."""
        chosen = site if site is not None else task.sites[0]
        task.site(chosen)
        return chosen
