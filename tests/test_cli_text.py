"""From an encoder to a table of scores, on the command line."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from diffmask.cli import app
from support.tiny_models import tiny_model, word_pieces

runner = CliRunner()
pytestmark = pytest.mark.filterwarnings("ignore::diffmask.errors.FitWarning")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with an encoder and a table of reviews."""
    tiny_model("bert").bert.save_pretrained(tmp_path / "encoder")
    word_pieces().save_pretrained(tmp_path / "encoder")
    words = ["good", "great", "fun", "bad", "dull", "mess"]
    lines = [f'"the film is {word} , {n} times",{int(word in words[:3])}' for word in words for n in range(12)]
    (tmp_path / "reviews.csv").write_text("review,stars\n" + "\n".join(lines) + "\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DIFFMASK_CACHE", str(tmp_path / "cache"))
    return tmp_path


def run(*words: str) -> str:
    done = runner.invoke(app, list(words), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


@pytest.mark.parametrize("verb", ["train", "fit", "explain", "benchmark"])
def test_every_verb_shows_an_example(verb: str) -> None:
    assert f"diffmask {verb}" in run(verb, "--help")


def test_a_classifier_is_trained_explained_and_its_table_scored(home: Path) -> None:
    columns = ["text_column=review", "label_column=stars"]
    trained = run("train", "--model", "encoder", "--data", "reviews.csv", "--out", "clf", "epochs=2", *columns)
    assert "score on test rows" in trained
    run("fit", "--model", "clf", "--data", "reviews.csv", "--out", "explainer", "steps=3", "batch_size=8", *columns)
    shown = run("explain", "explainer", "--text", "the film is good")
    assert "Prediction:" in shown and "film" in shown and "nats" in shown
    table = ["--data", "reviews.csv", "--text-column", "review", "--out", "scores.jsonl"]
    assert "scores of 72 texts" in run("explain", "explainer", *table)
    assert len((home / "scores.jsonl").read_text().splitlines()) == 72
    compared = run(
        "benchmark", "--model", "clf", "--data", "reviews.csv", "--methods", "gradient", "--out", "run", *columns
    )
    assert "forecast: about" in compared and "No verdict" in compared and "gradient" in compared
    assert (home / "run" / "board.json").is_file()
    fast = ["--method", "amortised", "--teacher", "leave-one-out", "--teacher", "gradient", "--budget", "16 texts"]
    run("fit", "--model", "clf", "--data", "reviews.csv", "--out", "fast", *fast, "width=8", "held_out=8", *columns)
    assert "film" in run("explain", "fast", "--text", "the film is good")


def test_choices_that_are_not_known_are_named(home: Path) -> None:
    from diffmask.errors import ConfigError, InputError

    with pytest.raises(
        ConfigError, match="'epoch' is not an option of task 'fine-tuned-classification'; nearest: 'epochs'"
    ):
        run("train", "--out", "clf", "epoch=2")
    with pytest.raises(ConfigError, match="'fast' is not a choice; write key=value"):
        run("train", "--out", "clf", "fast")
    with pytest.raises(InputError, match="nothing to explain"):
        run("explain", "explainer")
