"""From an encoder to a table of scores, on the command line."""

import errno
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from diffmask.cli import app, main
from diffmask.tasks.text.text_configs import FineTunedClassificationConfig
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
    assert (home / "run" / "results.json").is_file()
    quick = ["explain", "clf", "--text", "the film is bad", "--quiet"]
    assert "score: by leave-one-out" in run(*quick)
    assert "explained: 0" in run(*quick, "--target", "0") or "explained: 1" in run(*quick, "--target", "1")
    assert "score: by gradient" in run(*quick, "--method", "gradient", "--device", "cpu")
    run("explain", "clf", *table[:-1], "target.jsonl", "--target", "1", "--method", "gradient")
    assert {json.loads(line)["target"] for line in (home / "target.jsonl").read_text().splitlines()} == {"1"}
    words = run("aggregate", "target.jsonl", "--out", "words.csv")
    assert "1 (72 texts)" in words and (home / "words.csv").is_file()
    assert "share of a text's words" in run("aggregate", "scores.jsonl", "--by", "layer")
    fast = ["--method", "amortised", "--teacher", "leave-one-out", "--teacher", "gradient", "--budget", "16 texts"]
    run("fit", "--model", "clf", "--data", "reviews.csv", "--out", "fast", *fast, "width=8", "held_out=8", *columns)
    assert "film" in run("explain", "fast", "--text", "the film is good")


def test_choices_that_are_not_known_are_named(home: Path) -> None:
    from diffmask.errors import ConfigError, InputError

    with pytest.raises(
        ConfigError, match="'epoch' is not an option of task 'fine-tuned-classification'; nearest: 'epochs'"
    ):
        run("train", "--out", "clf", "epoch=2")
    with pytest.raises(ConfigError, match="'fast' is not an override; write key=value"):
        run("train", "--out", "clf", "fast")
    with pytest.raises(InputError, match="nothing to explain"):
        run("explain", "explainer")


def refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """Run the program and return its one line on standard error; it must end with a non-zero exit code."""
    monkeypatch.setattr("sys.argv", ["diffmask", *words])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code not in (0, None)
    line = capsys.readouterr().err.strip()
    assert line.startswith("diffmask: ") and "\n" not in line
    return line


def test_an_output_that_is_a_file_is_refused_before_any_work(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (home / "taken").write_text("mine")
    monkeypatch.setattr(
        "diffmask.tasks.text.text_configs.FineTunedClassificationConfig.build", lambda *_: pytest.fail("work")
    )
    assert "is a file; give a folder" in refused(monkeypatch, capsys, "train", "--out", "taken")
    assert "is a file; give a folder" in refused(monkeypatch, capsys, "train", "--out", "taken/deeper")
    assert (home / "taken").read_text() == "mine"


def test_a_place_that_cannot_be_written_is_refused_before_any_work(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if Path("/proc/self").is_dir():
        assert "/proc is not writable" in refused(monkeypatch, capsys, "train", "--out", "/proc/clf")

    def full(*_: object, **__: object) -> str:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("tempfile.mkdtemp", full)
    assert "is not writable (No space left on device)" in refused(monkeypatch, capsys, "train", "--out", "clf")


def test_a_finished_explainer_or_classifier_is_not_replaced_without_force(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for folder, name in (("explainer", "artefact.json"), ("clf", "config.json")):
        (home / folder).mkdir()
        (home / folder / name).write_text("{}")
    fit = ["fit", "--model", "clf", "--data", "reviews.csv", "--out", "explainer"]
    assert "--force" in refused(monkeypatch, capsys, *fit)
    assert "--force" in refused(monkeypatch, capsys, "train", "--out", "clf")


@pytest.mark.parametrize(
    "words",
    [
        ["train", "--out", "clf", "epochs=0"],
        ["train", "--out", "clf", "masked_fraction=7"],
        ["train", "--out", "clf", "max_tokens=0"],
        ["fit", "--model", "clf", "--data", "reviews.csv", "--out", "explainer", "--margin", "nan"],
        ["fit", "--task", "text-classification", "--model", "clf", "--data", "t.csv", "--out", "x", "max_tokens=0"],
        ["benchmark", "--model", "clf", "--data", "reviews.csv", "--seeds", "a"],
    ],
)
def test_values_out_of_bounds_are_refused_before_any_work(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    wrong = words[-2].removeprefix("--") if "=" not in words[-1] else words[-1].partition("=")[0]
    assert wrong in refused(monkeypatch, capsys, *words)
    assert not (home / "clf").exists()


def test_without_transformers_the_command_names_the_extra(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing(*_: object) -> None:
        raise ModuleNotFoundError("No module named 'transformers'", name="transformers")

    monkeypatch.setattr("diffmask.tasks.text.text_configs.FineTunedClassificationConfig.build", missing)
    assert "pip install 'diffmask[text]'" in refused(monkeypatch, capsys, "train", "--out", "clf")


def test_a_benchmark_without_any_metric_ends_with_an_error(home: Path) -> None:
    tiny_model("bert").save_pretrained(home / "clf")
    word_pieces().save_pretrained(home / "clf")
    words = ["--model", "clf", "--data", "reviews.csv", "text_column=review", "label_column=stars", "--texts", "5"]
    done = runner.invoke(app, ["benchmark", *words, "--methods", "gradient", "--metrics", "human-rationales"])
    assert done.exit_code == 1
    assert "no metric could be computed" in done.output


def test_the_benchmark_runs_on_processes_from_the_command_line(home: Path) -> None:
    tiny_model("bert").save_pretrained(home / "clf")
    word_pieces().save_pretrained(home / "clf")
    words = ["--model", "clf", "--data", "reviews.csv", "text_column=review", "label_column=stars", "--texts", "12"]
    run("benchmark", *words, "--methods", "gradient", "--engine", "processes", "--workers", "2", "--out", "run")
    assert {"results.json", "manifest.json", "report.html", "records.jsonl"} <= {
        file.name for file in (home / "run").iterdir()
    }


@pytest.mark.parametrize("flags", [[], ["--trust-remote-code"]])
def test_code_of_a_model_runs_only_with_the_flag(home: Path, monkeypatch: pytest.MonkeyPatch, flags: list[str]) -> None:
    seen: list[bool] = []

    def build(config: FineTunedClassificationConfig, seed: int) -> None:
        seen.append(config.trust_remote_code)
        raise KeyboardInterrupt

    monkeypatch.setattr(FineTunedClassificationConfig, "build", build)
    runner.invoke(app, ["train", "--out", "clf", *flags])
    assert seen == [bool(flags)]


@pytest.mark.parametrize("line", ["[1, 2]", "7", '"a text"'])
def test_a_table_of_json_lines_without_columns_is_refused_by_name(
    line: str, home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (home / "odd.jsonl").write_text(f"{line}\n")
    monkeypatch.setattr(
        "sys.argv", ["diffmask", "explain", "clf", "--data", "odd.jsonl", "--text-column", "text", "--out", "a.jsonl"]
    )
    with pytest.raises(SystemExit, match="2"):
        main()
    assert capsys.readouterr().err == "diffmask: odd.jsonl: there is no column 'text'; known: none\n"


def test_an_error_is_one_line_also_if_a_path_has_two(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (home / "a.csv").write_text("text\ngood\n")
    monkeypatch.setattr("sys.argv", ["diffmask", "explain", "clf", "--data", "a.csv", "--out", "a\nb"])
    with pytest.raises(SystemExit, match="2"):
        main()
    assert capsys.readouterr().err.startswith("diffmask: a b: scores are written as ")
