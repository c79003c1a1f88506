"""Explain many rows in shards, each kept as soon as it is finished: a killed run resumes and loses one shard at most.

`explain_in_shards` explains a split of a task into a workspace's store. `explain_table` explains a table of any size:
while it runs, `OUT.parts/` holds `job.json` (the identity of the job) and the finished shards. The shards are then
merged into one table `OUT`, and the folder is removed. `docs/reference/scores.md` describes the columns.
"""

import hashlib
import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib import import_module
from io import BytesIO
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from diffmask.core.batch import Attribution, Batch, order_by_length
from diffmask.core.config import digest_of, digest_of_files
from diffmask.core.explainer import Explainer
from diffmask.core.lock import locked
from diffmask.core.progress import progress_bar
from diffmask.core.resources import Cost
from diffmask.core.store import Artefact, Store, read_artefact
from diffmask.datasets.squad import is_squad_file, read_squad
from diffmask.datasets.tables import Columns, Example, read_examples
from diffmask.errors import ExtraError, InputError, nearest
from diffmask.explanation.explanation import Explanation
from diffmask.explanation.verified_set import VerifiedSet
from diffmask.results.records import atomic_write, read_json, write_json
from diffmask.tasks.text.text_task import TextTask


@dataclass(frozen=True)
class Shards:
    """Numbered shards of one job in a store. The key of a shard holds the job's digest, so that jobs never mix."""

    store: Store
    job: str
    """Digest of everything that decides the scores."""
    size: int
    """Rows per shard."""

    def digest(self, number: int) -> str:
        """Return the cache key of one shard."""
        return digest_of(["shard", self.job, number, self.size])

    def is_done(self, number: int) -> bool:
        """Return whether a shard is finished and complete."""
        return self.store.has("shard", self.digest(number))

    def get_or_make(self, number: int, make: Callable[[], Artefact]) -> Artefact:
        """Return a finished shard, or make it. A damaged shard is made again."""
        return self.store.get_or_make("shard", self.digest(number), make)

    def read(self, number: int) -> Artefact:
        """Return a finished shard after verifying its checksums."""
        digest = self.digest(number)
        return read_artefact(self.store.path("shard", digest), "shard", digest)


def explain_in_shards(shards: Shards, batch: Batch, make_explainer: Callable[[], Explainer]) -> Artefact:
    """Return the attributions of a batch with their total cost; the explainer is made for the first missing shard."""
    order = order_by_length(batch)
    explainers: list[Explainer] = []

    def explain(rows: Int[Tensor, " row"]) -> Artefact:
        if not explainers:
            explainers.append(make_explainer())
        explainers[0].cost = Cost()
        return attribution_artefact(explainers[0], explainers[0](batch[rows]))

    finished = [
        shards.get_or_make(number, partial(explain, rows)) for number, rows in enumerate(order.split(shards.size))
    ]
    original_order = order.argsort()
    tensors = {
        name: torch.cat([shard.tensors[name] for shard in finished])[original_order] for name in finished[0].tensors
    }
    cost = sum((Cost(**shard.values["cost"]) for shard in finished), Cost())
    return Artefact(tensors, {**finished[0].values, "cost": asdict(cost)})


def attribution_artefact(explainer: Explainer, attribution: Attribution) -> Artefact:
    """Return the artefact that stores an attribution and its cost."""
    layers = {} if attribution.by_layer is None else {"by_layer": attribution.by_layer}
    return Artefact(
        {"scores": attribution.scores, **layers},
        {"layers": list(attribution.layers), "cost": asdict(explainer.cost), "fit_cost": asdict(explainer.fit_cost)},
    )


JOB_FILE = "job.json"


def explain_table(
    explainer: Explainer,
    table: Path,
    out: Path,
    columns: Columns,
    shard_size: int = 1000,
    *,
    verify: bool = False,
    force: bool = False,
    target: Any = None,
) -> int:
    """Write the scores of every row of a table to `out` and return the number of rows.

    With `verify` the words that are enough are searched for on the model, with several masked copies per text.

    A run with the same explainer, table and columns resumes after its finished shards. A run that was begun with others
    is refused. `force` starts again, and replaces a finished `out`. Of two runs on one `out`, the second waits.
    """
    require_output(out, force)
    with locked(out.with_name(f"{out.name}.lock")):
        require_output(out, force)  # another run may have finished while this one waited
        # Every row is read once before any work: a table that cannot be read is refused here.
        rows = sum(1 for _ in _examples(table, columns))
        folder = out.with_name(f"{out.name}.parts")
        identity = {**_identity(explainer, table, columns, shard_size), "verification": verify, "target": target}
        job = _start(folder, identity, force)
        shards = Shards(Store(folder), job, shard_size)
        count = 0
        parts = _split(_examples(table, columns), shard_size)
        for rows_of_shard in progress_bar(parts, "explain shards", -(-rows // shard_size)):
            first = count * shard_size
            make = partial(_table_artefact, explainer, rows_of_shard, first, out.suffix, verify, target)
            shards.get_or_make(count, make)
            count += 1
        _merge((shards.read(number) for number in range(count)), out, verify)
        shutil.rmtree(folder)
    return rows


def _examples(table: Path, columns: Columns) -> Iterator[Example]:
    return read_squad(table) if is_squad_file(table) else read_examples(table, columns)


def _split(rows: Iterable[Example], size: int) -> Iterator[tuple[Example, ...]]:
    source = iter(rows)
    while shard := tuple(islice(source, size)):
        yield shard


def _identity(explainer: Explainer, table: Path, columns: Columns, shard_size: int) -> dict[str, Any]:
    """Return everything that decides the scores, as digests; the keys are named in the refusal of another job."""
    return {
        "table": digest_of_files(table),
        "columns": [columns.text_column, columns.pair_column, columns.label_column],
        "model": explainer.task.fingerprint(),
        "method": None if explainer.config is None else explainer.config.digest,
        "explainer weights": _weights_digest(explainer),
        "shard size": shard_size,
    }


def _weights_digest(explainer: Explainer) -> str:
    digest = hashlib.sha256()
    for name, value in sorted(explainer.state_dict().items()):
        digest.update(name.encode())
        digest.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _start(folder: Path, identity: Mapping[str, Any], force: bool) -> str:
    """Begin a job or resume the same one, and return its digest; the folder of another job is refused."""
    file = folder / JOB_FILE
    if force and folder.exists():
        shutil.rmtree(folder)
    if file.exists():
        changed = [name for name, value in identity.items() if _read_job(file).get(name) != value]
        if changed:
            raise InputError(
                f"{folder} was begun with another {', another '.join(changed)}; finish that run, or give --force to "
                "start again"
            )
    else:
        write_json(file, identity)
    return digest_of(identity)


def _read_job(file: Path) -> dict[str, Any]:
    remedy = "the run cannot resume; give --force to start again"
    job = read_json(file, remedy)
    if not isinstance(job, dict):
        raise InputError(f"{file} is damaged: {remedy}")
    return job


def require_output(out: Path, force: bool) -> None:
    """Refuse, before any work, a table of scores that cannot be written or that is finished already."""
    if out.suffix not in (".parquet", ".jsonl"):
        raise InputError(
            f"{out}: scores are written as .parquet or .jsonl; {nearest(out.suffix, ['.parquet', '.jsonl'])}"
        )
    if out.is_dir():
        raise InputError(f"{out} is a folder; give the path of a file")
    if out.exists() and not force:
        raise InputError(f"{out} exists already; give another --out, or --force to replace it")
    if out.suffix == ".parquet":
        try:
            import_module("pyarrow.parquet")
        except ImportError:
            raise ExtraError(f"{out}: Parquet needs pyarrow: pip install pyarrow, or write .jsonl") from None
        # pyarrow loads more code with its first table; loaded here, it does not count as memory of a shard.
        import_module("pyarrow").Table.from_pylist([], schema=schema())


def explain_rows(
    explainer: Explainer, rows: tuple[Example, ...], first: int = 0, *, verify: bool = False, target: Any = None
) -> list[dict[str, Any]]:
    """Return the columns of some rows of a table; `first` is the number of the first row."""
    task = explainer.task
    if not isinstance(task, TextTask):
        raise InputError(f"{type(task).__name__} reads no texts; load the explainer of a task on texts")
    examples = [replace(task.to_example(row), label=None) for row in rows]  # labels are copied, not read
    targets = None if target is None else [task.outcome_of(target)] * len(rows)
    explanations: list[Any] = task.explain_examples(explainer, examples, verify=verify, targets=targets)
    return [
        _columns(first + number, row, explanation)
        for number, (row, result) in enumerate(zip(rows, explanations, strict=True))
        # A tagged sentence has one explanation for each of its entities.
        for explanation in (result if isinstance(result, list) else [result])
    ]


def _columns(number: int, example: Example, explanation: Explanation) -> dict[str, Any]:
    last = explanation.scores if explanation.by_layer is None else explanation.by_layer[-1]
    return {
        "row": number,
        "text": example.text,
        "pair": example.pair,
        "label": None if example.label is None else str(example.label),
        "prediction": explanation.prediction.label,
        "probability": explanation.prediction.probability,
        "target": None if explanation.target is None else explanation.target.label,
        "words": list(explanation.words),
        "segments": [unit.segment for unit in explanation.units],
        "starts": [unit.span[0] for unit in explanation.units],
        "ends": [unit.span[1] for unit in explanation.units],
        "scores": explanation.scores.tolist(),
        "needed": (last > 0.5).tolist(),
        "by_layer": None if explanation.by_layer is None else explanation.by_layer.tolist(),
        **_verified_columns(explanation.verified),
    }


def _verified_columns(verified: VerifiedSet | None) -> dict[str, Any]:
    if verified is None:
        return {}
    return {
        "enough": list(verified.kept),
        "kl": verified.kl,
        "same_prediction": verified.same_prediction,
        "minimal": verified.minimal,
    }


def _table_artefact(
    explainer: Explainer, rows: tuple[Example, ...], first: int, suffix: str, verify: bool, target: Any
) -> Artefact:
    """Return a shard's file as an artefact: its bytes are one tensor, which the store verifies by its checksum."""
    columns = explain_rows(explainer, rows, first, verify=verify, target=target)
    if suffix == ".jsonl":
        content = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in columns).encode()
    else:
        from pyarrow import Table
        from pyarrow.parquet import write_table

        buffer = BytesIO()
        write_table(Table.from_pylist(columns, schema=schema(verify)), buffer, compression="zstd")
        content = buffer.getvalue()
    return Artefact({"file": torch.frombuffer(bytearray(content), dtype=torch.uint8)}, {"rows": len(rows)})


def _merge(shards: Iterable[Artefact], out: Path, verify: bool) -> None:
    """Write the shards to one table, one in memory at a time; the table appears whole."""
    files = (shard.tensors["file"].numpy().tobytes() for shard in shards)
    with atomic_write(out) as temporary:
        if out.suffix == ".jsonl":
            with temporary.open("wb") as stream:
                for content in files:
                    stream.write(content)
        else:
            from pyarrow.parquet import ParquetWriter, read_table

            with ParquetWriter(temporary, schema(verify), compression="zstd") as writer:
                for content in files:
                    writer.write_table(read_table(BytesIO(content), schema=schema(verify)))


def schema(verify: bool = False) -> Any:
    """Return the Arrow schema of a table of scores, with the columns of verification if asked for."""
    import pyarrow as arrow

    flag = arrow.bool_()
    verified = {"enough": arrow.list_(flag), "kl": arrow.float32(), "same_prediction": flag, "minimal": flag}
    return arrow.schema(
        {
            "row": arrow.int64(),
            "text": arrow.string(),
            "pair": arrow.string(),
            "label": arrow.string(),
            "prediction": arrow.string(),
            "probability": arrow.float32(),
            "target": arrow.string(),
            "words": arrow.list_(arrow.string()),
            "segments": arrow.list_(arrow.int8()),
            "starts": arrow.list_(arrow.int32()),
            "ends": arrow.list_(arrow.int32()),
            "scores": arrow.list_(arrow.float32()),
            "needed": arrow.list_(arrow.bool_()),
            "by_layer": arrow.list_(arrow.list_(arrow.float32())),
            **(verified if verify else {}),
        }
    )
