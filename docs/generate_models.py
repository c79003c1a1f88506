"""Write docs/models.md: what is found in a tiny random classifier of every family. Run from the repository's root."""

import sys
import warnings
from pathlib import Path

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


def page() -> str:
    """The whole page."""
    from support.tiny_models import FAMILIES, FURTHER

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return HEAD + "".join(line(family.kind) for family in [*FAMILIES, *FURTHER]) + TAIL


if __name__ == "__main__":
    (ROOT / "docs" / "models.md").write_text(page())
