"""Write notebooks/NAME.ipynb, executed, from the Python blocks of every tutorial. Run from the repository's root.

    python docs/generate_notebooks.py [--text] [NAME...]

With --text only the text is written again; the code must be that of the saved notebook, whose outputs are kept.
No Jupyter is needed: cells run in one namespace per notebook. An output is what a cell prints, and the HTML or text of
its last expression. Blocks that need a model or data of the reader (`py`) and shell commands stay text.
"""

import ast
import contextlib
import io
import json
import os
import re
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
PAGES = ROOT / "docs" / "tutorials"
FOLDER = ROOT / "notebooks"
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
INSTALL = "!pip install 'diffmask[text,plot]'"


def names() -> list[str]:
    """Return the tutorials."""
    return sorted(page.stem for page in PAGES.glob("*.md"))


def cells(name: str) -> list[dict[str, Any]]:
    """Return the cells of a tutorial, not executed; the first code cell says how to install."""
    parts = re.split(r"```python\n(.*?)```", (PAGES / f"{name}.md").read_text(), flags=re.DOTALL)
    found = [_cell("code", f"# {INSTALL}  # once, in a fresh environment")]
    for number, part in enumerate(parts):
        if part.strip():
            found.append(_cell("code" if number % 2 else "markdown", part.strip()))
    for number, cell in enumerate(found):
        cell["id"] = f"{name}-{number}".replace("_", "-")
    return [found[1], found[0], *found[2:]]  # the title first


def _cell(kind: str, source: str) -> dict[str, Any]:
    code = {"execution_count": None, "outputs": []} if kind == "code" else {}
    return {"cell_type": kind, "id": "", "metadata": {}, "source": source.splitlines(keepends=True), **code}


def execute(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Run the code cells in order, in a scratch folder, and fill in their outputs."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    home = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            code = [cell for cell in found if cell["cell_type"] == "code"]
            for count, cell in enumerate(code, start=1):
                cell["outputs"] = _run("".join(cell["source"]), namespace, count)
                cell["execution_count"] = count
        finally:
            os.chdir(home)
    return found


def _run(source: str, namespace: dict[str, Any], count: int) -> list[dict[str, Any]]:
    """Return the outputs of one cell: printed text, then the value of its last expression; errors are raised."""
    body = ast.parse(source).body
    last = body.pop() if body and isinstance(body[-1], ast.Expr) else None
    printed, value = io.StringIO(), None
    with contextlib.redirect_stdout(printed):
        exec(compile(ast.Module(body, []), "<cell>", "exec"), namespace)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), "<cell>", "eval"), namespace)
    outputs: list[dict[str, Any]] = []
    if printed.getvalue():
        text = printed.getvalue().splitlines(keepends=True)
        outputs.append({"output_type": "stream", "name": "stdout", "text": text})
    if value is not None:
        data = {"text/plain": [repr(value)]}
        if hasattr(value, "_repr_html_"):
            data["text/html"] = [value._repr_html_()]
        outputs.append({"output_type": "execute_result", "execution_count": count, "metadata": {}, "data": data})
    return outputs


def keep_outputs(written: list[dict[str, Any]], saved: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the cells with the outputs of a saved notebook that has the same code."""
    code, old = ([cell for cell in notebook if cell["cell_type"] == "code"] for notebook in (written, saved))
    if [cell["source"] for cell in code] != [cell["source"] for cell in old]:
        raise ValueError("the code has changed: leave out --text, so that it is executed")
    for cell, before in zip(code, old, strict=True):
        cell |= {"outputs": before["outputs"], "execution_count": before["execution_count"]}
    return written


def write(name: str, text_only: bool = False) -> Path:
    """Execute a tutorial, or keep its saved outputs, and write its notebook."""
    FOLDER.mkdir(exist_ok=True)
    path, written = FOLDER / f"{name}.ipynb", cells(name)
    complete = keep_outputs(written, json.loads(path.read_text())["cells"]) if text_only else execute(written)
    notebook = {"cells": complete, "metadata": METADATA, "nbformat": 4, "nbformat_minor": 5}
    path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n")
    return path


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT / "tests"))
    for chosen in [name for name in sys.argv[1:] if name != "--text"] or names():
        try:
            print(write(chosen, "--text" in sys.argv), flush=True)
        except Exception:
            traceback.print_exc()
            sys.exit(f"{chosen}: a cell failed")
