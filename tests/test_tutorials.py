"""Every Python block of the documentation runs, in order, in one namespace a page."""

import re
from pathlib import Path

import pytest
import torch

from diffmask import registry

DOCS = Path(__file__).parent.parent / "docs"
PAGES = sorted(page for page in DOCS.rglob("*.md") if "```python" in page.read_text())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
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
