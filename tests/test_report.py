"""The page of a run shows what was measured, as text, and needs nothing else."""

import json
import re
from dataclasses import replace
from pathlib import Path

import html5lib
import pytest

from diffmask.errors import InputError
from diffmask.report.page import write_page
from diffmask.report.run_files import read_run
from diffmask.results.benchmark_result import save_results
from support.board import synthetic_board

HOSTILE = "<script>alert('x')</script>\"\u202e"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    cost = {"seconds": 1.0, "fit_seconds": 2.0, "forwards": 3}
    base = {"task": "toy", "method": "diffmask", "site": "hidden", "seeds": 1, "cost": cost}
    summary = [
        {**base, "metric": "kl_to_truth", "mean": "inf", "interval": ["inf", "inf"]},
        {**base, "metric": "js_to_truth", "mean": 0.27, "interval": [0.25, 0.29]},
        {**base, "metric": "quality", "method": "model", "mean": 0.999, "interval": [0.99, 1.0], "cost": {}},
    ]
    bar = {"method": "diffmask", "site": "hidden", "per_site": True, "scores": [0.75, 0.25]}
    example = {"task": "toy", "title": HOSTILE, "words": [HOSTILE, "b"], "bars": [bar]}
    files = {
        "summary": summary,
        "examples": [example],
        "manifest": {"experiment": {"name": "two tasks"}, "seeds": [0], "seconds": 1.0, "finished": "now"},
    }
    for name, content in files.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    (tmp_path / "records.jsonl").write_text("")
    first, second = synthetic_board(texts=2), synthetic_board(texts=3, seed=1)
    save_results(tmp_path, [replace(first, title="toy"), replace(second, title=f"other {HOSTILE}")])
    return tmp_path


def test_numbers_by_site_and_bars_are_on_the_page(folder: Path) -> None:
    page = write_page(folder).read_text()
    assert "∞" in page
    assert "0.27" in page
    # Bars are shares of 90 units: 0.75 * 90.
    assert 'height="67.5"' in page
    assert '<td class="heat h8">0.75</td>' in page


def test_every_task_has_its_verdict_and_all_texts_are_in_one_list(folder: Path) -> None:
    page = write_page(folder).read_text()
    html5lib.HTMLParser(strict=True).parse(page)  # raises on the first mistake
    assert page.count('<p class="lead">') == 2
    identities = re.findall(r' id="([^"]+)"', page)
    assert len(identities) == len(set(identities))
    assert {"task-0-verdict", "task-1-verdict", "task-1-fits", "texts", "sites", "manifest"} <= set(identities)
    (block,) = re.findall(r'<script type="application/json" id="data">(.*)</script>', page)
    assert [text["task"] for text in json.loads(block)["texts"]] == [0, 0, 1, 1, 1]
    assert '<select id="task">' in page


def test_hostile_text_is_text(folder: Path) -> None:
    page = write_page(folder).read_text()
    assert page.count("<script") == 2  # our data and our script
    assert "&lt;script&gt;" in page


def test_the_page_asks_nothing_of_the_network(folder: Path) -> None:
    page = write_page(folder).read_text()
    assert not re.findall(r"src=|https?://|@import|url\(", page)
    assert all(link.startswith("#") for link in re.findall(r'href="([^"]*)"', page))


@pytest.mark.parametrize("name", ["summary", "examples", "manifest"])
def test_a_truncated_file_is_named(folder: Path, name: str) -> None:
    file = folder / f"{name}.json"
    file.write_text(file.read_text()[:-3])
    with pytest.raises(InputError, match=rf"{name}\.json is damaged: it is not whole JSON"):
        read_run(folder)


@pytest.mark.parametrize("name", ["summary", "manifest"])
def test_a_missing_file_is_named(folder: Path, name: str) -> None:
    (folder / f"{name}.json").unlink()
    with pytest.raises(InputError, match=rf"{name}\.json is missing"):
        read_run(folder)
