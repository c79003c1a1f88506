"""On a phone the table of methods is a list: no measure is cut off. The title is the name of the user's model."""

from pathlib import Path

import pytest

from diffmask.report.page import asset, render_page, words_per_class
from diffmask.tasks.classification import TextClassification
from diffmask.workspace.workspace import InMemoryTaskConfig
from support.board import synthetic_board
from support.tiny_models import tiny_model, word_pieces


def test_every_cell_names_its_metric_where_there_is_no_header() -> None:
    board = synthetic_board()
    page = render_page([board])
    for metric in board.metrics:
        arrow = "↑" if metric.higher_is_better else "↓"
        assert page.count(f'<td data-metric="{metric.title} {arrow}"') == len(board.methods)
    narrow = asset("report.css").partition("@media (max-width: 30rem)")[2]
    assert "attr(data-metric)" in narrow and ".leaderboard thead" in narrow


def test_a_model_from_a_folder_has_the_folders_name(tmp_path: Path) -> None:
    folder = tmp_path / "my-classifier"
    tiny_model("bert").save_pretrained(folder)
    word_pieces().save_pretrained(folder)
    assert InMemoryTaskConfig.of(TextClassification(folder)).label == "my-classifier"


def test_the_words_that_matter_per_class_are_those_of_the_texts() -> None:
    board = synthetic_board(texts=12)
    page = render_page([board])
    assert '<section id="words"' in page
    for name, words in [(m.name, words_per_class(board, m.name)) for m in board.methods if not m.is_baseline]:
        assert words is not None, name
        first = words.rows[0]
        # A second reading: the mean over texts of the word's mean score, divided by the largest of its text.
        means = []
        for text in board.texts:
            top = max(map(abs, text.scores[name])) or 1.0
            pairs = zip(text.words, text.scores[name], strict=True)
            scores = [score / top for word, score in pairs if word.casefold() == first.key]
            if scores and text.prediction == first.group:
                means.append(sum(scores) / len(scores))
        assert len(means) == first.texts and sum(means) / len(means) == pytest.approx(first.mean)
