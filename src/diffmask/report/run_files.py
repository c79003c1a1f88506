"""The files of a run or a benchmark, read for its report: summary, example, manifest and ROAR records."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from diffmask.errors import DiffMaskError, InputError
from diffmask.report.roar_curves import METRICS, RoarRun, read_roar
from diffmask.results.formatting import format_number
from diffmask.results.records import RUN_AGAIN, read_json

METRIC_DESCRIPTIONS = {
    "kl_to_truth": "KL(truth || scores), nats; 0 is the truth",
    "js_to_truth": "Jensen-Shannon divergence to the truth, nats; at most 0.69",
    "flat_rows": "share of rows with nearly uniform scores",
    "divergence": "KL(original || masked) with hard masks, nats",
    "agreement": "share of rows with the same prediction under the hard mask",
    "kept": "share of tokens kept by the hard mask",
    "quality": "the model's own score on held-out rows",
}


@dataclass(frozen=True)
class RunFiles:
    """The files that `diffmask run` and `diffmask benchmark` write."""

    folder: Path
    summary: list[dict[str, Any]]
    examples: list[dict[str, Any]]
    """One row of each task with the scores of every method; a benchmark has none."""
    manifest: dict[str, Any]

    @property
    def title(self) -> str:
        """Name of the experiment."""
        return str(self.manifest["experiment"]["name"])

    @cached_property
    def metrics(self) -> list[str]:
        """Quantities in the summary, in order; those of ROAR are shown with its curves instead."""
        return [metric for metric in dict.fromkeys(entry["metric"] for entry in self.summary) if metric not in METRICS]

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        """One row per task, method and site with its cells; empty if only ROAR was measured."""
        lines: dict[tuple[str, str, str], dict[str, Any]] = {}
        for entry in self.summary:
            if entry["metric"] not in self.metrics:
                continue
            key = (entry["task"], entry["method"], entry["site"])
            line = lines.setdefault(
                key, {"task": key[0], "method": key[1], "site": key[2], "cells": {}, "cost": entry["cost"]}
            )
            line["cells"][entry["metric"]] = entry
        return list(lines.values())

    @cached_property
    def roar(self) -> RoarRun:
        """ROAR curves and areas of the run."""
        return read_roar(self.folder)

    @cached_property
    def masks(self) -> list[tuple[list[str], list[dict[str, Any]]]]:
        """Words of each example with the keep probabilities of its mask methods."""
        masks = []
        for example in self.examples:
            bars = [bar for bar in example["bars"] if bar["per_site"]]
            if bars:
                masks.append((example["words"], bars))
        return masks


def read_run(folder: str | Path) -> RunFiles:
    """Read a run from its folder; the error names a missing file."""
    home = Path(folder)
    examples = home / "examples.json"
    return RunFiles(
        folder=home,
        summary=_read(home / "summary.json", list),
        examples=_read(examples, list) if examples.is_file() else [],
        manifest=_read(home / "manifest.json", dict),
    )


@contextmanager
def refusing_damage(folder: Path) -> Iterator[None]:
    """Convert errors about missing or odd values in the files of a run, which another program changed, to ours."""
    from jinja2 import UndefinedError

    try:
        yield
    except (KeyError, TypeError, AttributeError, ValueError, IndexError, ArithmeticError, UndefinedError) as error:
        if isinstance(error, DiffMaskError):
            raise
        raise InputError(f"the files in {folder} are damaged ({error!r}); {RUN_AGAIN}") from error


def normalise_scores(scores: list[float]) -> list[float]:
    """Divide absolute scores by their sum, as in the published bar charts.

    >>> normalise_scores([1.0, -3.0])
    [0.25, 0.75]
    """
    total = sum(abs(score) for score in scores)
    return [abs(score) / total if total else 0.0 for score in scores]


def format_cell(value: float | str | None) -> str:
    """Format a number with four digits; infinity and missing values have a symbol.

    >>> format_cell("inf"), format_cell(0.00031), format_cell(12.3456), format_cell(None)
    ('∞', '0.00031', '12.35', '–')
    """
    return "–" if value is None else format_number(float(value), digits=4)


def _read(file: Path, kind: type) -> Any:
    if not file.exists():
        raise InputError(f"{file} is missing: give the --out folder of a finished `diffmask run` or `benchmark`")
    value = read_json(file, RUN_AGAIN)
    if not isinstance(value, kind):
        raise InputError(f"{file} is damaged: {type(value).__name__} instead of {kind.__name__}; {RUN_AGAIN}")
    return value
