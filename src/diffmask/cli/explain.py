"""`diffmask explain`: explain texts on the screen, or a table of any size."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from diffmask.cli.options import Device, Force, Quiet, TrustRemoteCode, configure_logging, require_folder

if TYPE_CHECKING:
    from diffmask.core.explainer import Explainer
    from diffmask.core.task import Task
    from diffmask.datasets.tables import Columns

DEFAULT_OUT = Path("scores.parquet")


Texts = Annotated[list[str] | None, typer.Option("--text", help="Text to explain; may be given several times.")]
Table = Annotated[
    Path | None,
    typer.Option("--data", help="Table to explain: .csv, .tsv, .jsonl or .parquet; or mind:FOLDER, impressions."),
]
TextColumn = Annotated[str | None, typer.Option(help="Column of the texts; by default as the explainer was fitted.")]
PairColumn = Annotated[str | None, typer.Option(help="Column of the second texts of pairs.")]
Output = Annotated[
    Path, typer.Option("--out", help="Table to write, .parquet or .jsonl; for mind:FOLDER a folder (words/).")
]
MethodName = Annotated[
    str | None,
    typer.Option("--method", help="Method for the folder of a model, which needs no fit; by default leave-one-out."),
]
Target = Annotated[str | None, typer.Option(help="Class to explain, by name or index; by default the predicted one.")]
ModelPath = Annotated[
    str | None, typer.Option("--model", help="Path of the classifier, if it has moved since the explainer was fitted.")
]
Verify = Annotated[
    bool, typer.Option(help="Verify every row of the table on the model, with several masked copies per text.")
]
Impressions = Annotated[
    int, typer.Option("--n-samples", min=1, help="mind:FOLDER: number of test impressions to explain.")
]
TopWords = Annotated[int, typer.Option("--top-k", min=1, help="mind:FOLDER: most important words per class.")]
MinCount = Annotated[int, typer.Option(min=1, help="mind:FOLDER: leave out words that occur less often in a class.")]
OtherMethods = Annotated[
    list[str] | None,
    typer.Option(
        "--compare-with", help="mind:FOLDER: method without a fit that explains the same titles; may be repeated."
    ),
]


def explain(
    explainer: Annotated[
        str, typer.Argument(help="Folder that `diffmask fit` wrote, its hub id, or the folder of a model.")
    ],
    text: Texts = None,
    question: Annotated[str | None, typer.Option(help="Question to explain, with its --context.")] = None,
    context: Annotated[str | None, typer.Option(help="Passage that the question is about.")] = None,
    data: Table = None,
    text_column: TextColumn = None,
    pair_column: PairColumn = None,
    out: Output = DEFAULT_OUT,
    method: MethodName = None,
    target: Target = None,
    model: ModelPath = None,
    verify: Verify = False,
    n_samples: Impressions = 100,
    top_k: TopWords = 15,
    min_count: MinCount = 3,
    compare_with: OtherMethods = None,
    force: Force = False,
    device: Device = None,
    quiet: Quiet = False,
    trust_remote_code: TrustRemoteCode = False,
) -> None:
    """Explain texts, questions, or every row of a table; a killed table resumes when it is started again.

    A text given by --text is verified: the printed words were measured to be enough. A table takes one forward pass per
    text and predicts the needed words; --verify measures them and adds columns (enough, kl, same_prediction, minimal).

    Example: diffmask explain explainer/ --text "A fast, funny, highly enjoyable movie."

    Example: diffmask explain qa-explainer/ --question "Who wrote Emma?" --context "Emma is a novel by Jane Austen."

    Example: diffmask explain clf/ --method integrated-gradients --target negative --text "A dull movie."

    Example: diffmask explain explainer/ --data reviews.csv --text-column text --out scores.parquet

    Example: diffmask explain nrms-explainer/ --data mind:FOLDER --n-samples 100 --top-k 15 --out words/
    """
    from diffmask.errors import InputError

    fields = {name: value for name, value in {"question": question, "context": context}.items() if value is not None}
    if not text and data is None and not fields:
        raise InputError("nothing to explain; give --text, --question with --context, or --data")
    impressions = data is not None and str(data).startswith("mind:")
    out = Path("words") if impressions and out == DEFAULT_OUT else out
    if data is not None:
        _require_table(data, out, force, impressions)
    configure_logging(quiet)
    loaded = _load(explainer, method, model, device, trust_remote_code)
    _show(loaded, text or [], fields, target)
    if impressions:
        _explain_impressions(loaded, str(data), out, n_samples, top_k, min_count, compare_with or [])
    elif data is not None:
        _explain_table(loaded, data, out, text_column, pair_column, verify=verify, force=force, target=target)


def _require_table(data: Path, out: Path, force: bool, impressions: bool) -> None:
    """Refuse, before any work, a missing table or an output that exists."""
    from diffmask.errors import InputError
    from diffmask.workspace.sharding import require_output

    if impressions:
        require_folder(out, ["word_importance.json"], force)
        return
    require_output(out, force)
    if not data.is_file():
        raise InputError(f"--data {data}: there is no such file")


def _show(explainer: "Explainer", texts: list[str], fields: dict[str, str], target: str | None) -> None:
    """Show the explanation of each text, and of the question and context in `fields`."""
    for text in texts:
        found = explainer(text, target=target)
        # A tagged sentence has one explanation for each of its entities.
        for explanation in found if isinstance(found, list) else [found]:
            explanation.show()
    if fields:
        explainer(**fields).show()


def _explain_table(
    explainer: "Explainer", data: Path, out: Path, text_column: str | None, pair_column: str | None, **choices: Any
) -> None:
    """Explain every row of a table in shards."""
    from diffmask.workspace.sharding import explain_table

    columns = _columns(explainer.task, text_column, pair_column)
    rows = explain_table(explainer, data, out, columns, **choices)
    print(f"scores of {rows} texts: {out}")


def _load(
    folder: str, method: str | None, model: str | None, device: str | None, trust_remote_code: bool
) -> "Explainer":
    """Return a saved explainer, or a method without a fit for the folder of a model, on the given device."""
    from diffmask.workspace.persistence import load_explainer
    from diffmask.workspace.quick import is_model_folder, move_explainer, quick_explainer

    if method is not None or is_model_folder(folder):
        loaded = quick_explainer(folder, method, trust_remote_code=trust_remote_code)
    else:
        loaded = load_explainer(folder, model, trust_remote_code=trust_remote_code)
    return loaded if device is None else move_explainer(loaded, device)


def _explain_impressions(
    explainer: "Explainer", data: str, out: Path, n_samples: int, top_k: int, min_count: int, compare_with: list[str]
) -> None:
    """Explain test impressions of a recommender and write the words that matter to a folder."""
    from diffmask.benchmarking.word_report import write_word_report
    from diffmask.core.config import parse
    from diffmask.tasks.recommender.recommender_configs import load_impressions
    from diffmask.workspace.quick import fit_without_data

    others = [fit_without_data(parse("method", name, "explain"), explainer.task) for name in compare_with]
    impressions = load_impressions(data)["test"][:n_samples]
    report = write_word_report(explainer, impressions, out, top_k=top_k, min_count=min_count, others=others)
    print(f"{report}\nexplanations: {out}")


def _columns(task: "Task", text_column: str | None, pair_column: str | None) -> "Columns":
    """Return the columns that were asked for; those that the task reads if none were."""
    from diffmask.datasets.tables import Columns
    from diffmask.tasks.text.text_task import TextTask

    given = {"text_column": text_column, "pair_column": pair_column}
    chosen = {name: value for name, value in given.items() if value is not None}
    default = task.encoding_class() if isinstance(task, TextTask) else Columns()
    names = ("text_column", "pair_column", "label_column")
    return Columns(**{name: getattr(default, name) for name in names} | chosen)
