"""Saving an explainer alone, and putting it back onto the model it was fitted to."""

import os
import shutil
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from torch import nn

from diffmask.core.config import parse
from diffmask.core.explainer import Explainer, Method
from diffmask.core.store import Artefact, read, write
from diffmask.core.task import Task
from diffmask.errors import StoreError
from diffmask.tasks.classification import TextClassification
from diffmask.tasks.text.encoding import TextEncodingConfig
from diffmask.workspace.workspace import explainer_artefact, require_model, restore

KIND = "explainer"
FILES = ("artefact.json", "tensors.safetensors")


def save_explainer(explainer: Explainer, method: Method, folder: str | Path) -> None:
    """Write what was learned, its recipe and its model's fingerprint; the model itself is not written.

    An explainer that is already in the folder is replaced; anything else there is not touched.
    """
    target = Path(folder)
    if (target / FILES[0]).is_file():
        read(target, KIND)
        shutil.rmtree(target)
    elif target.exists() and any(target.iterdir()):
        raise StoreError(f"{target} exists and holds no explainer; choose another folder")
    elif target.exists():
        target.rmdir()
    kept = explainer_artefact(explainer)
    notes = {"method": method.to_dict(), **_notes(explainer.task, target)}
    write(target, KIND, method.digest, Artefact(kept.tensors, {**kept.values, **notes}))


def push_explainer(explainer: Explainer, method: Method, repository: str, *, private: bool = False) -> str:
    """Upload what `save_explainer` writes to the hub; returns where it is."""
    from huggingface_hub import HfApi

    hub = HfApi()
    hub.create_repo(repository, private=private, exist_ok=True)
    with TemporaryDirectory() as place:
        save_explainer(explainer, method, Path(place) / KIND)
        return str(hub.upload_folder(repo_id=repository, folder_path=Path(place) / KIND))


def load_explainer(
    folder: str | Path, model: Task | nn.Module | str | Path | None = None, tokenizer: Any = None
) -> Explainer:
    """An explainer from its folder or hub id, onto the very model it was fitted to; any other model is refused.

    The model is a task, a classifier with its tokenizer, a classifier's folder or hub id, or, where nothing is given,
    the one that the explainer remembers.
    """
    home = find_explainer(folder)
    kept = read(home, KIND)
    method: Method = parse("method", kept.values["method"], str(folder))
    task = model if isinstance(model, Task) else _text_task(kept.values, home, model, tokenizer)
    require_model(kept, task, str(folder))
    explainer = _build(method, task)
    restore(explainer, kept)
    explainer.config = method
    return explainer


def find_explainer(name: str | Path) -> Path:
    """The folder itself, or the hub's copy of what is not a folder here."""
    if Path(name).is_dir():
        return Path(name)
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError

    try:
        return Path(snapshot_download(str(name), allow_patterns=list(FILES)))
    except (HFValidationError, OSError, ValueError) as error:
        raise StoreError(f"'{name}' is neither a folder nor found on the hub: {str(error).splitlines()[0]}") from error


def _notes(task: Task, home: Path) -> dict[str, Any]:
    """How a text task was read, and where its model is, as seen from the explainer's folder."""
    if not isinstance(task, TextClassification):
        return {}
    name = task.model.config.name_or_path
    reading = task.text_encoder.config
    choices = {name: getattr(reading, name) for name in asdict(TextEncodingConfig())}
    return {"reading": choices, "model": os.path.relpath(name, home) if name and Path(name).is_dir() else name}


def _text_task(
    notes: Mapping[str, Any], home: Path, model: nn.Module | str | Path | None, tokenizer: Any
) -> TextClassification:
    if "reading" not in notes:
        raise StoreError(f"{home} was not fitted to a text classifier; load it with its task")
    remembered = home / notes["model"] if notes["model"] else home
    found = model if model is not None else remembered if remembered.is_dir() else notes["model"]
    return TextClassification(found, tokenizer, encoding=TextEncodingConfig(**notes["reading"]))


def _build(method: Method, task: Task) -> Explainer:
    """An explainer to be filled: what a method takes from training rows is overwritten, so any row will do."""
    if "train" in task.data or not isinstance(task, TextClassification):
        return method.build(task, seed=0)
    task.data["train"] = task.encode(["."])
    try:
        return method.build(task, seed=0)
    finally:
        del task.data["train"]
