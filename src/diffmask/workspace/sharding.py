"""A split explained part by part, each kept as it is done: a kill loses one part at most.

Explaining a table of any size: shard by shard, each written whole as it is done, resumable after a kill.

While it runs, `OUT.parts/` holds `job.json` (what is explained, by what) and a file for each finished shard. When the
last is done they become the one table `OUT`, and the folder goes. The columns are told in `docs/reference/scores.md`.
"""

import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from diffmask.core.batch import Attribution, Batch
from diffmask.core.config import digest_of
from diffmask.core.explainer import Explainer
from diffmask.core.resources import Cost
from diffmask.core.store import Artefact, Store
from diffmask.core.training import progress_bar
from diffmask.datasets.tables import Columns, Example, read_examples
from diffmask.errors import InputError, nearest
from diffmask.explanation.explanation import Explanation
from diffmask.tasks.classification import TextClassification
from diffmask.tasks.text.explain import explain_examples


def explain_in_shards(
    store: Store, digest: str, batch: Batch, rows_each: int, explainer: Callable[[], Explainer]
) -> Artefact:
    """The scores of a batch with what they cost; the explainer is made when the first part is missing."""
    order = batch.present.sum(dim=1).argsort(stable=True)
    made: list[Explainer] = []

    def explain(rows: Int[Tensor, " row"]) -> Artefact:
        if not made:
            made.append(explainer())
        made[0].cost = Cost()
        return explained_artefact(made[0], made[0](batch[rows]))

    parts = [
        store.get_or_make("part", shard_digest(digest, number, rows_each), lambda rows=rows: explain(rows))  # type: ignore[misc]  # mypy cannot type a default of a lambda
        for number, rows in enumerate(order.split(rows_each))
    ]
    back = order.argsort()
    tensors = {name: torch.cat([part.tensors[name] for part in parts])[back] for name in parts[0].tensors}
    spent = sum((Cost(**part.values["cost"]) for part in parts), Cost())
    return Artefact(tensors, {**parts[0].values, "cost": asdict(spent)})


def shard_digest(digest: str, number: int, rows_each: int) -> str:
    """A name for one part of a split's attributions."""
    return digest_of(["part", digest, number, rows_each])


def explained_artefact(explainer: Explainer, found: Attribution) -> Artefact:
    """An attribution and its cost as they are kept."""
    layers = {} if found.by_layer is None else {"by_layer": found.by_layer}
    return Artefact(
        {"scores": found.scores, **layers},
        {"layers": list(found.layers), "cost": asdict(explainer.cost), "fit_cost": asdict(explainer.fit_cost)},
    )


JOB = "job.json"


def explain_table(explainer: Explainer, table: Path, out: Path, columns: Columns, shard: int = 1000) -> int:
    """Write the scores of every row of a table; what an earlier run finished is kept. Returns the number of rows."""
    kind = _kind_of(out)
    parts = out.with_name(f"{out.name}.parts")
    _start(parts, _job(explainer, table, columns, shard))
    rows = 0
    for number, some in enumerate(progress_bar(_shards(read_examples(table, columns), shard), "explain shards")):
        rows += len(some)
        file = parts / f"{number:06d}{out.suffix}"
        if not file.is_file():
            _write_whole(file, kind, explained_rows(explainer, some, number * shard))
    _merge(sorted(parts.glob(f"*{out.suffix}")), out, kind)
    shutil.rmtree(parts)
    return rows


def _shards(rows: Iterable[Example], size: int) -> Iterator[tuple[Example, ...]]:
    source = iter(rows)
    while some := tuple(islice(source, size)):
        yield some


def explained_rows(explainer: Explainer, rows: tuple[Example, ...], first: int = 0) -> list[dict[str, Any]]:
    """The columns of some rows; `first` is the number of the first of them."""
    task = explainer.task
    if not isinstance(task, TextClassification):
        raise InputError(f"{type(task).__name__} reads no texts; load the explainer of a text classifier")
    found = explain_examples(task, explainer, rows)
    return [_columns(first + number, row, one) for number, (row, one) in enumerate(zip(rows, found, strict=True))]


def _columns(number: int, example: Example, found: Explanation) -> dict[str, Any]:
    needed = found.scores > 0.5 if found.by_layer is None else found.by_layer[-1] > 0.5
    return {
        "row": number,
        "text": example.text,
        "pair": example.pair,
        "label": None if example.label is None else str(example.label),
        "prediction": found.prediction.label,
        "probability": found.prediction.probability,
        "words": list(found.words),
        "segments": [unit.segment for unit in found.units],
        "starts": [unit.span[0] for unit in found.units],
        "ends": [unit.span[1] for unit in found.units],
        "scores": found.scores.tolist(),
        "needed": needed.tolist(),
        "by_layer": None if found.by_layer is None else found.by_layer.tolist(),
    }


def _job(explainer: Explainer, table: Path, columns: Columns, shard: int) -> dict[str, Any]:
    state = table.stat()
    return {
        "table": table.name,
        "bytes": state.st_size,
        "columns": [columns.text_column, columns.pair_column, columns.label_column],
        "model": explainer.task.fingerprint(),
        "method": None if explainer.config is None else explainer.config.digest,
        "shard": shard,
    }


def _start(parts: Path, job: Mapping[str, Any]) -> None:
    """Go on with an earlier run of the same job; refuse to mix two jobs."""
    note = parts / JOB
    if note.is_file() and json.loads(note.read_text()) != job:
        raise InputError(f"{parts} holds part of another job; remove it, or finish that job first")
    parts.mkdir(parents=True, exist_ok=True)
    note.write_text(json.dumps(job))


def _kind_of(out: Path) -> str:
    if out.suffix not in (".parquet", ".jsonl"):
        raise InputError(
            f"{out}: scores are written as .parquet or .jsonl; {nearest(out.suffix, ['.parquet', '.jsonl'])}"
        )
    if out.suffix == ".parquet":
        # Missing, it must be known before the work. And it loads more when it first makes a table: memory that all but
        # the first shard would have on top.
        import_module("pyarrow.parquet")
        import_module("pyarrow").Table.from_pylist([], schema=schema())
    return out.suffix


def _write_whole(file: Path, kind: str, rows: list[dict[str, Any]]) -> None:
    """Write aside, then rename: a shard that is there is complete."""
    aside = file.with_suffix(".writing")
    if kind == ".jsonl":
        aside.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    else:
        from pyarrow import Table
        from pyarrow.parquet import write_table

        write_table(Table.from_pylist(rows, schema=schema()), aside, compression="zstd")
    os.replace(aside, file)


def _merge(shards: list[Path], out: Path, kind: str) -> None:
    """One table of the shards, in order, one in memory at a time."""
    aside = out.with_name(f"{out.name}.writing")
    if kind == ".jsonl":
        with aside.open("wb") as stream:
            for shard in shards:
                stream.write(shard.read_bytes())
    else:
        from pyarrow.parquet import ParquetWriter, read_table

        with ParquetWriter(aside, schema(), compression="zstd") as writer:
            for shard in shards:
                writer.write_table(read_table(shard, schema=schema()))
    os.replace(aside, out)


def schema() -> Any:
    """The columns of a Parquet table of scores."""
    import pyarrow as arrow

    return arrow.schema(
        {
            "row": arrow.int64(),
            "text": arrow.string(),
            "pair": arrow.string(),
            "label": arrow.string(),
            "prediction": arrow.string(),
            "probability": arrow.float32(),
            "words": arrow.list_(arrow.string()),
            "segments": arrow.list_(arrow.int8()),
            "starts": arrow.list_(arrow.int32()),
            "ends": arrow.list_(arrow.int32()),
            "scores": arrow.list_(arrow.float32()),
            "needed": arrow.list_(arrow.bool_()),
            "by_layer": arrow.list_(arrow.list_(arrow.float32())),
        }
    )
