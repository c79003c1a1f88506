"""Damaged files: flipped bytes, cut ends, folders for files, loops, deep JSON, missing keys, and forged artefacts."""

import hashlib
import json
import shutil
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

import diffmask as dm
from diffmask.core.store import values_checksum
from diffmask.errors import DiffMaskError
from diffmask.report.page import write_page
from fuzz.outcome import Failure, TooLongError, time_limit

READERS: dict[str, Callable[[Path], Any]] = {
    "explainer": lambda folder: dm.load_explainer(folder, "clf")("the film is good", verify=False).scores,
    "gradient": lambda folder: dm.load_explainer(folder, "clf")("the film is good", verify=False).scores,
    "board": write_page,
    "run": write_page,
    "clf": lambda folder: dm.TextClassification(folder).data,
    "resumed": lambda folder: dm.run_experiment(dm.Experiment.read("small.yaml"), folder),
}
"""Folder of the home and the function that reads it; `resumed` is a copy of the run."""
SOURCE = {"resumed": "run"}
VALUES: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    1.5,
    "",
    "x",
    "../../clf",
    "/",
    [],
    {},
    [None],
    {"a": 1},
    "x" * 1000,
    10**30,
    "\ud800",
    [[[]]],
)


@dataclass(frozen=True)
class Damage:
    """One damage to one file of a folder."""

    folder: str
    file: str
    kind: str
    at: float
    """Position in the file, or choice of a key or tensor, as a fraction."""
    value: Any = None


@cache
def _files(folder: str) -> list[str]:
    home = Path(SOURCE.get(folder, folder))
    found = sorted(str(file.relative_to(home)) for file in home.rglob("*") if file.is_file())
    return [
        file
        for file in found
        if not file.startswith(("figures", "tables", "store/locks", "logs")) and not file.endswith(".html")
    ]


def damages() -> st.SearchStrategy[Damage]:
    """Draw a file and what happens to it."""

    def of(folder: str) -> st.SearchStrategy[Damage]:
        kinds = [
            "flip",
            "cut",
            "empty",
            "delete",
            "folder",
            "loop",
            "deep",
            "binary",
            "append",
            "key",
            "key",
            "value",
            "value",
            "forge",
            "forge",
            "half",
            "tensor",
        ]
        return st.builds(
            Damage,
            st.just(folder),
            st.sampled_from(_files(folder)),
            st.sampled_from(kinds),
            st.floats(0, 0.999),
            st.sampled_from(VALUES),
        )

    often = ("explainer", "gradient", "board", "run", "clf")
    return st.sampled_from([*READERS, *often, *often, "explainer"]).flatmap(of)


def apply(damage: Damage, file: Path) -> None:
    """Damage one file."""
    content = file.read_bytes()
    at = int(damage.at * len(content))
    if damage.kind in ("delete", "folder", "loop"):
        file.unlink()
        if damage.kind == "folder":
            file.mkdir()
        if damage.kind == "loop":
            file.symlink_to(file.name)
        return
    simple = {
        "flip": content[:at] + bytes([content[at] ^ 1 << int(damage.at * 8000) % 8]) + content[at + 1 :]
        if content
        else b"x",
        "cut": content[:at],
        "empty": b"",
        "deep": b"[" * 100_000,
        "binary": bytes(range(256)),
        "append": content + b"\n{}",
    }
    if damage.kind in simple:
        file.write_bytes(simple[damage.kind])
    elif file.suffix == ".json":
        _change_json(damage, file)
    elif file.suffix == ".safetensors":
        _change_tensors(damage, file)


def _change_json(damage: Damage, file: Path) -> None:
    """Remove a key or exchange a value, at any depth; `forge` also writes the checksum of the new values."""
    node = json.loads(file.read_text())
    paths = list(_paths(node))
    if not paths:
        return
    *parents, last = paths[int(damage.at * len(paths))]
    here = node
    for step in parents:
        here = here[step]
    if damage.kind == "key":
        del here[last]
    else:
        here[last] = damage.value
    if damage.kind == "forge" and isinstance(node, dict) and "values" in node:
        node["values_checksum"] = values_checksum(node["values"])
    file.write_text(json.dumps(node))


def _paths(node: Any, before: tuple[Any, ...] = ()) -> Any:
    steps = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for step, value in steps:
        yield (*before, step)
        yield from _paths(value, (*before, step))


def _change_tensors(damage: Damage, file: Path) -> None:
    """Store another tensor, or all in half precision, with the right checksum beside it."""
    tensors = load_file(file)
    if damage.kind == "half":
        tensors = {name: value.half() for name, value in tensors.items()}
    elif tensors:
        name = sorted(tensors)[int(damage.at * len(tensors))]
        changed = [None, tensors[name].flatten()[:1], tensors[name] * float("nan"), tensors[name].long()]
        value = changed[int(damage.at * 997) % 4]
        tensors = (
            {**tensors, name: value} if value is not None else {key: tensors[key] for key in tensors if key != name}
        )
    save_file({name: value.contiguous() for name, value in tensors.items()}, file)
    note = file.with_name("artefact.json")
    if note.is_file():
        values = json.loads(note.read_text())
        note.write_text(json.dumps({**values, "tensors": hashlib.sha256(file.read_bytes()).hexdigest()}))


@cache
def _whole_scores(folder: str) -> torch.Tensor:
    return torch.as_tensor(READERS[folder](Path(folder)))


def read_damaged(damage: Damage) -> Failure | None:
    """Damage a copy of a folder, read it, and return what is wrong with the end, if anything."""
    copy = Path("damaged") / damage.folder
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(SOURCE.get(damage.folder, damage.folder), copy)
    apply(damage, copy / damage.file)
    given = f"{damage}"[:400]
    try:
        with warnings.catch_warnings(), time_limit():
            warnings.simplefilter("ignore")
            result = READERS[damage.folder](copy)
    except DiffMaskError as error:
        return None if _names_path(str(error), damage) else Failure(given, f"the path is not named: {error}", "message")
    except (Exception, TooLongError) as error:
        return Failure.of(given, error)
    if (
        damage.folder in ("explainer", "gradient")
        and not _is_forged(damage)
        and not torch.equal(result, _whole_scores(damage.folder))
    ):
        return Failure(given, "read without an error, but its scores differ", "silent")
    return None


def _is_forged(damage: Damage) -> bool:
    """Return whether the checksums agree with the damage: then other scores are another, whole explainer."""
    return damage.kind in ("forge", "half", "tensor")


def _names_path(message: str, damage: Damage) -> bool:
    # A model whose weights are odd is refused for what it does, not for its files.
    return damage.folder == "clf" or any(
        part in message for part in (damage.file, damage.folder, Path(damage.file).name)
    )
