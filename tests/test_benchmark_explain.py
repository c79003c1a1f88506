"""The benchmark of what an explanation costs compares both sides on the very same sentences."""

import sys
from typing import Any

import pytest

import explain
from diffmask.core.batch import Batch
from diffmask.datasets.tables import DataSet, Example
from diffmask.methods.diffmask.surrogate import SurrogateMask
from diffmask.tasks.classification import TextClassification
from support.tiny_models import tiny_model, word_pieces

pytestmark = pytest.mark.filterwarnings("ignore::diffmask.errors.FitWarning")

TEXTS = ["the film is good", "a very dull mess", "not bad", "i loved it", "enjoyable"] * 4


def test_captum_explains_as_many_sentences_as_are_asked_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    task = TextClassification(tiny_model("bert"), word_pieces(), train=[("good film", 1), ("bad plot", 0)] * 4)
    explainer = SurrogateMask(steps=2, batch_size=4).fit(task)
    given: list[Batch] = []
    data = DataSet(train=[], valid=[], test=[Example(text) for text in TEXTS], names=("bad", "good"))
    measured = {"seconds": 2.0, "megabytes": 100.0}

    def captum(task: Any, batch: Batch) -> None:
        given.append(batch)

    monkeypatch.setattr(explain, "load_explainer", lambda *_: explainer)
    monkeypatch.setattr(explain, "load_data", lambda *_: data)
    monkeypatch.setattr(explain, "tables", lambda *_: [measured, measured])
    monkeypatch.setattr(explain, "integrated_gradients", captum)
    monkeypatch.setattr(sys, "argv", ["explain.py", "--explainer", "x", "--data", "y", "--captum-sentences", "7"])
    explain.main()
    assert [len(batch) for batch in given] == [7]
    shown = capsys.readouterr().out
    assert "faster than Captum, 50 steps, on 7 sentences" in shown
    assert "10,000 texts over 1,000: memory | 1.00x" in shown
