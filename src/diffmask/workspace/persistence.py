"""Save an explainer without its model, and load it for the model that it was fitted to."""

import hashlib
import os
import shutil
import uuid
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pydantic import TypeAdapter, ValidationError
from torch import nn

from diffmask.core.config import parse
from diffmask.core.explainer import Explainer, Method
from diffmask.core.store import Artefact, read_artefact, write_artefact
from diffmask.core.task import Task
from diffmask.errors import ConfigError, StoreError
from diffmask.results.records import naming_path, require_path
from diffmask.tasks.recommender.news_recommender import NewsRecommender
from diffmask.tasks.text.known_tasks import RECOMMENDER, text_task_class
from diffmask.tasks.text.pretrained import load_model, looks_like_path
from diffmask.tasks.text.text_task import TextTask
from diffmask.workspace.workspace import explainer_artefact, require_model, restore

KIND = "explainer"
FILES = ("artefact.json", "tensors.safetensors")


def save_explainer(explainer: Explainer, method: Method, folder: str | Path) -> None:
    """Write the learned weights, the method's config and the model's fingerprint; the model itself is not written.

    An explainer that is already in the folder is replaced once the new one is written completely. A folder with
    anything else in it is refused.
    """
    target = _checked_path(folder)
    replaced = (target / FILES[0]).is_file()
    if replaced:
        read_artefact(target, KIND)
    elif os.path.lexists(target) and (not target.is_dir() or any(target.iterdir())):
        raise StoreError(f"{target} exists and holds no explainer; choose another folder")
    fitted = explainer_artefact(explainer)
    values = {**fitted.values, "method": method.to_dict(), **_text_notes(explainer.task, target)}
    partial = target.with_name(f".writing-{uuid.uuid4().hex}")
    try:
        with naming_path(target):
            write_artefact(partial, KIND, method.digest, Artefact(fitted.tensors, values))
            if replaced:
                _swap(partial, target)
            else:
                os.replace(partial, target)  # an empty folder may be replaced
        shutil.rmtree(_previous(target), ignore_errors=True)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _checked_path(folder: str | Path) -> Path:
    """Return the path of an explainer's folder; refuse one that no file system can hold, before any work."""
    if not isinstance(folder, str | Path) or not Path(folder).name:
        raise StoreError(f"{folder!r} is not the path of a folder; give one such as 'explainer/'")
    require_path(folder)
    return Path(folder)


def _swap(new: Path, target: Path) -> None:
    """Put the new folder in the old one's place. A kill in between leaves the old one as `NAME.previous`."""
    previous = _previous(target)
    shutil.rmtree(previous, ignore_errors=True)
    target.rename(previous)
    try:
        new.rename(target)
    except OSError:
        previous.rename(target)
        raise


def _previous(target: Path) -> Path:
    return target.with_name(f"{target.name}.previous")


def push_explainer(explainer: Explainer, method: Method, repository: str, *, private: bool = False) -> str:
    """Upload the files that `save_explainer` writes to the hub, and return their address."""
    from huggingface_hub import HfApi

    hub = HfApi()
    hub.create_repo(repository, private=private, exist_ok=True)
    with TemporaryDirectory() as folder:
        save_explainer(explainer, method, Path(folder) / KIND)
        _forget_folder(Path(folder) / KIND)
        return str(hub.upload_folder(repo_id=repository, folder_path=Path(folder) / KIND))


def _forget_folder(home: Path) -> None:
    """Remove the path of a model's folder on this machine from an explainer that is uploaded; a hub id stays."""
    artefact = read_artefact(home, KIND)
    if "weights" in artefact.values:
        shutil.rmtree(home)
        write_artefact(home, KIND, artefact.digest, Artefact(artefact.tensors, {**artefact.values, "model": ""}))


def load_explainer(
    folder: str | Path,
    model: Task | nn.Module | str | Path | None = None,
    tokenizer: Any = None,
    *,
    trust_remote_code: bool = False,
) -> Explainer:
    """Load an explainer from its folder or hub id for the model that it was fitted to; another model is refused.

    `model` is a task, a model with its tokenizer, or a model's folder or hub id. Without it, the model is
    loaded from the path that the explainer remembers, which may leave the explainer's folder only for safetensors
    files with the checksum that was saved. `trust_remote_code` allows Python code of the model's repository.
    """
    home = find_explainer(folder)
    artefact = read_artefact(home, KIND)
    method = _saved_method(artefact, home)
    task = model if isinstance(model, Task) else _text_task(artefact.values, home, model, tokenizer, trust_remote_code)
    require_model(artefact, task, str(folder))
    explainer = _build(method, task)
    restore(explainer, artefact, str(home))
    explainer.config = method
    return explainer


def _saved_method(artefact: Artefact, home: Path) -> Method:
    """Return the method's config after comparing its digest with the saved one."""
    method: Method = parse("method", artefact.values.get("method"), str(home))
    if artefact.digest != method.digest:
        raise StoreError(
            f"{home} was saved with method digest {artefact.digest}, but its config has {method.digest}: "
            "the method has changed since, or the file was edited; fit the explainer again"
        )
    return method


def find_explainer(name: str | Path) -> Path:
    """Return the folder of an explainer; a name that is no folder is downloaded from the hub."""
    path = _checked_path(name)
    for folder in (path, _previous(path)):
        if folder.is_dir():
            return folder
    if os.path.lexists(path):
        raise StoreError(f"{path} is not a folder; give the folder of an explainer")
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError

    try:
        return Path(snapshot_download(str(name), allow_patterns=list(FILES)))
    except (HFValidationError, OSError, ValueError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise StoreError(f"'{name}' is neither a folder nor found on the hub: {reason}") from error


def _text_notes(task: Task, home: Path) -> dict[str, Any]:
    """Return a text task's name and encoding, and the path of its model relative to the explainer's folder."""
    if isinstance(task, NewsRecommender):
        notes = {"task": RECOMMENDER, "explain": task.explained, "answer": task.answer}
        return {**notes, **_model_notes(task.name_or_path, home)}
    if not isinstance(task, TextTask):
        return {}
    return {
        "task": task.spec.name,
        "reading": task.reading_choices(),
        **_model_notes(task.model.config.name_or_path, home),
    }


def _model_notes(name: str, home: Path) -> dict[str, str]:
    """Return a model's hub id; for a folder, its path relative to `home` and the checksum of its weights."""
    if not name or not Path(name).is_dir():
        return {"model": name}
    return {"model": os.path.relpath(name, home), "weights": _weights_checksum(Path(name))}


def _weights_checksum(folder: Path) -> str:
    """Return the SHA-256 of a model's safetensors files and their names; empty if it has none."""
    checksum, files = hashlib.sha256(), sorted(folder.glob("*.safetensors"))
    for file in files:
        try:
            with file.open("rb") as stream:
                checksum.update(f"{file.name} {hashlib.file_digest(stream, 'sha256').hexdigest()}\n".encode())
        except OSError as error:
            raise StoreError(f"{file} cannot be read: {error.strerror or error}") from None
    return checksum.hexdigest() if files else ""


def _text_task(
    notes: Mapping[str, Any], home: Path, model: nn.Module | str | Path | None, tokenizer: Any, trust_remote_code: bool
) -> Task:
    if notes.get("task") == RECOMMENDER:
        source = model if model is not None else _remembered_model(notes, home)
        return NewsRecommender(source, tokenizer, explain=notes["explain"], answer=notes["answer"])
    if "reading" not in notes:
        raise StoreError(f"{home} was not fitted to a task on texts; load it with its task")
    source = model if model is not None else _remembered_model(notes, home)
    kind = _task_class(notes, home)
    loaded = load_model(
        kind.spec.auto_class, source, tokenizer, wanted_by=kind.__name__, trust_remote_code=trust_remote_code
    )
    try:
        encoding = TypeAdapter(kind.spec.encoding_class).validate_python(notes["reading"])
    except ValidationError as error:
        raise StoreError(f"{home}: 'reading' is damaged: {error.errors()[0]['msg']}; fit the explainer again") from None
    return kind(*loaded, encoding=encoding)


def _task_class(notes: Mapping[str, Any], home: Path) -> type[TextTask]:
    try:
        return text_task_class(str(notes.get("task", "text-classification")))
    except ConfigError as error:
        raise StoreError(f"{home}: {error}") from None


def _remembered_model(notes: Mapping[str, Any], home: Path) -> str | Path:
    """Return the folder or hub id of the model that the explainer was fitted to."""
    name = notes.get("model")
    if not isinstance(name, str) or not name:
        raise StoreError(f"{home} does not know the path of its model; give model=... (command line: --model)")
    if Path(name).is_absolute():
        raise StoreError(f"{home} names the model {name} by an absolute path; give model=... (command line: --model)")
    require_path(home / name)
    folder = home / name
    if folder.is_dir():
        _require_own_weights(notes, home, folder)
        return folder
    if looks_like_path(name) or Path(name).exists():
        # A path is never looked up in the working directory, where transformers would look first.
        raise StoreError(f"{home} names the model {name}, which is not there; give model=... (command line: --model)")
    return name


def _require_own_weights(notes: Mapping[str, Any], home: Path, folder: Path) -> None:
    """Refuse a model outside the explainer's folder unless its weights are those that the explainer was saved with.

    An explainer comes from anywhere. It may lead to a model of this machine only if its author knew every weight of it.
    """
    if folder.resolve().is_relative_to(home.resolve()):
        return
    saved = notes.get("weights")
    if saved and saved == _weights_checksum(folder):
        return
    reason = "other safetensors files than it was saved with" if saved else "files whose checksum it does not have"
    raise StoreError(
        f"{home} names the model {notes['model']}, a folder outside its own with {reason}; "
        "if it is the right model, give model=... (command line: --model)"
    )


def _build(method: Method, task: Task) -> Explainer:
    """Build an explainer whose weights are loaded next; without training rows, one placeholder row serves."""
    if "train" in task.data or not isinstance(task, TextTask | NewsRecommender):
        return method.build(task, seed=0)
    task.data["train"] = task.placeholder_batch()
    try:
        return method.build(task, seed=0)
    finally:
        del task.data["train"]
