"""Every tutorial has a notebook: the same text and code, executed without an error."""

import json
import runpy
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
GENERATOR = runpy.run_path(str(ROOT / "docs" / "generate_notebooks.py"))
NAMES = GENERATOR["names"]()


def saved(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((ROOT / "notebooks" / f"{name}.ipynb").read_text())
    return found


def test_there_is_one_notebook_per_tutorial() -> None:
    assert sorted(path.stem for path in (ROOT / "notebooks").glob("*.ipynb")) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_is_its_tutorial_executed(name: str) -> None:
    notebook = saved(name)
    fresh = GENERATOR["cells"](name)
    assert [cell["source"] for cell in notebook["cells"]] == [cell["source"] for cell in fresh], (
        f"run python docs/generate_notebooks.py {name}"
    )
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    assert any(cell["outputs"] for cell in code)
    outputs = json.dumps([cell["outputs"] for cell in code])
    assert "/tmp/" not in outputs and "Traceback" not in outputs
    assert (ROOT / "notebooks" / f"{name}.ipynb").stat().st_size < 200_000


def test_a_cell_shows_what_it_prints_and_the_html_of_its_last_expression() -> None:
    class Board:
        def _repr_html_(self) -> str:
            return "<b>board</b>"

        def __repr__(self) -> str:
            return "Board()"

    printed, value = GENERATOR["_run"]("print('a')\nboard", {"board": Board()}, 3)
    assert printed["text"] == ["a\n"]
    assert value["data"] == {"text/plain": ["Board()"], "text/html": ["<b>board</b>"]}
    assert GENERATOR["_run"]("x = 1", {}, 1) == []
    with pytest.raises(ZeroDivisionError):
        GENERATOR["_run"]("1 / 0", {}, 1)


def test_outputs_are_kept_only_for_the_same_code() -> None:
    cell = GENERATOR["_cell"]
    saved = [cell("markdown", "old"), cell("code", "1") | {"outputs": ["one"], "execution_count": 1}]
    text, code = GENERATOR["keep_outputs"]([cell("markdown", "new"), cell("code", "1")], saved)
    assert text["source"] == ["new"] and code["outputs"] == ["one"] and code["execution_count"] == 1
    with pytest.raises(ValueError, match="code has changed"):
        GENERATOR["keep_outputs"]([cell("code", "2")], saved)
