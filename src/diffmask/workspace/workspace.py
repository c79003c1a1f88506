"""A task that is already there, as a recipe: what is made for it is found again by digests of model and rows.

A workbench: tasks, explainers and attributions, made when first asked for and found again afterwards.
"""

import hashlib
import time
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar

from diffmask.core.batch import Attribution, Batch
from diffmask.core.capabilities import training_choices
from diffmask.core.config import digest_of
from diffmask.core.explainer import Explainer, Method
from diffmask.core.resources import Cost
from diffmask.core.store import Artefact, Store, read
from diffmask.core.task import Task, TaskConfig
from diffmask.errors import StoreError
from diffmask.workspace.sharding import explain_in_shards, explained_artefact


@dataclass(frozen=True, kw_only=True)
class InMemoryTaskConfig(TaskConfig):
    """A live task; its digest is that of its model and rows, of an erased token and of how it is trained again."""

    name: ClassVar[str] = "given"

    fingerprint: str
    """Of the model and its sites."""
    rows: str
    """Of every split's rows."""
    training_rows: str
    """Of every split's rows but those of `test`, from which nothing learns."""
    mask_token: int | None
    training: str
    """Of the choices with which it would be trained again."""
    task: Task = field(repr=False, compare=False)
    """The task itself; no part of the recipe's digest."""

    @staticmethod
    def of(task: Task) -> "InMemoryTaskConfig":
        """The recipe that stands for a task."""
        rows = {split: _digest(batch) for split, batch in task.data.items()}
        return InMemoryTaskConfig(
            fingerprint=task.fingerprint(),
            rows=digest_of(rows),
            training_rows=digest_of({split: digest for split, digest in rows.items() if split != "test"}),
            mask_token=task.mask_token,
            training=digest_of(training_choices(task)),
            task=task,
        )

    @property
    def training_digest(self) -> str:
        """The same for any held-out rows."""
        return digest_of([self.name, self.fingerprint, self.training_rows, self.mask_token])

    def to_dict(self) -> dict[str, Any]:
        """Plain values only."""
        shown = ("fingerprint", "rows", "mask_token", "training")
        return {"name": self.name, **{name: getattr(self, name) for name in shown}}

    @property
    def label(self) -> str:
        """The model's class."""
        return type(self.task.model).__name__

    def build(self, seed: int) -> Task:
        """The task as it is, whatever the seed."""
        return self.task


def _digest(batch: Batch) -> str:
    found = hashlib.sha256()

    def note(value: Any) -> Any:
        found.update(str(tuple(value.shape)).encode() + value.detach().cpu().contiguous().numpy().tobytes())
        return value

    batch.map(note)
    return found.hexdigest()


@dataclass(frozen=True)
class CachedAttribution:
    """The attributions of one split, with what they and the fit behind them cost."""

    attribution: Attribution
    cost: Cost
    fit_cost: Cost

    def figures(self) -> dict[str, int | float]:
        """The cost as a record keeps it."""
        return {**self.cost.as_dict(), "fit_seconds": round(self.fit_cost.seconds, 3)}


@dataclass(frozen=True)
class Workspace:
    """One task at one seed, over a store."""

    store: Store
    task_config: TaskConfig
    seed: int
    _live: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)
    shard_size: int | None = None
    """Rows whose scores are kept as soon as they are known, where a split is explained part by part."""

    @staticmethod
    def over(store: Store, task: Task, seed: int = 0, shard_size: int | None = None) -> "Workspace":
        """A bench over a task that is already there."""
        return Workspace(store, InMemoryTaskConfig.of(task), seed, {"task": task}, shard_size)

    def __reduce__(self) -> tuple[Any, ...]:
        """Benches travel to workers without what is live on them."""
        return _arrived, (self.store, self.task_config, self.seed, self.shard_size)

    def task_digest(self) -> str:
        """A name for the trained task."""
        return digest_of(["task", self.task_config.digest, self.seed])

    def run_key(self, method: Method) -> str:
        """A name for a method fitted to the task."""
        return digest_of(["fit", self.task_digest(), method.digest])

    def training_digest(self) -> str:
        """A name for the trained model and the rows to learn from: the same whatever rows are then explained."""
        return digest_of(["task", self.task_config.training_digest, self.seed])

    def explainer_key(self, method: Method) -> str:
        """A name for what a method learned from the task."""
        return digest_of(["fit", self.training_digest(), method.digest])

    def explain_digest(self, method: Method, split: str) -> str:
        """A name for a split's attributions."""
        return digest_of(["explain", self.run_key(method), split])

    def build(self) -> Task:
        """The task with an untrained model."""
        return self.task_config.build(self.seed)

    def train(self, task: Task) -> None:
        """Train the model in place."""
        self.task_config.train(task, self.seed)

    def task(self) -> Task:
        """The trained task."""
        if "task" not in self._live:
            task = self.build()

            def make() -> Artefact:
                start = time.perf_counter()
                self.train(task)
                return Artefact(task.model.state_dict(), {"seconds": time.perf_counter() - start})

            self.store.get_or_make("task", self.task_digest(), make, lambda found: _load(task, found))
            self._live["task"] = task
        return self._live["task"]

    def explainer(self, method: Method) -> Explainer:
        """The method fitted to the task; it stays live as long as the bench."""
        digest = self.explainer_key(method)
        if digest not in self._live:
            self._live[digest] = self._fitted(method)
        return self._live[digest]

    def use_explainer(self, method: Method, explainer: Explainer) -> None:
        """Take the method as it was fitted elsewhere in place of a fit of its own; the store never sees it."""
        self._live[self.explainer_key(method)] = explainer

    def _fitted(self, method: Method) -> Explainer:
        task = self.task()
        explainer = method.build(task, self.seed)

        def make() -> Artefact:
            method.train_metered(explainer, task, self.seed)
            return explainer_artefact(explainer)

        def accept(found: Artefact) -> None:
            require_model(found, task, "what the store holds")
            restore(explainer, found)

        self.store.get_or_make("fit", self.explainer_key(method), make, accept)
        explainer.config = method
        return explainer

    def diagnostics(self, method: Method) -> dict[str, Any]:
        """What a fit found out about itself; nothing where the store has no fit any more."""
        digest = self.explainer_key(method)
        if not self.store.has("fit", digest):
            return {}
        return dict(read(self.store.path("fit", digest), "fit", digest).values["diagnostics"])

    def explained(self, method: Method, split: str) -> CachedAttribution:
        """The method's attributions of a split."""

        def make() -> Artefact:
            batch = self.task().data[split]
            if self.shard_size is not None:
                digest = self.explain_digest(method, split)
                return explain_in_shards(self.store, digest, batch, self.shard_size, lambda: self.explainer(method))
            explainer = self.explainer(method)
            explainer.cost = Cost()
            return explained_artefact(explainer, explainer(batch))

        kept = self.store.get_or_make("explain", self.explain_digest(method, split), make)
        attribution = Attribution(kept.tensors["scores"], kept.tensors.get("by_layer"), tuple(kept.values["layers"]))
        return CachedAttribution(attribution, Cost(**kept.values["cost"]), Cost(**kept.values["fit_cost"]))


_LAST: list[Workspace] = []


def _arrived(store: Store, task_config: TaskConfig, seed: int, shard_size: int | None) -> Workspace:
    """A bench that came to this process; the last one to come if it is the same, so that its task is loaded once."""
    workspace = Workspace(store, task_config, seed, shard_size=shard_size)
    if not _LAST or _LAST[0] != workspace:
        _LAST[:] = [workspace]
    return _LAST[0]


def _load(task: Task, artefact: Artefact) -> None:
    try:
        task.model.load_state_dict(dict(artefact.tensors))
    except RuntimeError as error:
        raise StoreError(f"what was trained does not fit {type(task.model).__name__}: {error}") from None


def explainer_artefact(explainer: Explainer) -> Artefact:
    """What an explainer learned, with the fingerprint of the model it learned it from."""
    values = {
        "fingerprint": explainer.task.fingerprint(),
        "diagnostics": explainer.diagnostics,
        "fit_cost": asdict(explainer.fit_cost),
    }
    return Artefact(explainer.state_dict(), values)


def require_model(artefact: Artefact, task: Task, what: str) -> None:
    """An explainer says nothing of a model that it was not fitted to."""
    fitted, here = artefact.values.get("fingerprint", "unknown"), task.fingerprint()
    if fitted != here:
        raise StoreError(
            f"{what} was fitted to model {fitted}; this task's model is {here}; "
            "load the explainer with the model it was fitted to, or fit it again"
        )


def restore(explainer: Explainer, artefact: Artefact) -> None:
    """Put what was learned back into a freshly built explainer of the same recipe."""
    try:
        explainer.load_state_dict(dict(artefact.tensors))
    except RuntimeError as error:
        raise StoreError(f"what was learned does not fit {type(explainer).__name__}: {error}") from None
    explainer.diagnostics = artefact.values["diagnostics"]
    explainer.fit_cost = Cost(**artefact.values["fit_cost"])
    explainer.eval()
