"""The demonstration says what its explanations say, and puts it to the test."""

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from diffmask.benchmarking.packaged_demo import (
    METHOD,
    TASK,
    Demo,
    compare_methods,
    first_explanation,
    held_out_reviews,
    run_demo,
    train_classifier,
)
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
    first, *lines = Demo(task, method, explanations, checks).answer()
    gone = sum(kept is False for check in checks for kept in check.kept)
    survived = sum(
        check.prediction.label == one.prediction.label for check, one in zip(checks, explanations, strict=True)
    )
    assert first == (
        f"{gone} of the 15 words in 3 held-out reviews were erased, and {survived} of the 3 predictions survived."
    )
    assert all(text in line for text, line in zip(texts, lines, strict=True))


def test_reviews_are_short_and_taken_from_both_classes() -> None:
    found = held_out_reviews(TASK, 10)
    assert set(Counter(example.label for example in found)) == {"0", "1"}
    assert all(len(example.text.split()) <= 40 and "<br" not in example.text for example in found)
    trained = {example.text for example in TASK.dataset().train}
    assert not trained & {example.text for example in found}


@pytest.mark.parametrize(
    ("arguments", "rows", "steps"), [([], None, METHOD.steps), (["--steps", "3", "--rows", "9"], 9, 3)]
)
def test_the_command_line_has_the_defaults_of_the_demo(
    arguments: list[str], rows: int | None, steps: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def note(*given: Any) -> None:
        asked.extend(given)
        raise KeyboardInterrupt

    task = TextClassification(tiny_model("bert", num_labels=2), word_pieces(), test=[("good", 1), ("bad", 0)])
    monkeypatch.setattr("diffmask.benchmarking.packaged_demo.train_classifier", lambda *_: task)
    monkeypatch.setattr("diffmask.benchmarking.packaged_demo.run_demo", note)
    shown = CliRunner().invoke(app, ["demo", "--out", str(tmp_path), *arguments]).output
    assert asked == [task, tmp_path, replace(TASK, rows=rows), replace(METHOD, steps=steps)]
    # One review is explained before anything is fitted.
    assert "of 2 held-out reviews are classified correctly" in shown and "Prediction:" in shown


@pytest.mark.slow
def test_the_packaged_encoder_is_trained_explained_and_compared(tmp_path: Path) -> None:
    config = replace(TASK, rows=64)
    task = train_classifier(tmp_path, config)
    assert first_explanation(task, config).verified is not None
    found = run_demo(task, tmp_path, config, replace(METHOD, steps=3), reviews=2)
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
