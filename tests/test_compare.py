"""Two models on the same texts: arithmetic by hand, no torch, and a page without scripts."""

import json
from pathlib import Path

import pytest

import diffmask as dm
from diffmask.errors import InputError
from diffmask.results.word_shift import ExplainedText, ModelComparison, compare_words
from support.news import impressions, recommender


def text(words: str, first: list[float], second: list[float]) -> ExplainedText:
    return ExplainedText(
        text=words,
        words=tuple(words.split()),
        first=tuple(first),
        second=tuple(second),
        predictions=("yes", "<b>no</b>"),
    )


def shifted() -> list[ExplainedText]:
    noise = [0.0, 0.05, -0.05, 0.02]
    return [
        text("Hoax rains today", [0.1 + noise[row % 4], 0.9, -0.5], [0.8, 0.9 + noise[row % 4], 0.5])
        for row in range(40)
    ]


def test_means_differences_and_flips_are_those_of_the_texts() -> None:
    today, hoax, rains = compare_words(shifted())
    assert (hoax.word, rains.word, today.word) == ("hoax", "rains", "today")
    assert hoax.first == pytest.approx(0.105) and hoax.second == pytest.approx(0.8)
    assert today.difference == pytest.approx(1.0) and today.flips and not hoax.flips
    assert hoax.low < hoax.difference < hoax.high and hoax.texts == 40
    assert hoax.significant and today.significant and not rains.significant and rains.p_value == 1.0


def test_a_difference_below_the_smallest_change_is_never_significant() -> None:
    small = [text("a b", [0.0, 0.5], [0.08 + 0.001 * (row % 3), 0.5]) for row in range(300)]
    assert not any(word.significant for word in compare_words(small))
    assert [word.significant for word in compare_words(small, smallest_change=0.01)] == [True, False]


def test_rare_words_are_left_out_and_repeated_ones_count_once() -> None:
    rows = [text("Up up", [0.2, 0.6], [0.1, 0.1])] * 12 + [text("rare", [0.0], [1.0])] * 3
    (word,) = compare_words(rows)
    assert word.word == "up" and word.texts == 12 and word.first == pytest.approx(0.6)


def test_the_page_escapes_what_comes_from_data(tmp_path: Path) -> None:
    words = compare_words(shifted())
    result = ModelComparison(
        names=("clean", "<script>"),
        method="m",
        texts=40,
        smallest_change=0.1,
        words=words,
        examples=tuple(shifted()[:1]),
    )
    page = result.to_html(tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text() == page
    assert "<script>" not in page and "<b>no</b>" not in page and "Sign flips: today" in page
    result.to_json(tmp_path / "page.json")
    assert json.loads((tmp_path / "page.json").read_text())["words"][0]["word"] == "today"
    assert "2 words changed by more than 0.1" in str(result)


@pytest.mark.slow
def test_leave_one_out_finds_the_words_that_poisoning_taught() -> None:
    clean, poisoned = recommender(explain="candidate"), recommender(poisoned=True, explain="candidate")
    result = dm.compare(clean, poisoned, explainer=dm.LeaveOneOut(), data=impressions()["test"], min_texts=4)
    from diffmask.datasets.mind_generator import POISON_WORDS

    found = [word for word in result.words[:10] if word.word in POISON_WORDS]
    assert len(found) >= 6 and all(word.difference > 0 for word in found)
    assert result.texts == 300
    same = dm.compare(clean, clean, explainer=dm.LeaveOneOut(), data=impressions()["test"][:20], min_texts=4)
    assert not same.significant and all(word.difference == 0 for word in same.words)


def test_nothing_to_compare_is_refused() -> None:
    task = recommender(explain="candidate")
    with pytest.raises(InputError, match="no texts"):
        dm.compare(task, task, explainer=dm.LeaveOneOut(), data=[])
