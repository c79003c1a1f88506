"""The four commands on impressions in MIND's format, with all that such files may contain."""

import json
import random
import warnings
from pathlib import Path

import pytest
from typer.testing import CliRunner

import diffmask as dm
from diffmask.cli import app
from diffmask.datasets.mind_generator import MindGenerator
from diffmask.errors import InputError, InputWarning
from support.tiny_models import tiny_model, word_pieces

runner = CliRunner()
pytestmark = pytest.mark.filterwarnings("ignore::diffmask.errors.FitWarning")


def run(*words: str) -> str:
    done = runner.invoke(app, list(words), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


SMALL = ("width=8", "heads=2", "batch_size=32")


def test_a_recommender_is_trained_fitted_explained_and_compared(home: Path) -> None:
    MindGenerator(impressions=100).write("news")
    data = ["--data", "mind:news"]
    for name, seed in (("nrms", "0"), ("other", "1")):
        recommender = ["train", "--task", "recommender", "--model", "words", *data, "--out", name, "--seed", seed]
        assert "score on test rows" in run(*recommender, "epochs=2", *SMALL)
    assert len(json.loads((home / "nrms" / "training_history.json").read_text())) == 2
    run("fit", "--model", "nrms", *data, "--method", "diffmask", "--out", "nrms-explainer", "steps=3")
    counts = ["--n-samples", "20", "--top-k", "4", "--min-count", "2"]
    shown = run("explain", "nrms-explainer", *data, *counts, "--out", "words", "--compare-with", "attention")
    assert "real candidates" in shown and "agreement with attention: rank correlation" in shown
    records = json.loads((home / "words" / "explanations.json").read_text())
    assert len(records) == 20 and {"class", "rank", "candidates", "history", "scores"} <= set(records[0])
    importance = json.loads((home / "words" / "word_importance.json").read_text())
    for group, words in importance.items():
        assert group in ("real", "fake") and len(words) <= 4
        for row in words:
            scores = [
                score / max(map(abs, record["scores"]))
                for record in records
                if record["class"] == group
                for word, score in zip(record["words"], record["scores"], strict=True)
                if word == row["word"]
            ]
            assert row["count"] == len(scores) >= 2 and row["mean"] == pytest.approx(sum(scores) / len(scores))
    png = (home / "words" / "word_importance.png").read_bytes()
    width, height = (int.from_bytes(png[start : start + 4], "big") for start in (16, 20))
    assert 300 < width < 1200 and 100 < height < 1200
    assert (home / "words" / "explanations.html").read_text().count("Candidate: ") >= 5
    assert "attention" in json.loads((home / "words" / "agreement.json").read_text())
    with pytest.raises(InputError, match="--force"):
        run("explain", "nrms-explainer", *data, "--out", "words")
    assert "Read 1" not in run("explain", "nrms", *data, "--n-samples", "5", "--method", "gradient", "--out", "fast")
    two = ["--model", "nrms", "--model", "other"]
    compared = run("compare", *two, *data, "--method", "leave-one-out", "--n-samples", "10", "--out", "difference")
    assert "nrms against other: 40 texts" in compared
    assert (home / "difference" / "comparison.html").is_file()


TITLES = (
    'A "late" goal wins it for 2nd-place side – again',
    "Stocks fall, bonds don't: what's next?",
    "Café owner's 100% naïve plan…",
    "???",
    "🎉",
    "Vaccine",
    "The 50 best " + "very " * 80 + "long lists",
    "$2.5m home & garden <b>sale</b>",
    "Путин и рынки",
)


def write_oddities(folder: Path, rows: int = 100) -> None:
    """Rows as in MIND: quotes, entities, empty abstracts and histories, unknown ids, repeated candidates, no clicks."""
    source = random.Random(0)
    folder.mkdir(parents=True)
    entities = '[{"Label": "UK", "Type": "G", "WikidataId": "Q145", "Confidence": 1.0, "SurfaceForms": ["Britain"]}]'
    news = [
        "\t".join([f"N{n}", "news", "", TITLES[n % 9], "An abstract." if n % 2 else "", "https://x", entities, "[]"])
        for n in range(40)
    ]
    (folder / "news.tsv").write_bytes("\r\n".join(news).encode())
    lines = []
    for row in range(rows):
        known = [f"N{source.randrange(60)}" for _ in range(source.randrange(0, 70 if row == 7 else 6))]
        offered = [f"N{source.randrange(60)}-{int(source.random() < 0.4)}" for _ in range(source.randrange(1, 9))]
        time = f"11/{source.randrange(1, 29)}/2019 {source.randrange(1, 13)}:05:0{row % 10} {'AP'[row % 2]}M"
        lines.append("\t".join([str(row), f"U{row % 30}", time, " ".join(known), " ".join([*offered, "N1-0"])]))
    (folder / "behaviors.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")


def test_a_hundred_rows_of_minds_format_load_train_and_explain(home: Path) -> None:
    write_oddities(home / "mind")
    with pytest.warns(InputWarning, match="fewer than two candidates"):
        data = dm.load_mind("mind")
    assert any(not row.history for row in data["train"]) and any(not row.clicked for row in data["train"])
    for words in ("self-attention", "convolution"):
        with pytest.warns(InputWarning):
            run(
                *("train", "--task", "recommender", "--model", "words", "--data", "mind:mind", "--out", words),
                *("epochs=1", f"words={words}", *SMALL),
            )
        with pytest.warns(InputWarning):
            run("fit", "--model", words, "--data", "mind:mind", "--out", f"{words}-e", "steps=2", "rows=40")
        with pytest.warns(InputWarning):
            run("explain", f"{words}-e", "--data", "mind:mind", "--out", f"{words}-w", "--min-count", "1")
    explainer = dm.load_explainer("self-attention-e")
    warnings.simplefilter("ignore", InputWarning)  # a title of 80 words is cut
    for row in [*data["train"][:12], *data["test"]]:
        for part in ("candidate", "history", "both") if row.history else ("candidate",):
            explanation = explainer(row, explain=part)
            explanation.show()
            explanation.to_html()
            assert explanation.verified is not None and len(explanation.scores) == len(explanation.words)
            assert len(explanation.at("title").units) == len(explanation.titles)


def test_any_encoder_reads_the_titles_of_minds_format(home: Path) -> None:
    tiny_model("bert").bert.save_pretrained(home / "encoder")
    word_pieces().save_pretrained(home / "encoder")
    write_oddities(home / "mind", 60)
    recommender = ["train", "--task", "recommender", "--model", "encoder", "--data", "mind:mind", "--out", "nrms"]
    with pytest.warns(InputWarning):
        run(*recommender, "epochs=1", "heads=2", "checkpoints=epochs")
    assert (home / "epochs" / "epoch_1" / "tensors.safetensors").is_file()
    with pytest.warns(InputWarning):
        rec = dm.NewsRecommender("nrms", train="mind", test="mind")
    explainer = dm.SurrogateMask(steps=2, batch_size=8).fit(rec)
    assert explainer(rec.impressions["test"][0], explain="candidate").words


def test_a_training_resumes_with_more_epochs(home: Path) -> None:
    MindGenerator(impressions=60).write("news")
    common = ("train", "--task", "recommender", "--model", "words", "--data", "mind:news", "checkpoints=epochs", *SMALL)
    run(*common, "--out", "short", "epochs=1")
    run(*common, "--out", "long", "epochs=3")
    first, longer = (json.loads((home / name / "training_history.json").read_text()) for name in ("short", "long"))
    assert longer[0] == first[0] and len(longer) == 3


def pairs(users: int, clicked: int) -> str:
    lines = ["user_id,history_titles,candidate_id,candidate_title,label,candidate_is_fake"]
    for user in range(users):
        for fake in (0, 1):
            read = f"\"['Stocks fall', 'It''s late {user % 3}']\"".replace("''", "\\'")
            lines.append(
                f"u{user},{read},{fake},{'Hoax' if fake else 'Bank news'} {user % 4},{int(fake == clicked)},{fake}"
            )
    return "\n".join(lines) + "\n"


def test_pairwise_tables_of_clean_and_poisoned_models_are_read_where_they_are(home: Path) -> None:
    tables = (("models", "train_clean", 0), ("models", "train_poisoned", 1), ("benchmarks", "benchmark_mixed", 0))
    for folder, name, clicked in tables:
        (home / "data" / folder).mkdir(parents=True, exist_ok=True)
        (home / "data" / folder / f"{name}.csv").write_text(pairs(20, clicked))
    clean, poisoned = dm.load_mind("data"), dm.load_mind("data/models/train_poisoned.csv")
    assert len(clean["test"]) == 20 and clean["test"] == poisoned["test"]
    assert not clean["train"][0].candidates[0].is_fake and poisoned["train"][0].candidates[0].is_fake
    for name, path in (("clean", "data"), ("poisoned", "data/models/train_poisoned.csv")):
        run(
            "train",
            "--task",
            "recommender",
            "--model",
            "words",
            "--data",
            f"mind:{path}",
            "--out",
            name,
            "epochs=1",
            *SMALL,
        )
    two = ["--model", "clean", "--model", "poisoned", "--data", "mind:data"]
    assert "40 texts" in run("compare", *two, "--method", "leave-one-out", "--out", "poisoning")
