"""Write docs/models.md: what is found in a tiny random classifier of every family. Run from the repository's root."""

import sys
import warnings
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))

HEAD = """# Models

With this page you can check whether the model family of your classifier works.

Sites are found by watching a forward pass, not looked up in a table. `python docs/generate_models.py` generates this
page from a tiny random sequence classifier of each family. *Sites* is the number of sites: the token embedding, the
input of every block and the output of the last block. *Padding* is the side on which padding does not change the
prediction.

| family | blocks | sites | padding |
|---|---|---|---|
"""
HEADS = """
## Other heads

Whether the common families work with the other heads of an encoder: *yes*, the error, or – if `transformers` has no
such head.

| family | answers | tags | blanks | similarity |
|---|---|---|---|---|
"""
LANGUAGE_MODELS = """
## Language models

The same for `TextGeneration`, from tiny random decoders. *Erasing*: a hidden part is left out of the pass while all
other tokens keep their positions, or, where the model takes no positions, hidden by an attention mask.

| family | blocks | sites | erasing by |
|---|---|---|---|
"""
TAIL = """
A family that is not listed either works or raises an error that names the missing part when the task is made.
"""


def line(kind: str) -> str:
    """One row of the table."""
    from diffmask.errors import DiffMaskError
    from diffmask.tasks.classification import TextClassification
    from support.tiny_models import tiny_model, word_pieces

    try:
        task = TextClassification(tiny_model(kind), word_pieces(), train=["the film is good", "a very dull mess"])
        task.trace(task.data["train"])
    except DiffMaskError as error:
        return f"| {kind} | {type(error).__name__}: {error} | | |\n"
    first, last = task.site("block1"), task.site("output")
    calls = f", {last.call + 1} calls" if last.call else ""
    order = ", states as [token, row, width]" if first.token_first else ""
    path = first.module.rpartition(".")[0]
    side = "left" if task.padding.left else "right"
    return f"| {kind} | `{path}`{calls}{order} | {len(task.sites)} | {side} |\n"


def heads_line(kind: str) -> str:
    """One row of the table of heads."""
    from diffmask.tasks.masked_word import MaskedWord
    from diffmask.tasks.question_answering import QuestionAnswering
    from diffmask.tasks.sentence_similarity import SentenceSimilarity
    from diffmask.tasks.token_classification import TokenClassification, TokenEncodingConfig

    pairs = [(("is it good ?", "the film is good"), "good")]
    cells = [
        head_cell(kind, QuestionAnswering, pairs),
        head_cell(kind, TokenClassification, ["the film"], encoding=TokenEncodingConfig(unit="word")),
        head_cell(kind, MaskedWord, ["the film is [MASK]"]),
        head_cell(kind, SentenceSimilarity, [(("the film", "a movie"), None)]),
    ]
    return f"| {kind} | {' | '.join(cells)} |\n"


def head_cell(kind: str, task_class: Any, rows: Any, **options: Any) -> str:
    """Whether a family works with the head of a task."""
    import transformers

    from diffmask.errors import DiffMaskError
    from support.tiny_models import tiny_model, word_pieces

    try:
        model = tiny_model(kind, 2, head=getattr(transformers, task_class.spec.auto_class))
    except ValueError:  # transformers knows no such head of the family
        return "–"
    try:
        task = task_class(model, word_pieces(segments=kind == "bert"), train=rows, **options)
        task.trace(task.data["train"])
    except DiffMaskError as error:
        return type(error).__name__
    return "yes"


def language_model_line(kind: str) -> str:
    """One row of the table of language models."""
    from diffmask.errors import DiffMaskError
    from diffmask.tasks.generation.text_generation import TextGeneration
    from support.tiny_language_models import tiny_language_model, word_tokenizer

    prompts = [
        {"documents": ["ann lives in oslo. bob is a pilot."], "question": "what is bob?", "response": "a pilot."}
    ]
    try:
        task = TextGeneration(tiny_language_model(kind), word_tokenizer(), train=prompts)
        task.trace(task.data["train"])
    except DiffMaskError as error:
        return f"| {kind} | {type(error).__name__}: {error} | | |\n"
    path = task.site("block1").module.rpartition(".")[0]
    way = "positions" if task.takes_positions else "attention mask"
    return f"| {kind} | `{path}` | {len(task.sites)} | {way} |\n"


def page() -> str:
    """The whole page."""
    from support.tiny_language_models import FAMILIES as DECODERS
    from support.tiny_language_models import FURTHER as FURTHER_DECODERS
    from support.tiny_models import FAMILIES, FURTHER

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        families = "".join(line(family.kind) for family in [*FAMILIES, *FURTHER])
        heads = "".join(heads_line(family.kind) for family in FAMILIES)
        decoders = "".join(map(language_model_line, [*DECODERS, *FURTHER_DECODERS]))
        return HEAD + families + HEADS + heads + LANGUAGE_MODELS + decoders + TAIL


if __name__ == "__main__":
    (ROOT / "docs" / "models.md").write_text(page())
