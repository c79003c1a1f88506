"""Edited words: pairs as they are read, differences by hand, precision of written scores."""

from pathlib import Path

import pytest
import torch

from diffmask.datasets.counterfactual_pairs import changed_words, load_edited_pairs
from diffmask.errors import ConfigError, InputError
from diffmask.metrics.counterfactual import CounterfactualEdits, flipped_texts, precision_at_marked
from diffmask.tasks.classification import TextClassification
from support.tiny_models import tiny_model, word_pieces
from support.workspaces import Written, workspace_of

ROWS = [("good film", 1), ("a dull mess", 0)]


def table(folder: Path, rows: list[tuple[str, str, str]]) -> str:
    file = folder / "pairs.tsv"
    file.write_text("\n".join("\t".join(row) for row in [("Text", "Sentiment", "batch_id"), *rows]) + "\n")
    return str(file)


@pytest.fixture
def task() -> TextClassification:
    return TextClassification(tiny_model("bert", labels=2), word_pieces(), train=ROWS, test=ROWS)


def edits_that_flip(task: TextClassification) -> tuple[str, str]:
    """Find two texts of three words that differ in the second and that the random model tells apart."""
    words = ["good", "dull", "fun", "mess", "plot", "very", "enjoyable", "was"]
    texts = [f"the {word} {last}" for last in ("film", "movie", "it", "acting") for word in words]
    predicted = task.logits(task.encode(texts)).argmax(dim=1).tolist()
    for first in range(len(texts)):
        for second in range(first - first % len(words), first):
            if predicted[first] != predicted[second]:
                return texts[first], texts[second]
    pytest.skip("the random model predicts one class only")


def test_the_words_that_differ_are_found_whatever_their_case_and_punctuation() -> None:
    text, other = "It was GOOD, really good.", "it was bad; really good!"
    assert [text[a:b] for a, b in changed_words(text, other)] == ["GOOD"]
    assert changed_words(text, text) == ()
    assert [text[a:b] for a, b in changed_words(text, "")] == ["It", "was", "GOOD", "really", "good"]


def test_pairs_are_joined_by_their_number(tmp_path: Path) -> None:
    rows = [("a", "Negative", "1"), ("b", "Positive", "2"), ("c", "Positive", "1"), ("d", "Negative", "2")]
    pairs = load_edited_pairs(table(tmp_path, rows))
    assert [(pair.original.text, pair.edited.text) for pair in pairs] == [("a", "c"), ("b", "d")]


def test_a_row_without_its_partner_and_a_missing_column_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="pair '7' has not two rows"):
        load_edited_pairs(table(tmp_path, [("a", "Negative", "7")]))
    (tmp_path / "other.csv").write_text("text,label\na,1\n")
    with pytest.raises(InputError, match="no column 'pair'"):
        load_edited_pairs(str(tmp_path / "other.csv"))
    with pytest.raises(InputError, match="has no cad_sentiment"):
        load_edited_pairs(f"imdb:{tmp_path}")


def test_each_original_of_snli_has_four_edits(tmp_path: Path) -> None:
    head = "sentence1\tsentence2\tgold_label\n"
    (tmp_path / "cad_original_dev.tsv").write_text(f"{head}A man runs.\tA man moves.\tentailment\n")
    edits = "".join(f"A man runs.\tA man sleeps {number}.\tcontradiction\n" for number in range(4))
    (tmp_path / "cad_revised_combined_dev.tsv").write_text(head + edits)
    pairs = load_edited_pairs(f"snli:{tmp_path}")
    assert len(pairs) == 4 and {pair.original.pair for pair in pairs} == {"A man moves."}


def test_precision_counts_ties_by_their_share() -> None:
    scores, marked = torch.tensor([5.0, 4.0, 4.0, 4.0, 1.0]), torch.tensor([True, True, False, False, False])
    # k is 2: the first for certain, one of three that tie, of which one is marked.
    assert precision_at_marked(scores, marked) == pytest.approx((1 + 1 / 3) / 2)


def test_scores_on_the_edited_word_are_perfect(task: TextClassification, tmp_path: Path) -> None:
    first, second = edits_that_flip(task)
    source = table(tmp_path, [(first, "Negative", "1"), (second, "Positive", "1")])
    workspace = workspace_of(task, tmp_path / "store")
    metric = CounterfactualEdits(pairs=source)
    (right,) = metric.run(Written(scores=(0.0, 0.0, 1.0, 0.0, 0.0)), workspace)
    assert right.metric == "edited_precision" and right.per_row == (1.0, 1.0)
    (wrong,) = metric.run(Written(scores=(0.0, 1.0, 0.0, 0.0, 0.0)), workspace)
    assert wrong.value == 0.0


def test_pairs_that_the_model_does_not_tell_apart_are_left_out(task: TextClassification, tmp_path: Path) -> None:
    source = table(tmp_path, [("good film", "Negative", "1"), ("good film", "Positive", "1")])
    assert flipped_texts(task, load_edited_pairs(source)) == []
    assert list(CounterfactualEdits(pairs=source).run(Written(scores=(0.0,) * 4), workspace_of(task, tmp_path))) == []


def test_pairs_must_be_given(task: TextClassification, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="give the pairs"):
        list(CounterfactualEdits().run(Written(scores=(0.0,)), workspace_of(task, tmp_path)))
