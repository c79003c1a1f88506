"""`diffmask explain`: explain texts on the screen, or a table of any size."""

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from diffmask.cli.options import (
    Device,
    Force,
    Quiet,
    TextColumns,
    TrustRemoteCode,
    configure_logging,
    expand_groups,
    overrides,
    require_folder,
)

if TYPE_CHECKING:
    from diffmask.core.explainer import Explainer
    from diffmask.core.task import Task
    from diffmask.datasets.tables import Columns

DEFAULT_OUT, DEFAULT_FOLDER = Path("scores.parquet"), Path("words")


ExplainerPath = Annotated[
    str, typer.Argument(help="Folder that `diffmask fit` wrote, its hub id, or the folder of a model.")
]
Texts = Annotated[list[str] | None, typer.Option("--text", help="Text to explain; may be given several times.")]
Table = Annotated[
    Path | None,
    typer.Option("--data", help="Table to explain: .csv, .tsv, .jsonl or .parquet; or mind:FOLDER, impressions."),
]
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
TableOptions = Annotated[
    list[str] | None, overrides("Columns and encoding of the table, such as text_column=review, encoding=latin-1.")
]


@expand_groups
def explain_command(
    explainer: ExplainerPath,
    text: Texts = None,
    question: Annotated[str | None, typer.Option(help="Question to explain, with its --context.")] = None,
    context: Annotated[str | None, typer.Option(help="Passage that the question is about.")] = None,
    data: Table = None,
    *,
    text_columns: TextColumns,
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
    choices: TableOptions = None,
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
    from diffmask.core.config import parse_overrides
    from diffmask.errors import InputError

    asked = {name: value for name, value in {"question": question, "context": context}.items() if value is not None}
    if not text and data is None and not asked:
        raise InputError("nothing to explain; give --text, --question with --context, or --data")
    impressions = str(data).startswith("mind:")
    out = DEFAULT_FOLDER if impressions and out == DEFAULT_OUT else out
    _require_data(data, out, force)
    columns = parse_overrides(text_columns.with_overrides(choices))
    _require_columns(None if impressions else data, columns)
    configure_logging(quiet)
    loaded = _load(explainer, method, model, device, trust_remote_code)
    _show(loaded, text or [], asked, target)
    if impressions:
        _explain_impressions(loaded, str(data), out, n_samples, top_k, min_count, compare_with or [])
    elif data is not None:
        _explain_table(loaded, data, out, columns, verify=verify, force=force, target=target)


def _require_data(data: Path | None, out: Path, force: bool) -> None:
    """Refuse, before any work, a missing table or an output that exists."""
    from diffmask.errors import InputError
    from diffmask.workspace.sharding import require_output

    if data is None:
        return
    if str(data).startswith("mind:"):
        require_folder(out, ["word_importance.json"], force)
        return
    require_output(out, force)
    if not data.is_file():
        raise InputError(f"--data {data}: there is no such file")


def _show(explainer: "Explainer", texts: list[str], asked: dict[str, str], target: str | None) -> None:
    """Show the explanation of each text, and of the question and context in `asked`."""
    for text in texts:
        explanations = explainer(text, target=target)
        # A tagged sentence has one explanation for each of its entities.
        for explanation in explanations if isinstance(explanations, list) else [explanations]:
            explanation.show()
    if asked:
        explainer(**asked).show()


def _explain_table(explainer: "Explainer", data: Path, out: Path, columns: Mapping[str, str], **options: Any) -> None:
    """Explain every row of a table in shards."""
    from diffmask.workspace.sharding import explain_table

    rows = explain_table(explainer, data, out, _columns(explainer.task, columns), **options)
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


def _require_columns(data: Path | None, chosen: Mapping[str, str]) -> None:
    """Refuse, before a model is loaded, an unknown option or a column that the table does not have."""
    from diffmask.datasets.tables import Columns, read_table
    from diffmask.errors import InputError, nearest

    known = [field.name for field in fields(Columns)]
    for name in chosen:
        if name not in known:
            raise InputError(f"'{name}' is not an option of explain; {nearest(name, known)}")
    if data is None:
        return
    row = next(read_table(data, chosen.get("encoding", "utf-8")), {})
    present = list(row) if isinstance(row, Mapping) else []  # a JSON line may also be a text or a list
    for name in ("text_column", "pair_column"):
        if chosen.get(name) is not None and chosen[name] not in present:
            raise InputError(f"{data}: there is no column '{chosen[name]}'; {nearest(str(chosen[name]), present)}")


def _columns(task: "Task", chosen: Mapping[str, str]) -> "Columns":
    """Return the columns that were asked for; those that the task reads if none were."""
    from diffmask.datasets.tables import Columns
    from diffmask.tasks.text.text_task import TextTask

    default = task.spec.encoding_class() if isinstance(task, TextTask) else Columns()
    return Columns(**{field.name: getattr(default, field.name) for field in fields(Columns)} | dict(chosen))
