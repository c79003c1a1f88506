"""`diffmask explain`: explain texts on the screen, or a table of any size."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from diffmask.cli.options import Device, Force, Quiet, TrustRemoteCode, configure_logging, require_folder

if TYPE_CHECKING:
    from diffmask.core.explainer import Explainer
    from diffmask.core.task import Task
    from diffmask.datasets.tables import Columns

DEFAULT_OUT = Path("scores.parquet")


def explain(
    explainer: Annotated[
        str, typer.Argument(help="Folder that `diffmask fit` wrote, its hub id, or the folder of a model.")
    ],
    text: Annotated[list[str] | None, typer.Option(help="Text to explain; may be given several times.")] = None,
    question: Annotated[str | None, typer.Option(help="Question to explain, with its --context.")] = None,
    context: Annotated[str | None, typer.Option(help="Passage that the question is about.")] = None,
    data: Annotated[
        Path | None,
        typer.Option(help="Table to explain: .csv, .tsv, .jsonl or .parquet; or mind:FOLDER, impressions."),
    ] = None,
    text_column: Annotated[
        str | None, typer.Option(help="Column of the texts; by default as the explainer was fitted.")
    ] = None,
    pair_column: Annotated[str | None, typer.Option(help="Column of the second texts of pairs.")] = None,
    out: Annotated[
        Path,
        typer.Option(help="Table to write, .parquet or .jsonl; for mind:FOLDER a folder (words/)."),
    ] = DEFAULT_OUT,
    method: Annotated[
        str | None,
        typer.Option(help="Method for the folder of a model, which needs no fit; by default leave-one-out."),
    ] = None,
    target: Annotated[
        str | None, typer.Option(help="Class to explain, by name or index; by default the predicted one.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Path of the classifier, if it has moved since the explainer was fitted.")
    ] = None,
    verify: Annotated[
        bool, typer.Option(help="Verify every row of the table on the model, with several masked copies per text.")
    ] = False,
    n_samples: Annotated[int, typer.Option(min=1, help="mind:FOLDER: number of test impressions to explain.")] = 100,
    top_k: Annotated[int, typer.Option(min=1, help="mind:FOLDER: most important words per class.")] = 15,
    min_count: Annotated[
        int, typer.Option(min=1, help="mind:FOLDER: leave out words that occur less often in a class.")
    ] = 3,
    compare_with: Annotated[
        list[str] | None,
        typer.Option(help="mind:FOLDER: method without a fit that explains the same titles; may be repeated."),
    ] = None,
    force: Force = False,
    device: Device = None,
    quiet: Quiet = False,
    trust_remote_code: TrustRemoteCode = False,
) -> None:
    """Explain texts. A table is explained in shards, so that a killed run resumes when it is started again.

    A text given by --text is verified: the printed words were measured to be enough. A table takes one forward pass per
    text and predicts the needed words; --verify measures them and adds columns (enough, kl, same_prediction, minimal).

    Example: diffmask explain explainer/ --text "A fast, funny, highly enjoyable movie."

    Example: diffmask explain qa-explainer/ --question "Who wrote Emma?" --context "Emma is a novel by Jane Austen."

    Example: diffmask explain clf/ --method integrated-gradients --target negative --text "A dull movie."

    Example: diffmask explain explainer/ --data reviews.csv --text-column text --out scores.parquet

    Example: diffmask explain nrms-explainer/ --data mind:FOLDER --n-samples 100 --top-k 15 --out words/
    """
    from diffmask.errors import InputError
    from diffmask.workspace.sharding import explain_table, require_output

    if not text and data is None and question is None and context is None:
        raise InputError("nothing to explain; give --text, --question with --context, or --data")
    if data is not None and str(data).startswith("mind:"):
        folder = Path("words") if out == DEFAULT_OUT else out
        require_folder(folder, ["word_importance.json"], force)
        configure_logging(quiet)
        loaded = _load(explainer, method, model, device, trust_remote_code)
        _explain_impressions(loaded, str(data), folder, n_samples, top_k, min_count, compare_with or [])
        return
    if data is not None:
        require_output(out, force)
        if not data.is_file():
            raise InputError(f"--data {data}: there is no such file")
    configure_logging(quiet)
    loaded = _load(explainer, method, model, device, trust_remote_code)
    for sentence in text or []:
        found = loaded(sentence, target=target)
        # A tagged sentence has one explanation for each of its entities.
        for explanation in found if isinstance(found, list) else [found]:
            explanation.show()
    if question is not None or context is not None:
        asked = {"question": question, "context": context}
        loaded(**{name: value for name, value in asked.items() if value is not None}).show()
    if data is not None:
        columns = _columns(loaded.task, text_column, pair_column)
        rows = explain_table(loaded, data, out, columns, verify=verify, force=force, target=target)
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
