"""A workspace: a task at a seed over a store. It makes tasks, explainers and attributions on demand and caches them."""

import hashlib
import pickle
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from diffmask.core.batch import Attribution, Batch
from diffmask.core.capabilities import training_choices
from diffmask.core.config import digest_of
from diffmask.core.explainer import Explainer, Method
from diffmask.core.resources import Cost
from diffmask.core.store import Artefact, Store, read_artefact
from diffmask.core.task import Task, TaskConfig
from diffmask.datasets.loading import packaged_name
from diffmask.errors import DiffMaskError, StoreError
from diffmask.workspace.sharding import Shards, attribution_artefact, explain_in_shards


@dataclass(frozen=True, kw_only=True)
class InMemoryTaskConfig(TaskConfig):
    """Config of a task that is loaded already. Its cache key hashes the model's weights and the data."""

    name: ClassVar[str] = "in-memory"

    fingerprint: str
    """Digest of the model and its sites."""
    rows: str
    """Digest of the rows of every split."""
    training_rows: str
    """Digest of the rows of every split except `test`, which no method learns from."""
    mask_token: int | None
    """Token that replaces an erased one."""
    training: str
    """Digest of the choices by which `Task.retrain` trains."""
    model_name: str
    """Name of the model, for labels: its folder or hub id, or its class."""
    task: Task | None = field(default=None, repr=False, compare=False)
    """The loaded task; not part of the cache key, and not sent to workers."""
    source: Callable[[], Task] | None = field(default=None, repr=False, compare=False)
    """Function that loads the task again in a worker process; None if the task exists only in memory."""

    @staticmethod
    def of(task: Task, source: Callable[[], Task] | None = None) -> "InMemoryTaskConfig":
        """Return the config of a loaded task."""
        rows = {split: _batch_digest(batch) for split, batch in task.data.items()}
        return InMemoryTaskConfig(
            fingerprint=task.fingerprint(),
            rows=digest_of(rows),
            training_rows=digest_of({split: digest for split, digest in rows.items() if split != "test"}),
            mask_token=task.mask_token,
            training=digest_of(training_choices(task)),
            model_name=_model_name(task),
            task=task,
            source=source,
        )

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the digests and the source; a worker loads the task again."""
        if self.source is None:
            raise pickle.PicklingError(
                "a task that exists only in memory cannot be sent to another process; use the serial engine, or give "
                "the task as a config or as files"
            )
        names = ("fingerprint", "rows", "training_rows", "mask_token", "training", "model_name", "source")
        return _unpickle_config, ({name: getattr(self, name) for name in names},)

    @property
    def training_digest(self) -> str:
        """Cache key of everything that a method learns from: the same for any test rows."""
        return digest_of([self.name, self.fingerprint, self.training_rows, self.mask_token])

    def to_dict(self) -> dict[str, Any]:
        """Return plain values only."""
        names = ("fingerprint", "rows", "mask_token", "training")
        return {"name": self.name, **{name: getattr(self, name) for name in names}}

    @property
    def label(self) -> str:
        """Name of the model."""
        return self.model_name

    def build(self, seed: int) -> Task:
        """Return the loaded task, whatever the seed; a worker loads it from its source and verifies it."""
        if self.task is not None:
            return self.task
        if self.source is None:
            raise StoreError("the task exists only in memory of another process")
        task = self.source()
        if task.fingerprint() != self.fingerprint:
            raise StoreError(
                f"the model loaded here is {task.fingerprint()}, but the run began with {self.fingerprint}; "
                "start the run again"
            )
        return task


def _model_name(task: Task) -> str:
    """Return the hub id or the folder's name that a model was loaded from, or its class."""
    name = str(getattr(getattr(task.model, "config", None), "name_or_path", "") or "")
    path = Path(name)
    if path.is_dir():
        return packaged_name(path) or path.resolve().name
    return name or type(task.model).__name__


def _unpickle_config(values: dict[str, Any]) -> InMemoryTaskConfig:
    return InMemoryTaskConfig(**values)


def _batch_digest(batch: Batch) -> str:
    digest = hashlib.sha256()

    def update(value: Any) -> Any:
        digest.update(str(tuple(value.shape)).encode() + value.detach().cpu().contiguous().numpy().tobytes())
        return value

    batch.map(update)
    return digest.hexdigest()


@dataclass(frozen=True)
class CachedAttribution:
    """Attributions of one split, with their cost and the cost of the fit."""

    attribution: Attribution
    cost: Cost
    fit_cost: Cost

    def figures(self) -> dict[str, int | float]:
        """Return the cost as a record stores it."""
        return {**self.cost.as_dict(), "fit_seconds": round(self.fit_cost.seconds, 3)}


@dataclass(frozen=True)
class Workspace:
    """One task at one seed, over a store."""

    store: Store
    task_config: TaskConfig
    seed: int
    _live: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)
    shard_size: int | None = None
    """Rows per shard when a split is explained; None explains it in one piece."""

    @staticmethod
    def over(store: Store, task: Task, seed: int = 0, shard_size: int | None = None) -> "Workspace":
        """Return a workspace of a task that is loaded already."""
        return Workspace(store, InMemoryTaskConfig.of(task), seed, shard_size=shard_size)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle without the live task and explainers; a worker loads them from the store."""
        return _unpickle_workspace, (self.store, self.task_config, self.seed, self.shard_size)

    def task_digest(self) -> str:
        """Return the cache key of the trained task: its config, its seed and the content of the files it reads."""
        return digest_of(["task", self.task_config.digest, self.seed, *self._file_digests()])

    def run_key(self, method: Method) -> str:
        """Return the cache key of everything that is measured of a method on this task."""
        return digest_of(["fit", self.task_digest(), method.digest])

    def training_digest(self) -> str:
        """Return the cache key of the trained model and the training rows: the same for any test rows."""
        return digest_of(["task", self.task_config.training_digest, self.seed, *self._file_digests()])

    def _file_digests(self) -> list[str]:
        """Return the digests of the task's files as they were when this workspace first asked for them."""
        if "files" not in self._live:
            self._live["files"] = self.task_config.file_digests()
        return self._live["files"]

    def explainer_key(self, method: Method) -> str:
        """Return the cache key of the fitted explainer."""
        return digest_of(["fit", self.training_digest(), method.digest])

    def explain_digest(self, method: Method, split: str) -> str:
        """Return the cache key of the attributions of a split."""
        return digest_of(["explain", self.run_key(method), split])

    def shards(self, method: Method, split: str) -> Shards | None:
        """Return the shards in which a split is explained, or None if it is explained in one piece."""
        if self.shard_size is None:
            return None
        return Shards(self.store, self.explain_digest(method, split), self.shard_size)

    def build(self) -> Task:
        """Return the task with an untrained model."""
        return self.task_config.build(self.seed)

    def train(self, task: Task) -> None:
        """Train the model in place."""
        self.task_config.train(task, self.seed)

    def task(self) -> Task:
        """Return the trained task. Weights that are trained here are cached in the store."""
        if "task" not in self._live:
            task = self.build()
            if self._trains():
                self._restore_or_train(task)
            self._live["task"] = task
        return self._live["task"]

    def _trains(self) -> bool:
        """Return whether the model's weights belong into the store: a task in memory has its weights already."""
        return not isinstance(self.task_config, InMemoryTaskConfig)

    def _restore_or_train(self, task: Task) -> None:
        def make() -> Artefact:
            start = time.perf_counter()
            self.train(task)
            return Artefact(task.model.state_dict(), {"seconds": time.perf_counter() - start})

        self.store.get_or_make("task", self.task_digest(), make, lambda artefact: _load_weights(task, artefact))

    def explainer(self, method: Method) -> Explainer:
        """Return the method fitted to the task; the explainer stays in memory as long as the workspace."""
        digest = self.explainer_key(method)
        if digest not in self._live:
            self._live[digest] = self._restore_or_fit(method)
        return self._live[digest]

    def use_explainer(self, method: Method, explainer: Explainer) -> None:
        """Use an explainer that was fitted elsewhere. It is not written to the store."""
        self._live[self.explainer_key(method)] = explainer

    def _restore_or_fit(self, method: Method) -> Explainer:
        task = self.task()
        explainer = method.build(task, self.seed)

        def make() -> Artefact:
            method.train_metered(explainer, task, self.seed)
            return explainer_artefact(explainer)

        def accept(artefact: Artefact) -> None:
            require_model(artefact, task, "the explainer in the store")
            restore(explainer, artefact, f"fit {artefact.digest}")

        self.store.get_or_make("fit", self.explainer_key(method), make, accept)
        explainer.config = method
        return explainer

    def diagnostics(self, method: Method) -> dict[str, Any]:
        """Return the diagnostics of a fit; empty if the store has no such fit."""
        digest = self.explainer_key(method)
        if not self.store.has("fit", digest):
            return {}
        return dict(read_artefact(self.store.path("fit", digest), "fit", digest).values["diagnostics"])

    def explained(self, method: Method, split: str) -> CachedAttribution:
        """Return the method's attributions of a split."""

        def make() -> Artefact:
            batch = self.task().data[split]
            shards = self.shards(method, split)
            if shards is not None:
                return explain_in_shards(shards, batch, lambda: self.explainer(method))
            explainer = self.explainer(method)
            explainer.cost = Cost()
            return attribution_artefact(explainer, explainer(batch))

        def accept(artefact: Artefact) -> None:
            rows = len(_cached_attribution(artefact).attribution)
            if "task" in self._live and rows != len(self.task().data[split]):
                raise StoreError(f"explain {artefact.digest}: scores of {rows} rows, not of the split '{split}'")

        return _cached_attribution(self.store.get_or_make("explain", self.explain_digest(method, split), make, accept))


_LAST: list[Workspace] = []
"""The workspace that this process unpickled last."""


def _unpickle_workspace(store: Store, task_config: TaskConfig, seed: int, shard_size: int | None) -> Workspace:
    """Return the last workspace again if it is equal, so that a worker loads its task once."""
    workspace = Workspace(store, task_config, seed, shard_size=shard_size)
    if not _LAST or _LAST[0] != workspace:
        _LAST[:] = [workspace]
    return _LAST[0]


def _cached_attribution(artefact: Artefact) -> CachedAttribution:
    """Return stored attributions with their costs; raise a StoreError if they do not fit together."""
    scores, by_layer = artefact.tensors["scores"], artefact.tensors.get("by_layer")
    shapes = [tuple(scores.shape), *([tuple(by_layer.shape)] if by_layer is not None else [])]
    fits = scores.ndim == 2 and (by_layer is None or (by_layer.ndim == 3 and by_layer[:, 0].shape == scores.shape))
    if not fits or not scores.is_floating_point():
        raise StoreError(f"explain {artefact.digest}: tensors of {scores.dtype} with shapes {shapes} are not scores")
    try:
        attribution = Attribution(scores, by_layer, tuple(artefact.values["layers"]))
        costs = Cost(**artefact.values["cost"]), Cost(**artefact.values["fit_cost"])
    except (DiffMaskError, TypeError) as error:
        raise StoreError(f"explain {artefact.digest}: {error}") from None
    return CachedAttribution(attribution, *costs)


def _load_weights(task: Task, artefact: Artefact) -> None:
    try:
        task.model.load_state_dict(dict(artefact.tensors))
    except RuntimeError as error:
        raise StoreError(f"the weights in the store do not fit {type(task.model).__name__}: {error}") from None


def explainer_artefact(explainer: Explainer) -> Artefact:
    """Return the artefact of a fitted explainer, with the fingerprint of its model."""
    values = {
        "fingerprint": explainer.task.fingerprint(),
        "diagnostics": explainer.diagnostics,
        "training_history": explainer.training_history,
        "fit_cost": asdict(explainer.fit_cost),
    }
    return Artefact(explainer.state_dict(), values)


def require_model(artefact: Artefact, task: Task, where: str) -> None:
    """Raise a StoreError if an explainer was fitted to another model."""
    fitted, here = artefact.values.get("fingerprint", "unknown"), task.fingerprint()
    if fitted != here:
        raise StoreError(
            f"{where} was fitted to model {fitted}; this task's model is {here}; "
            "load the explainer with the model it was fitted to, or fit it again"
        )


def restore(explainer: Explainer, artefact: Artefact, where: str) -> None:
    """Load the weights, diagnostics and cost of a fit into a new explainer of the same config.

    Raises:
        StoreError: Weights are missing, not finite or of another shape or precision. The message begins with `where`.
    """
    expected = explainer.state_dict()
    for name, value in artefact.tensors.items():
        if name in expected and value.dtype != expected[name].dtype:
            raise StoreError(f"{where}: {name} is {value.dtype} instead of {expected[name].dtype}; fit it again")
        if value.is_floating_point() and not value.isfinite().all():
            raise StoreError(f"{where}: {name} has values that are not finite; fit it again")
    try:
        explainer.load_state_dict(dict(artefact.tensors))
        explainer.diagnostics = artefact.values["diagnostics"]
        explainer.training_history = artefact.values["training_history"]
        explainer.fit_cost = Cost(**artefact.values["fit_cost"])
    except (RuntimeError, KeyError, TypeError) as error:
        reason = " ".join(str(error).split())[:300]
        raise StoreError(f"{where}: the saved fit does not suit {type(explainer).__name__}: {reason}") from None
    explainer.eval()
