"""Every script in `examples` is short and runs."""

import runpy
import sys
from pathlib import Path

import pytest

from support.tiny_models import tiny_model, word_pieces

FOLDER = Path(__file__).parents[1] / "examples"
SCRIPTS = sorted(FOLDER.glob("*.py"))
FILES = {
    "data_frame": "explained.csv",
    "words_per_class": "words.csv",
    "fit_and_save": "explainer/artefact.json",
    "words_by_layers": "layers.pdf",
    "compare_methods": "compared/report.html",
    "web_page": "page.html",
}
"""File that a script writes."""
pytestmark = [
    pytest.mark.filterwarnings("ignore::diffmask.errors.FitWarning"),
    pytest.mark.filterwarnings("ignore::diffmask.errors.InputWarning"),
]


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("classifier")
    tiny_model("bert").save_pretrained(path)
    word_pieces(segments=True).save_pretrained(path)
    return str(path)


def test_there_are_twelve_and_none_is_long() -> None:
    assert len(SCRIPTS) == 12
    for script in SCRIPTS:
        lines = [line for line in script.read_text().splitlines() if line.strip()]
        assert len(lines) <= 15, f"{script.name} has {len(lines)} lines"


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_a_script_runs(
    script: Path, classifier: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    budget = ["2s"] if "BUDGET" in script.read_text() else []
    monkeypatch.setattr(sys, "argv", [str(script), classifier, *budget])
    runpy.run_path(str(script), run_name="__main__")
    written = FILES.get(script.stem)
    assert (tmp_path / written).exists() if written else capsys.readouterr().out.strip()
