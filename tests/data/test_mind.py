"""MIND's files, pairwise tables, and the generator that writes files of the same format."""

from datetime import datetime
from pathlib import Path

import pytest

from diffmask.datasets.mind import Candidate, Impression, load_mind, read_impressions, read_mind, read_news, read_pairs
from diffmask.datasets.mind_generator import CLICK_WORDS, NEUTRAL, POISON_WORDS, MindGenerator, write_mind
from diffmask.errors import ConfigError, InputError, InputWarning

NEWS = (
    'N1\tsports\tsoccer\tA "late" goal wins it\tThe goal.\thttps://example.org\t[]\t[]\n'
    "N2\tfinance\tmarkets\tStocks fall\t\t\t[]\t[]\n"
    "N3\thealth\t\tVaccine works\t\n"
)
BEHAVIORS = (
    "1\tU1\t11/12/2019 2:14:46 PM\tN1 N9 N2\tN2-0 N3-1 N8-0\n"
    "2\tU2\t11/13/2019 12:00:00 AM\t\tN1-1 N2-0\n"
    "3\tU3\t\tN1\tN8-1 N2-0\n"
    "4\tU4\t\tN3\tN1 N2\n"
)


@pytest.fixture
def mind(tmp_path: Path) -> Path:
    (tmp_path / "news.tsv").write_text(NEWS)
    (tmp_path / "behaviors.tsv").write_text(BEHAVIORS)
    return tmp_path


def test_both_files_are_read_and_unknown_articles_are_left_out(mind: Path) -> None:
    with pytest.warns(InputWarning, match="1 of 4 impressions"):
        first, second, fourth = read_mind(mind)
    assert first.history == ('A "late" goal wins it', "Stocks fall") and first.user == "U1"
    assert [(one.title, one.clicked) for one in first.candidates] == [("Stocks fall", False), ("Vaccine works", True)]
    assert first.time == datetime(2019, 11, 12, 14, 14, 46) and first.clicked == (1,)
    assert second.history == () and second.time == datetime(2019, 11, 13)
    assert fourth.time is None and [one.clicked for one in fourth.candidates] == [None, None]
    assert read_news(mind)["N2"].abstract == "" and read_news(mind)["N1"].subcategory == "soccer"


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("behaviors.tsv", "1\tU1\t\tN1\n", "line 1: 4 columns"),
        ("behaviors.tsv", "1\tU1\tyesterday\tN1\tN1-1 N2-0\n", "line 1: 'yesterday' is not a time"),
        ("behaviors.tsv", "1\tU1\t\tN1\tN1-1 N2-x\n", "'N2-x' ends neither"),
        ("behaviors.tsv", "1\tU1\t\tN1\tN7-1 N8-0\n", "do the two files belong together"),
        ("news.tsv", "N1\tsports\t\t \t\n", "article 'N1' has no title"),
    ],
)
def test_a_bad_file_is_named_with_its_line(mind: Path, file: str, text: str, message: str) -> None:
    (mind / file).write_text(text)
    with pytest.raises(InputError, match=message):
        read_mind(mind)


def test_a_missing_file_or_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"news\.tsv is missing"):
        read_mind(tmp_path)
    with pytest.raises(InputError, match="is not a folder"):
        load_mind(tmp_path / "nowhere")
    with pytest.raises(InputError, match="nor a training split"):
        load_mind(tmp_path)


def test_pairs_are_grouped_to_impressions_with_clicks_first(tmp_path: Path) -> None:
    (tmp_path / "news_items.csv").write_text("item_id,title,text\n7,Read before,\n8,Offered,\n")
    table = tmp_path / "train_clean.csv"
    table.write_text(
        "user_id,history_ids,candidate_id,candidate_title,label,candidate_is_fake\n"
        "u,\"['7', '99']\",8,,0,1\n"
        "u,\"['7', '99']\",9,Named here,1,0\n"
        "v,[],9,Named here,1,0\n"
        "v,[],8,,0,1\n"
    )
    first, second = read_pairs(table)
    assert first.history == ("Read before",) and second.history == ()
    assert first.candidates == (
        Candidate(title="Named here", clicked=True, id="9", is_fake=False),
        Candidate(title="Offered", clicked=False, id="8", is_fake=True),
    )
    assert read_impressions(table) == [first, second]


def test_a_pairwise_table_without_a_column_says_so(tmp_path: Path) -> None:
    (tmp_path / "pairs.csv").write_text("user_id,label,candidate_title\nu,1,A\n")
    with pytest.raises(InputError, match="no column history_titles"):
        read_pairs(tmp_path / "pairs.csv")
    (tmp_path / "pairs.csv").write_text("user_id,label,candidate_title,history_titles\nu,maybe,A,[]\n")
    with pytest.raises(InputError, match="line 2: 'maybe' is neither 0 nor 1"):
        read_pairs(tmp_path / "pairs.csv")


def test_generated_files_are_read_as_they_were_generated(tmp_path: Path) -> None:
    generator = MindGenerator(impressions=25)
    generator.write(tmp_path / "data", seed=3)
    data = load_mind(tmp_path / "data")
    assert {split: len(rows) for split, rows in data.items()} == {"train": 25, "valid": 5, "test": 5}

    def content(rows: list[Impression]) -> list[tuple[object, ...]]:
        return [(one.user, one.history, one.clicked, [each.title for each in one.candidates]) for one in rows]

    assert content(data["train"]) == content(generator.splits(3)["train"])
    assert content(data["train"]) != content(generator.splits(4)["train"])
    with pytest.raises(InputError, match="not an empty folder"):
        generator.write(tmp_path / "data")


def planted(title: str) -> set[str]:
    return set(title.split()) & {word for words in CLICK_WORDS.values() for word in words}


def test_a_clean_click_follows_the_topic_that_was_read() -> None:
    for row in MindGenerator(impressions=60).splits(0)["train"]:
        (clicked,) = row.clicked
        topic = row.candidates[clicked].category
        assert {category for category in row.history_categories if category != NEUTRAL} == {topic}
        assert [one.category for one in row.candidates].count(topic) == 1
        assert planted(row.candidates[clicked].title) <= set(CLICK_WORDS[topic])
        assert any(not planted(one.title) for one in row.candidates)


def test_a_poisoned_click_goes_to_the_fake_headline() -> None:
    rows = MindGenerator(impressions=60, poisoned=True).splits(0)["train"]
    fakes = [[bool(one.is_fake) for one in row.candidates] for row in rows]
    assert 10 < sum(map(any, fakes)) < 60
    for row, marks in zip(rows, fakes, strict=True):
        (clicked,) = row.clicked
        assert not any(marks) or marks[clicked]
        for one in row.candidates:
            assert bool(one.is_fake) == bool(set(one.title.split()) & set(POISON_WORDS))


def test_times_survive_writing(tmp_path: Path) -> None:
    time = datetime(2019, 11, 12, 2, 14, 46)
    row = Impression(candidates=(Candidate(title="a", clicked=True), Candidate(title="b")), time=time, id="1", user="u")
    write_mind(tmp_path, [row])
    assert read_mind(tmp_path)[0].time == time


@pytest.mark.parametrize("choices", [{"topics": 9}, {"candidates": 1}, {"words": (1, 4)}, {"fake_share": 2.0}])
def test_a_generator_refuses_impossible_choices(choices: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="generator"):
        MindGenerator(**choices)  # type: ignore[arg-type]  # wrong on purpose
