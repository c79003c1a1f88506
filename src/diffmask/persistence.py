"""Saving an explainer alone, and putting it back onto the model it was fitted to."""

from pathlib import Path

from diffmask.bench import explainer_artefact, restore
from diffmask.errors import StoreError
from diffmask.explainer import Explainer, Method
from diffmask.recipe import parse
from diffmask.store import Artefact, read, write
from diffmask.task import Task

KIND = "explainer"


def save_explainer(explainer: Explainer, method: Method, folder: str | Path) -> None:
    """Write what was learned, its recipe and its model's fingerprint; the model itself is not written."""
    kept = explainer_artefact(explainer)
    target = Path(folder)
    if target.exists():
        raise StoreError(f"{target} exists; choose another folder or remove it")
    write(target, KIND, method.digest, Artefact(kept.tensors, {**kept.values, "method": method.to_dict()}))


def load_explainer(folder: str | Path, task: Task) -> Explainer:
    """An explainer from its folder, onto the very model it was fitted to; any other model is refused."""
    kept = read(Path(folder), KIND)
    method: Method = parse("method", kept.values["method"], str(folder))
    if kept.values["fingerprint"] != task.fingerprint():
        raise StoreError(
            f"{folder} was fitted to model {kept.values['fingerprint']}; this task's model is {task.fingerprint()}; "
            "load the explainer with the model it was fitted to, or fit it again"
        )
    explainer = method.build(task, seed=0)
    restore(explainer, kept)
    return explainer
