"""The page shows what was measured, as text, and needs nothing else."""

import json
import re
from pathlib import Path

import pytest

from diffmask.errors import InputError
from diffmask.report.run_page import read_run, render_run, write_run_report

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
    site = {"open_share": 0.5, "multiplier_at_bound": False, "problems": {"leaking baseline": "it carries the answer"}}
    files = {
        "summary": summary,
        "examples": [example],
        "diagnostics": [{"task": "toy", "seed": 0, "fits": {"diffmask": {"hidden": site}}}],
        "manifest": {"experiment": {"name": "toy"}, "seeds": [0], "seconds": 1.0, "finished": "now"},
    }
    for name, content in files.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    return tmp_path


def test_numbers_problems_and_bars_are_on_the_page(folder: Path) -> None:
    page = render_run(read_run(folder))
    assert "∞" in page
    assert "0.27" in page
    assert "leaking baseline" in page
    # Bars are shares of 90 units: 0.75 * 90.
    assert 'height="67.5"' in page


def test_hostile_text_is_text(folder: Path) -> None:
    page = write_run_report(folder).read_text()
    assert "<script" not in page
    assert "&lt;script&gt;" in page


def test_the_page_asks_nothing_of_the_network(folder: Path) -> None:
    assert not re.findall(r"(?:src|href)=|https?://|@import|url\(", render_run(read_run(folder)))


@pytest.mark.parametrize("name", ["summary", "examples", "diagnostics", "manifest"])
def test_a_missing_or_truncated_file_is_named(folder: Path, name: str) -> None:
    file = folder / f"{name}.json"
    file.write_text(file.read_text()[:-3])
    with pytest.raises(InputError, match=rf"{name}\.json is not whole JSON"):
        read_run(folder)
    file.unlink()
    with pytest.raises(InputError, match=rf"{name}\.json is missing"):
        read_run(folder)
