"""The demonstration says what its explanations say, and puts it to the test."""

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from diffmask.benchmarking.packaged_demo import METHOD, TASK, Demo, compare_methods, held_out_sentences, run_demo
from diffmask.cli import app
from diffmask.methods.diffmask.surrogate import SurrogateMask
from diffmask.tasks.classification import TextClassification
from support.tiny_models import tiny_model, word_pieces

pytestmark = pytest.mark.filterwarnings("ignore::diffmask.errors.FitWarning")


def test_the_answer_counts_what_was_erased_and_what_survived() -> None:
    texts = ["the film is good", "not a very bad movie , but dull", "i loved it"]
    task = TextClassification(tiny_model("bert"), word_pieces(), train=texts * 4, test=texts)
    method = SurrogateMask(steps=2, batch_size=4, calibration_rows=4)
    explainer = method.fit(task)
    explanations = explainer(texts)
    checks = [explanation.hard_mask() for explanation in explanations]
    first, *lines = Demo(task, method, 1.0, explanations, checks).answer()
    gone = sum(kept is False for check in checks for kept in check.kept)
    survived = sum(
        check.prediction.label == one.prediction.label for check, one in zip(checks, explanations, strict=True)
    )
    assert first == (
        f"{gone} of the 15 words in 3 held-out sentences were erased, and {survived} of the 3 predictions survived."
    )
    assert all(text in line for text, line in zip(texts, lines, strict=True))


def test_sentences_are_taken_from_all_of_the_held_out_reviews() -> None:
    found = held_out_sentences(TASK, 10)
    assert Counter(example.label for example in found) == {"0": 5, "1": 5}
    assert all(8 <= len(example.text.split()) <= 16 for example in found)


@pytest.mark.parametrize(
    ("arguments", "rows", "steps"), [([], TASK.rows, METHOD.steps), (["--steps", "3"], TASK.rows, 3)]
)
def test_the_command_line_has_the_defaults_of_the_demo(
    arguments: list[str], rows: int, steps: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def note(*given: Any) -> None:
        asked.extend(given)
        raise KeyboardInterrupt

    monkeypatch.setattr("diffmask.benchmarking.packaged_demo.run_demo", note)
    CliRunner().invoke(app, ["demo", "--out", str(tmp_path), *arguments])
    assert asked == [tmp_path, replace(TASK, rows=rows), replace(METHOD, steps=steps)]


@pytest.mark.slow
def test_the_packaged_encoder_is_trained_explained_and_compared(tmp_path: Path) -> None:
    found = run_demo(tmp_path, replace(TASK, rows=64), replace(METHOD, steps=3), sentences=2)
    assert len(found.answer()) == 3
    board = compare_methods(found, tmp_path, texts=4)
    assert {method.name for method in board.methods} == {
        "random",
        "gradient",
        "input-x-gradient",
        "leave-one-out",
        "surrogate-mask",
    }
    assert (tmp_path / "results.json").is_file()
