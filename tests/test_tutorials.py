"""Every Python block of the tutorials runs, in order, in one namespace a page."""

import re
from pathlib import Path

import pytest
import torch

PAGES = sorted((Path(__file__).parent.parent / "docs").rglob("*.md"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_code_of_the_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    with torch.random.fork_rng():
        for block in re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.DOTALL):
            exec(compile(block, str(page), "exec"), names)
    assert names or "```python" not in page.read_text()
