"""The steps of a ROAR curve: masked data, a model trained on it, its score. Each is made once and found again.

A step builds what it needs and does not find: the step before it, the unmasked model, the importances.
"""

import time
from collections.abc import Mapping
from copy import copy, deepcopy
from dataclasses import asdict, dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from diffmask.core.batch import Batch
from diffmask.core.capabilities import Retrainable, require, require_labels
from diffmask.core.config import digest_of
from diffmask.core.explainer import Method
from diffmask.core.store import Artefact
from diffmask.core.task import Task
from diffmask.errors import ConfigError, StoreError, TaskError
from diffmask.methods.baselines import Random
from diffmask.metrics.roar.masking import Strategy, most_important, number_to_mask, random_importances, with_masks
from diffmask.results.records import Record
from diffmask.workspace.node import Node

# Splits have sizes of their own: an axis that begins with _ is not compared with others of its name.
Masks = Mapping[str, Bool[Tensor, "_row _token"]]
Scores = Mapping[str, Float[Tensor, "_row _token"]]


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """How tokens are removed."""

    strategy: Strategy = "quantile"
    """Percent of the tokens that may be masked, or so many of them."""
    recursive: bool = False
    """Whether importances come from the model and the masked data of the step before."""
    step_size: int = 10
    """From one recursive step to the next."""
    target: Literal["gold", "predicted"] = "gold"
    """The outcome whose importances are taken, in every split."""
    absolute: bool = True
    """Whether a token that speaks against the outcome is as important as one that speaks for it."""

    def __post_init__(self) -> None:
        if self.step_size < 1:
            raise ConfigError(f"a recursive step of {self.step_size} leads nowhere; it is at least 1")


@dataclass(frozen=True)
class Step(Node):
    """One point of a curve: k tokens, or k percent, masked by a method on a task at a seed."""

    method: Method
    protocol: Protocol
    k: int

    def __post_init__(self) -> None:
        counted = self.protocol.strategy == "count"
        if self.k < 0 or (self.k > 100 and not counted):
            wanted = "tokens are 0 or more" if counted else "percent are 0 to 100"
            raise ConfigError(f"{self.k} cannot be masked: {wanted}")

    @property
    def everything(self) -> bool:
        """Whether all that may be masked is masked, whatever the method says."""
        return self.protocol.strategy == "quantile" and self.k == 100

    @property
    def parent(self) -> "Step":
        """The step whose model and data the importances come from."""
        before = self.k - self.protocol.step_size if self.recursive else 0
        return Step(self.workspace, self.method, self.protocol, max(before, 0))

    def lineage(self) -> list["Step"]:
        """The steps that are retrained for this one, itself the last: between points far apart there are others."""
        alone = self.k == 0 or self.everything or self.parent.k == 0
        return [self] if alone else [*self.parent.lineage(), self]

    @property
    def random(self) -> bool:
        """Whether this is the floor of all curves: an order of the data, drawn once, not an explanation of its rows."""
        return isinstance(self.method, Random)

    @property
    def recursive(self) -> bool:
        """A random order has nothing to learn from a step before it."""
        return self.protocol.recursive and not self.random

    def masked_digest(self) -> str:
        """A name for the masked data; the same for every method where nothing or everything is masked."""
        if self.k == 0 or self.everything:
            return digest_of(["masked", self.workspace.task_digest(), "all" if self.k else "none"])
        before = self.parent.masked_digest()
        importances = self.parent.importance_digest(before)
        return digest_of(["masked", before, importances, self.protocol.strategy, self.k])

    def importance_digest(self, masked: str | None = None) -> str:
        """A name for the importances that this step's model gives its data; `masked`: the data's, where it is known."""
        chosen = [self.method.digest, self.protocol.target, self.protocol.absolute]
        return digest_of(["importance", self.model_digest(masked), *chosen])

    def model_digest(self, masked: str | None = None) -> str:
        """A name for the model trained on the masked data."""
        return self.workspace.task_digest() if self.k == 0 else digest_of(["retrained", masked or self.masked_digest()])

    def masks(self) -> Masks:
        """Where the mask token stands, in each split."""
        data = self.workspace.task().data
        if self.k == 0:
            return {split: torch.zeros_like(batch.maskable) for split, batch in data.items()}
        if self.everything:
            return {split: self._retrainable().roar_maskable(batch) for split, batch in data.items()}
        kept = self.workspace.store.get_or_make("masked", self.masked_digest(), self._mask)
        return kept.tensors

    def _mask(self) -> Artefact:
        found = self._top(self.parent.importances(), self.workspace.task().data, self.parent.masks())
        return Artefact(found, {"k": self.k, "method": self.method.to_dict(), "protocol": asdict(self.protocol)})

    def _top(self, scores: Scores, data: Mapping[str, Batch], before: Masks) -> Masks:
        found = {}
        for split, batch in data.items():
            maskable = self._retrainable().roar_maskable(batch)
            number = number_to_mask(maskable, self.k, self.protocol.strategy)
            found[split] = most_important(scores[split], maskable, before[split], number)
        return found

    def masked_by(self, scores: Scores, data: Mapping[str, Batch]) -> dict[str, Batch]:
        """Other data masked by other importances, as much as in this step."""
        nothing = {split: torch.zeros_like(batch.maskable) for split, batch in data.items()}
        token = self._mask_token()
        return {
            split: with_masks(data[split], masked, token) for split, masked in self._top(scores, data, nothing).items()
        }

    def data(self) -> dict[str, Batch]:
        """The splits with masks in place."""
        token, data = self._mask_token(), self.workspace.task().data
        return {split: with_masks(data[split], masked, token) for split, masked in self.masks().items()}

    def _retrainable(self) -> Retrainable:
        return require(self.workspace.task(), Retrainable, "ROAR")

    def _mask_token(self) -> int:
        task = self.workspace.task()
        if task.mask_token is None:
            raise TaskError(f"{type(task).__name__} has no mask token, which ROAR puts in place of a word")
        return task.mask_token

    def task(self) -> Task:
        """The task on the masked data, with the model trained on it."""
        if self.k == 0:
            return self.workspace.task()
        data = self.data()

        def make() -> Artefact:
            start = time.perf_counter()
            trained = self._retrainable().retrain(data, self.workspace.seed)
            return Artefact(trained.model.state_dict(), {"seconds": time.perf_counter() - start})

        kept = self.workspace.store.get_or_make("retrained", self.model_digest(), make)
        return with_model(self.workspace.task(), kept, data)

    def importances(self) -> Scores:
        """How important the step's model holds each token of its data; kept, and shared by all that follow."""
        kept = self.workspace.store.get_or_make("importance", self.importance_digest(), self._importances)
        return kept.tensors

    def _importances(self) -> Artefact:
        if self.random:
            return Artefact(random_importances(self.workspace.task().data, self.workspace.seed), {})
        task = self.task()
        require_labels(task, task.data)
        explainer = self.method.fit(task, self.workspace.seed)
        found, seconds = {}, {}
        for split, batch in task.data.items():
            start = time.perf_counter()
            wanted = batch.target if self.protocol.target == "gold" else None
            found[split] = self.ranked(explainer(batch, wanted).scores)
            seconds[split] = time.perf_counter() - start
        return Artefact(
            found, {"seconds": seconds, "cost": asdict(explainer.cost), "fit_seconds": explainer.fit_cost.seconds}
        )

    def ranked(self, scores: Float[Tensor, "row token"]) -> Float[Tensor, "row token"]:
        """A method's scores as tokens are ranked by: without their sign, unless the protocol minds it."""
        return scores.abs() if self.protocol.absolute else scores

    def score(self) -> "Score":
        """The model's own score on the masked test rows."""

        def make() -> Artefact:
            task = self.task()
            test = task.data["test"]
            by_row = require(task, Retrainable, "ROAR").per_example_score(test)
            if by_row is None:
                return Artefact({}, {"score": task.score(test), "rows": len(test)})
            return Artefact({"by_row": by_row}, {"score": float(by_row.mean()), "rows": len(test)})

        kept = self.workspace.store.get_or_make(*self.address, make)
        by_row = kept.tensors.get("by_row")
        return Score(**kept.values, by_row=() if by_row is None else tuple(by_row.tolist()))

    @property
    def address(self) -> tuple[str, str]:
        """Where the score is kept."""
        return "score", digest_of(["score", self.model_digest(), self.masked_digest()])

    @property
    def needs(self) -> tuple[tuple[str, str], ...]:
        """The unmasked model; the step before, where importances come from it; else the shared importances."""
        unmasked = ("task", self.workspace.task_digest())
        if self.k == 0 or self.everything:
            return (unmasked,)
        return (unmasked, self.parent.address if self.parent.k else Importances(self.workspace, self.parent).address)

    @property
    def trains(self) -> bool:
        """The unmasked model is there already."""
        return self.k > 0

    @property
    def explained_by(self) -> Method | None:
        """Where it builds on a step, that step's model is explained first; the unmasked one is explained beside it."""
        return self.method if len(self.lineage()) > 1 else None

    @property
    def label(self) -> str:
        """What is masked, how much of it, and how."""
        where = self.task_label
        if self.k == 0:
            return f"score {where}, nothing masked"
        unit = " %" if self.protocol.strategy == "quantile" else " tokens"
        how = ", recursively" if self.recursive else ""
        by = "" if self.everything else f" by {self.method.label}{how}"
        return f"train {where}, {self.k}{unit} masked{by}"

    def run(self) -> list[Record]:
        """Mask the data, train on it, and score the model."""
        self.score()
        return []


@dataclass(frozen=True)
class Importances(Node):
    """How important a step's model holds every token of its data."""

    step: Step

    @property
    def address(self) -> tuple[str, str]:
        """Where they are kept."""
        return "importance", self.step.importance_digest()

    @property
    def needs(self) -> tuple[tuple[str, str], ...]:
        """The step's model."""
        return (("task", self.workspace.task_digest()), *(() if self.step.k == 0 else (self.step.address,)))

    @property
    def explained_by(self) -> Method | None:
        """A random order explains nothing."""
        return None if self.step.random else self.step.method

    @property
    def label(self) -> str:
        """Whose importances of what."""
        return f"importances by {self.step.method.label} of {self.task_label}"

    def run(self) -> list[Record]:
        """Explain all splits."""
        self.step.importances()
        return []


@dataclass(frozen=True)
class Score:
    """A model's score on masked test rows."""

    score: float
    rows: int
    by_row: tuple[float, ...] = ()
    """Each row's part in the score, where it is their mean."""


def with_model(task: Task, trained: Artefact, data: Mapping[str, Batch]) -> Task:
    """The same task with a model trained before, on other data."""
    other = copy(task)
    other.model, other.data = deepcopy(task.model), data
    try:
        other.model.load_state_dict(dict(trained.tensors))
    except RuntimeError as error:
        raise StoreError(f"what was trained does not fit {type(task.model).__name__}: {error}") from None
    return other
