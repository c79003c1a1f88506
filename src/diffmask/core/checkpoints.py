"""Checkpoints of a training, from which a killed one resumes to the same weights; safetensors and JSON, no pickle."""

import logging
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from diffmask.core.store import Artefact, read_artefact, write_artefact
from diffmask.errors import StoreError

logger = logging.getLogger(__name__)

_FOLDER: ContextVar[Path | None] = ContextVar("folder of a fit's checkpoints", default=None)


@contextmanager
def checkpoints_in(folder: str | Path | None) -> Iterator[None]:
    """Write the checkpoints of training inside this context to a folder; with None, write none."""
    token = _FOLDER.set(None if folder is None else Path(folder))
    try:
        yield
    finally:
        _FOLDER.reset(token)


def current_folder() -> Path | None:
    """Return the folder that `checkpoints_in` has set."""
    return _FOLDER.get()


@dataclass(frozen=True)
class Checkpoints:
    """Checkpoints of one training: folders `UNIT_1`, `UNIT_2`, ... of finished epochs or steps."""

    folder: Path
    kind: str
    """Kind of the artefacts, such as "nrms-checkpoint"."""
    key: str
    """Digest of all that must be equal for a training to be the same."""
    unit: str = "epoch"

    def save(self, number: int, tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> None:
        """Write the checkpoint after `number` epochs or steps."""
        path = self.folder / f"{self.unit}_{number}"
        shutil.rmtree(path, ignore_errors=True)  # one that could not be resumed from
        copies = {name: value.detach().clone() for name, value in tensors.items()}
        write_artefact(path, self.kind, self.key, Artefact(copies, dict(values)))

    def latest(self) -> tuple[int, Artefact] | None:
        """Return the last checkpoint that this same training has written completely, or None."""
        numbered = [(path, path.name.rpartition("_")[2]) for path in self.folder.glob(f"{self.unit}_*")]
        for path, number in sorted(
            ((path, int(number)) for path, number in numbered if number.isdecimal()), key=lambda item: -item[1]
        ):
            try:
                artefact = read_artefact(path, self.kind, self.key)
            except StoreError as error:
                logger.warning("%s; it is not resumed from", error)
                continue
            logger.info("resumed after %s %d", self.unit, number)
            return number, artefact
        return None


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return the state of an optimiser as tensors with names such as `0.exp_avg`."""
    state = optimizer.state_dict()["state"]
    return {f"{index}.{name}": value for index, values in state.items() for name, value in values.items()}


def restore_optimizer(optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Load what `optimizer_tensors` returned into an optimiser of the same parameters."""
    state: dict[int, dict[str, Tensor]] = {}
    for name, value in tensors.items():
        index, _, field = name.partition(".")
        state.setdefault(int(index), {})[field] = value
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def with_prefix(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors whose names begin with `prefix` and a point."""
    return {f"{prefix}.{name}": value for name, value in tensors.items()}


def under_prefix(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors that `with_prefix` has named, by their own names."""
    start = f"{prefix}."
    return {name.removeprefix(start): value for name, value in tensors.items() if name.startswith(start)}
