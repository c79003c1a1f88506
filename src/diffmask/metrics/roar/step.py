"""Steps of a ROAR curve: masked data, a model trained on it, and its score, each computed once.

A step computes missing artefacts that it needs: the previous step, the unmasked model and the scores of the tokens.
"""

import time
from collections.abc import Mapping
from copy import copy, deepcopy
from dataclasses import asdict, dataclass

from diffmask.core.batch import Batch
from diffmask.core.capabilities import Retrainable, require, require_labels
from diffmask.core.config import digest_of
from diffmask.core.explainer import Method
from diffmask.core.store import Artefact
from diffmask.core.task import Task
from diffmask.errors import ConfigError, StoreError
from diffmask.methods.baselines import Random
from diffmask.metrics.roar.masking import (
    MasksBySplit,
    RoarProtocol,
    ScoresBySplit,
    apply_masks,
    no_masks,
    published_random_scores,
)
from diffmask.results.records import Record
from diffmask.workspace.node import Address, Node


@dataclass(frozen=True)
class StepScore:
    """Score of a model on masked test rows."""

    score: float
    rows: int
    by_row: tuple[float, ...] = ()
    """Contribution of each row, if the score is their mean; else empty."""


@dataclass(frozen=True)
class RoarStep(Node):
    """One point of a curve: k tokens, or k percent of the tokens, masked by a method on a task at a seed."""

    method: Method
    protocol: RoarProtocol
    k: int

    def __post_init__(self) -> None:
        counted = self.protocol.strategy == "count"
        if self.k < 0 or (self.k > 100 and not counted):
            allowed = "a number of tokens is at least 0" if counted else "a percentage is from 0 to 100"
            raise ConfigError(f"roar: {self.k} cannot be masked; {allowed}")

    @property
    def masks_everything(self) -> bool:
        """Whether all maskable tokens are masked, which does not depend on the method."""
        return self.protocol.strategy == "quantile" and self.k == 100

    @property
    def recursive(self) -> bool:
        """Whether the scores come from the previous step. Random scores do not depend on a model."""
        return self.protocol.recursive and not isinstance(self.method, Random)

    @property
    def uses_published_draws(self) -> bool:
        """Whether the scores are the published random draws, so that no method is run."""
        return isinstance(self.method, Random) and self.protocol.random_draws == "published"

    @property
    def parent(self) -> "RoarStep":
        """Step whose model and data the scores come from."""
        before = self.k - self.protocol.step_size if self.recursive else 0
        return RoarStep(self.workspace, self.method, self.protocol, max(before, 0))

    def lineage(self) -> list["RoarStep"]:
        """Return the steps that are trained for this one, itself last. Distant points of a curve have several."""
        alone = self.k == 0 or self.masks_everything or self.parent.k == 0
        return [self] if alone else [*self.parent.lineage(), self]

    def masked_digest(self) -> str:
        """Return the cache key of the masked data. All methods share it if nothing or everything is masked."""
        if self.k == 0 or self.masks_everything:
            return digest_of(["masked", self.workspace.task_digest(), "all" if self.k else "none"])
        before = self.parent.masked_digest()
        importances = self.parent.importance_digest(before)
        return digest_of(["masked", before, importances, self.protocol.strategy, self.k])

    def importance_digest(self, masked: str | None = None) -> str:
        """Return the cache key of the scores of this step's model; `masked` is that of the data, if it is known."""
        options = [self.method.digest, self.protocol.target, self.protocol.absolute]
        draws = [self.protocol.random_draws] if isinstance(self.method, Random) else []
        return digest_of(["importance", self.model_digest(masked), *options, *draws])

    def model_digest(self, masked: str | None = None) -> str:
        """Return the cache key of the model trained on the masked data."""
        return self.workspace.task_digest() if self.k == 0 else digest_of(["retrained", masked or self.masked_digest()])

    def masks(self) -> MasksBySplit:
        """Return the masks of all splits."""
        task = self.workspace.task()
        if self.k == 0:
            return no_masks(task.data)
        if self.masks_everything:
            retrainable = require(task, Retrainable, "ROAR")
            return {split: retrainable.roar_maskable(batch) for split, batch in task.data.items()}

        def make() -> Artefact:
            parent = self.parent
            masks = self.protocol.select_tokens(task, task.data, parent.importances(), parent.masks(), self.k)
            return Artefact(masks, {"k": self.k, "method": self.method.to_dict(), "protocol": asdict(self.protocol)})

        return self.workspace.store.get_or_make("masked", self.masked_digest(), make).tensors

    def data(self) -> dict[str, Batch]:
        """Return all splits with their tokens masked."""
        task = self.workspace.task()
        return apply_masks(task, task.data, self.masks())

    def task(self) -> Task:
        """Return the task on the masked data with the model trained on it."""
        task = self.workspace.task()
        if self.k == 0:
            return task
        data = self.data()

        def make() -> Artefact:
            start = time.perf_counter()
            trained = require(task, Retrainable, "ROAR").retrain(data, self.workspace.seed)
            return Artefact(trained.model.state_dict(), {"seconds": time.perf_counter() - start})

        artefact = self.workspace.store.get_or_make("retrained", self.model_digest(), make)
        return with_model(task, artefact, data)

    def importances(self) -> ScoresBySplit:
        """Return the scores of all tokens for the step's model, shared by all following steps."""
        return self.workspace.store.get_or_make("importance", self.importance_digest(), self._importances).tensors

    def _importances(self) -> Artefact:
        if self.uses_published_draws:
            return Artefact(published_random_scores(self.workspace.task().data, self.workspace.seed), {})
        task = self.task()
        require_labels(task, task.data)
        explainer = self.method.fit(task, self.workspace.seed, keep_interrupted=False)
        scores, seconds = {}, {}
        for split, batch in task.data.items():
            start = time.perf_counter()
            target = batch.target if self.protocol.target == "gold" else None
            scores[split] = self.protocol.importance(explainer(batch, target).scores)
            seconds[split] = time.perf_counter() - start
        return Artefact(
            scores, {"seconds": seconds, "cost": asdict(explainer.cost), "fit_seconds": explainer.fit_cost.seconds}
        )

    def score(self) -> StepScore:
        """Return the score of the step's model on the masked test rows."""

        def make() -> Artefact:
            task = self.task()
            test = task.data["test"]
            by_row = require(task, Retrainable, "ROAR").per_example_score(test)
            if by_row is None:
                return Artefact({}, {"score": task.score(test), "rows": len(test)})
            return Artefact({"by_row": by_row}, {"score": float(by_row.mean()), "rows": len(test)})

        artefact = self.workspace.store.get_or_make(*self.address, make)
        by_row = artefact.tensors.get("by_row")
        return StepScore(**artefact.values, by_row=() if by_row is None else tuple(by_row.tolist()))

    @property
    def address(self) -> Address:
        """Kind and digest of the score."""
        return "score", digest_of(["score", self.model_digest(), self.masked_digest()])

    @property
    def needs(self) -> tuple[Address, ...]:
        """The unmasked model, and the previous step or the scores for the unmasked model."""
        unmasked = ("task", self.workspace.task_digest())
        if self.k == 0 or self.masks_everything:
            return (unmasked,)
        parent = self.parent
        return (unmasked, parent.address if parent.k else ImportanceNode(self.workspace, parent).address)

    @property
    def trains(self) -> bool:
        """Whether a model is trained. The unmasked model exists already."""
        return self.k > 0

    @property
    def explained_by(self) -> Method | None:
        """Method that explains the previous step's model. The unmasked model is explained by an `ImportanceNode`."""
        return self.method if len(self.lineage()) > 1 else None

    @property
    def label(self) -> str:
        """Readable description with the amount and the method."""
        if self.k == 0:
            return f"score {self.task_label}, nothing masked"
        unit = " %" if self.protocol.strategy == "quantile" else " tokens"
        recursively = ", recursively" if self.recursive else ""
        by = "" if self.masks_everything else f" by {self.method.label}{recursively}"
        return f"train {self.task_label}, {self.k}{unit} masked{by}"

    def run(self) -> list[Record]:
        """Mask the data, train on it and score the model."""
        self.score()
        return []


@dataclass(frozen=True)
class ImportanceNode(Node):
    """Scores of all tokens for a step's model."""

    step: RoarStep

    @property
    def address(self) -> Address:
        """Kind and digest of the scores."""
        return "importance", self.step.importance_digest()

    @property
    def needs(self) -> tuple[Address, ...]:
        """The unmasked model, and the step's model if it is another."""
        return (("task", self.workspace.task_digest()), *(() if self.step.k == 0 else (self.step.address,)))

    @property
    def explained_by(self) -> Method | None:
        """The step's method, or None for published random draws."""
        return None if self.step.uses_published_draws else self.step.method

    @property
    def label(self) -> str:
        """Readable description with method and task."""
        return f"importances by {self.step.method.label} of {self.task_label}"

    def run(self) -> list[Record]:
        """Explain all splits."""
        self.step.importances()
        return []


def with_model(task: Task, artefact: Artefact, data: Mapping[str, Batch]) -> Task:
    """Return a copy of the task with trained weights and other data."""
    other = copy(task)
    other.model, other.data = deepcopy(task.model), data
    try:
        other.model.load_state_dict(dict(artefact.tensors))
    except RuntimeError as error:
        raise StoreError(f"the stored weights do not fit {type(task.model).__name__}: {error}") from None
    return other
