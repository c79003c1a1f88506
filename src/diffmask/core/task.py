"""A `Task`: a frozen model, its data, a score, and the named sites at which its states can be read and edited."""

import hashlib
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from copy import copy, deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.distributions import Distribution

from diffmask.core import hooks
from diffmask.core.batch import Batch, require_tokens
from diffmask.core.config import Config, digest_of_files
from diffmask.core.distributions import require_finite
from diffmask.core.hooks import Edit, Site
from diffmask.errors import InputError, SiteError, nearest


class Splits(dict[str, Batch]):
    """Batches by split name. A missing split is an InputError that lists the splits there are."""

    def __missing__(self, split: str) -> Batch:
        has = f", only {', '.join(self)}" if self else ""
        raise InputError(f"the task has no '{split}' rows{has}; give it {split}=...")


class Task(ABC):
    """One model on one data set. Every row of the data is one decision to explain.

    The model is in eval mode, its parameters require no gradient, and no method of this class changes it. Forward
    passes with edits hold a lock of the model, so calls from several threads run one after another.

    Abilities that only some tasks have, such as a known ground truth, are in `diffmask.core.capabilities`.
    """

    mask_token: int | None = None
    """Id of the mask token, which replaces an erased token; None if the vocabulary has none."""
    pad_token: int = 0
    attention_masked: bool = False
    """Whether the model ignores a token with `present` False at any position, as an attention mask does."""
    trained_with_masks: bool = False
    """Whether the model was trained on masked inputs, so that masked inputs are not out of distribution."""

    def __init__(self, model: nn.Module, sites: Mapping[str, Site], data: Mapping[str, Batch]) -> None:
        self.model = model.eval().requires_grad_(False)
        self._sites = dict(sites)
        self.data = data

    def __repr__(self) -> str:
        """Return the model and the number of rows per split in one line."""
        rows = "".join(f", {len(batch):,} {split} rows" for split, batch in self.data.items())
        return f"{type(self).__name__}({type(self.model).__name__}{rows})"

    @property
    def data(self) -> Splits:
        """Rows by split: `train` to fit methods, `valid` to calibrate them, `test` to explain."""
        return self._data

    @data.setter
    def data(self, data: Mapping[str, Batch]) -> None:
        self._data = Splits(data)

    @property
    def sites(self) -> tuple[str, ...]:
        """Names of the sites, from the token embedding to the last state."""
        return tuple(self._sites)

    def site(self, name: str) -> Site:
        """Return the position of a site in the model."""
        if name not in self._sites:
            raise SiteError(f"'{name}' is not a site of {type(self).__name__}; {nearest(name, self._sites)}")
        return self._sites[name]

    @abstractmethod
    def forward(self, batch: Batch) -> Distribution:
        """Run the model on the batch and return its answer, with one entry per row."""

    def forward_train(self, batch: Batch) -> Distribution:
        """Run the model in its current mode; training differentiates this pass."""
        return self.forward(batch)

    @abstractmethod
    def score(self, batch: Batch) -> float:
        """Score the model against the batch's targets: accuracy, F1 or AUC."""

    def predict(self, batch: Batch, edits: Mapping[str, Edit] | None = None) -> Distribution:
        """Run the model with some sites edited: p(y | x, h_site <- edit(h_site))."""
        require_tokens(batch)
        with hooks.edit_sites(self.model, {self.site(name): edit for name, edit in (edits or {}).items()}):
            answer = self.forward(batch)
        require_finite(answer, f"predicting {len(batch)} rows with edits at {', '.join(edits or {}) or 'no site'}")
        return answer

    def resume(
        self, batch: Batch, states: Mapping[str, Float[Tensor, "row token width"]], edits: Mapping[str, Edit]
    ) -> Distribution:
        """Return what `predict` returns, given the unmodified states of `trace`.

        A subclass may skip all computation below the first edited site.
        """
        return self.predict(batch, edits)

    @torch.no_grad()
    def trace(self, batch: Batch) -> tuple[Distribution, dict[str, Float[Tensor, "row token width"]]]:
        """Run one unmodified forward pass and return the answer and the state at every site."""
        states: dict[str, Tensor] = {}

        def capture(name: str) -> Edit:
            def edit(state: Tensor) -> Tensor:
                states[name] = state
                return state

            return edit

        answer = self.predict(batch, {name: capture(name) for name in self.sites})
        return answer, {name: states[name] for name in self.sites}

    def subset(self, split: str, rows: Int[Tensor, " row"]) -> "Task":
        """Return the task with only the given rows of a split, in the given order."""
        task = copy(self)
        task.data = {**self.data, split: self.data[split][rows].trim()}
        return task

    def fingerprint(self) -> str:
        """Return a digest of the model: its class, its sites and every weight."""
        digest = hashlib.sha256(repr((type(self.model).__name__, self._sites)).encode())
        for name, value in sorted(self.model.state_dict().items()):
            digest.update(name.encode())
            digest.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()[:16]


def copy_task(task: Task) -> Task:
    """Return the task with its own copy of the model, which may be trained. The rows are shared."""
    # Under the lock: a copy made during an edited pass would keep the hooks of the edit.
    with hooks.exclusive(task.model):
        return deepcopy(task, {id(task.data): Splits(task.data)})


@dataclass(frozen=True, kw_only=True)
class TaskConfig(Config, ABC):
    """Config of a task; `load` builds and trains it."""

    kind: ClassVar[str] = "task"
    file_fields: ClassVar[tuple[str, ...]] = ("model", "encoder", "data", "folder", "vectors")
    """Fields that may name a file or a folder, by its path or as `KIND:PATH`."""

    @property
    def panel(self) -> tuple[str, str]:
        """Names of the data set and of the model: the row and the column of a task in figures and tables."""
        return self.label, ""

    @property
    def training_digest(self) -> str:
        """Cache key of everything that a method may learn from."""
        return self.digest

    def file_digests(self) -> list[str]:
        """Return digests of the files and folders that the config names, which the cache key of a task includes."""
        digests = []
        for field in self.file_fields:
            name = str(getattr(self, field, None) or "")
            path = next((path for path in (name, name.partition(":")[2]) if os.path.exists(path)), None)
            digests += [] if path is None else [f"{field} {digest_of_files(Path(path))}"]
        return digests

    @abstractmethod
    def build(self, seed: int) -> Task:
        """Return the task's data with an untrained model."""

    def train(self, task: Task, seed: int) -> None:
        """Train the model in place; a config with a pretrained model does nothing."""

    def load(self, seed: int = 0) -> Task:
        """Return the task with its trained model."""
        task = self.build(seed)
        self.train(task, seed)
        return task
