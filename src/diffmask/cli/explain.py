"""`diffmask explain`: a text on the screen, or a table of any size."""

from pathlib import Path
from typing import Annotated

import typer


def explain(
    explainer: Annotated[str, typer.Argument(help="The --out folder of `diffmask fit`, or a hub id.")],
    text: Annotated[list[str] | None, typer.Option(help="A text to explain; may be given several times.")] = None,
    data: Annotated[Path | None, typer.Option(help="A table to explain: .csv, .tsv, .jsonl or .parquet.")] = None,
    text_column: Annotated[str, typer.Option(help="Its column of texts.")] = "text",
    pair_column: Annotated[str | None, typer.Option(help="Its column of second texts.")] = None,
    out: Annotated[Path, typer.Option(help="Scores of the table, .parquet or .jsonl.")] = Path("scores.parquet"),
    model: Annotated[str | None, typer.Option(help="The classifier, where it is not where it was.")] = None,
) -> None:
    """Explain texts in one pass each. A table is written in shards: kill it and run it again, and it goes on.

    Example: diffmask explain explainer/ --text "A fast, funny, highly enjoyable movie."

    Example: diffmask explain explainer/ --data reviews.csv --text-column text --out scores.parquet
    """
    from diffmask.cli.screen import show_log
    from diffmask.datasets.tables import Columns
    from diffmask.errors import InputError
    from diffmask.workspace.persistence import load_explainer
    from diffmask.workspace.sharding import explain_table

    if not text and data is None:
        raise InputError("nothing to explain; give --text or --data")
    show_log(quiet=True)
    loaded = load_explainer(explainer, model)
    for one in text or []:
        loaded(one).show()
    if data is not None:
        rows = explain_table(loaded, data, out, Columns(text_column=text_column, pair_column=pair_column))
        print(f"scores of {rows} texts: {out}")
