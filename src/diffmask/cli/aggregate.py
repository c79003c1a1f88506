"""`diffmask aggregate`: which words matter per class, from a table of scores."""

from collections.abc import Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from diffmask.cli.options import Force

if TYPE_CHECKING:
    from diffmask.results.aggregation import ScoredText


class By(StrEnum):
    """Key of the aggregate."""

    WORD = "word"
    POSITION = "position"
    LAYER = "layer"
    PART_OF_SPEECH = "part-of-speech"
    ENTITY_TYPE = "entity-type"


def aggregate_command(
    scores: Annotated[Path, typer.Argument(help="Table that `diffmask explain --data` wrote: .parquet or .jsonl.")],
    by: Annotated[
        By,
        typer.Option(help="Words, positions in the text, layers that drop words, parts of speech or entity types."),
    ] = By.WORD,
    pipeline: Annotated[
        str | None,
        typer.Option(
            help="Installed spaCy pipeline for parts of speech and entity types; by default the English one.",
            metavar="NAME",
        ),
    ] = None,
    top: Annotated[int, typer.Option(min=1, help="Number of rows to print per class.")] = 10,
    min_texts: Annotated[int, typer.Option(min=1, help="Least number of texts in which a word occurs.")] = 2,
    out: Annotated[
        Path | None, typer.Option(help="File for all rows (.csv), or for a figure (.png, .pdf, .svg).")
    ] = None,
    force: Force = False,
) -> None:
    """Print the words that matter most per class, with counts and 95 % intervals over texts.

    Example: diffmask aggregate scores.parquet --by word --out words.csv
    """
    from diffmask.datasets.tables import read_table
    from diffmask.errors import InputError, nearest
    from diffmask.results.aggregation import aggregate

    suffixes = (".csv", ".png", ".pdf", ".svg")
    if out is not None and out.suffix not in suffixes:
        raise InputError(f"--out {out}: {nearest(out.suffix, suffixes)}")
    if out is not None and out.exists() and not force:
        raise InputError(f"{out} exists already; give another --out, or --force to replace it")
    aggregated = aggregate(_scored_texts(read_table(scores), scores), by.value, min_texts=min_texts, pipeline=pipeline)
    aggregated.show(top)
    if out is not None and out.suffix == ".csv":
        aggregated.to_csv(out)
    elif out is not None:
        aggregated.plot(top).savefig(out)
    if out is not None:
        print(f"\nwritten: {out}")


def _scored_texts(rows: Iterator[Mapping[str, Any]], path: Path) -> "Iterator[ScoredText]":
    from diffmask.errors import InputError
    from diffmask.results.aggregation import ScoredText, divide_by_largest

    for number, row in enumerate(rows):
        if not {"words", "scores", "prediction"} <= set(row):
            raise InputError(f"{path}, row {number}: not a table of scores; write one with `diffmask explain --data`")
        layers = row.get("by_layer")
        yield ScoredText(
            group=row.get("target") or row["prediction"],
            words=row["words"],
            scores=divide_by_largest(row["scores"]),
            kept=row.get("enough"),
            dropped_at=_dropped(layers) if layers else None,
        )


def _dropped(layers: list[list[float]]) -> list[str | None]:
    """Return the first layer that no longer needs each word, by keep probabilities above one half."""
    names = ["embedding", *(f"block{index}" for index in range(1, len(layers) - 1)), "output"]
    dropped: list[str | None] = []
    for column in zip(*layers, strict=True):
        last = max((index for index, value in enumerate(column) if value > 0.5), default=-1)
        dropped.append(names[last + 1] if last + 1 < len(names) else None)
    return dropped
