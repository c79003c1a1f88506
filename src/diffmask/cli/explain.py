"""`diffmask explain`: explain texts on the screen, or a table of any size."""

from pathlib import Path
from typing import Annotated

import typer

from diffmask.cli.options import Force, TrustRemoteCode, configure_logging


def explain(
    explainer: Annotated[str, typer.Argument(help="Folder that `diffmask fit` wrote, or a hub id.")],
    text: Annotated[list[str] | None, typer.Option(help="Text to explain; may be given several times.")] = None,
    data: Annotated[Path | None, typer.Option(help="Table to explain: .csv, .tsv, .jsonl or .parquet.")] = None,
    text_column: Annotated[str, typer.Option(help="Column of the texts.")] = "text",
    pair_column: Annotated[str | None, typer.Option(help="Column of the second texts of pairs.")] = None,
    out: Annotated[Path, typer.Option(help="Table of scores to write, .parquet or .jsonl.")] = Path("scores.parquet"),
    model: Annotated[
        str | None, typer.Option(help="Path of the classifier, if it has moved since the explainer was fitted.")
    ] = None,
    verify: Annotated[
        bool, typer.Option(help="Verify every row of the table on the model, with several masked copies per text.")
    ] = False,
    force: Force = False,
    trust_remote_code: TrustRemoteCode = False,
) -> None:
    """Explain texts. A table is explained in shards, so that a killed run resumes when it is started again.

    A text given by --text is verified: the printed words were measured to be enough. A table takes one forward pass per
    text and predicts the needed words; --verify measures them and adds columns (enough, kl, same_prediction, minimal).

    Example: diffmask explain explainer/ --text "A fast, funny, highly enjoyable movie."

    Example: diffmask explain explainer/ --data reviews.csv --text-column text --out scores.parquet
    """
    from diffmask.datasets.tables import Columns
    from diffmask.errors import InputError
    from diffmask.workspace.persistence import load_explainer
    from diffmask.workspace.sharding import explain_table, require_output

    if not text and data is None:
        raise InputError("nothing to explain; give --text or --data")
    if data is not None:
        require_output(out, force)
        if not data.is_file():
            raise InputError(f"--data {data}: there is no such file")
    configure_logging(quiet=True)
    loaded = load_explainer(explainer, model, trust_remote_code=trust_remote_code)
    for sentence in text or []:
        loaded(sentence).show()
    if data is not None:
        columns = Columns(text_column=text_column, pair_column=pair_column)
        rows = explain_table(loaded, data, out, columns, verify=verify, force=force)
        print(f"scores of {rows} texts: {out}")
