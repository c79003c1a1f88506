"""Mutual information of words and labels, counted by hand and a second time in plain Python."""

import math

import pytest
import torch

from diffmask.core.batch import Batch
from diffmask.errors import TaskError
from diffmask.methods.mutual_information import MutualInformation, word_label_information
from support.linear import LinearTask, batch_of
from support.transformer import TransformerTask


def plain_information(batch: Batch, words: int) -> list[float]:
    """The same from four-way tables in plain Python, with the published start of every count at 1."""
    labels = sorted(set(batch.target.tolist()))
    texts = [set(row[real].tolist()) for row, real in zip(batch.tokens, batch.maskable, strict=True)]
    held = {
        (word, label): 1
        + sum(word in text for text, given in zip(texts, batch.target.tolist(), strict=True) if given == label)
        for word in range(words)
        for label in labels
    }
    size = {label: 1 + batch.target.tolist().count(label) for label in labels}
    total = sum(size.values())
    scores = []
    for word in range(words):
        both = sum(held[word, label] for label in labels)
        score = 0.0
        for label in labels:
            a, n, w = held[word, label], size[label], both
            for joint, u, v in (
                (a, w, n),
                (w - a, w, total - n),
                (n - a, total - w, n),
                (total - w - n + a, total - w, total - n),
            ):
                if joint:
                    score += n / total * joint / total * math.log(joint * total / (u * v))
        scores.append(score)
    return scores


def test_a_word_that_predicts_the_label_scores_and_one_that_does_not_scores_zero() -> None:
    batch = batch_of([[1, 3], [1, 3], [1, 3], [2, 3], [2, 3], [2, 3]], [1.0, 1.0, 1.0, 0.0, 0.0, 0.0])
    found = word_label_information(batch, 5)
    # N(1, yes) = 4 of N(yes) = 4 and N(1, no) = 1 of 4, out of 8.
    by_hand = 4 / 8 * math.log(4 * 8 / (5 * 4)) + 1 / 8 * math.log(1 * 8 / (5 * 4)) + 3 / 8 * math.log(3 * 8 / (3 * 4))
    assert found[1].item() == pytest.approx(by_hand)
    assert found[2].item() == pytest.approx(by_hand)
    assert found[3].item() == pytest.approx(0.0, abs=1e-7)


def test_the_table_equals_a_plain_count_on_random_texts() -> None:
    task = TransformerTask()
    found = word_label_information(task.data["train"], 24)
    assert found.tolist() == pytest.approx(plain_information(task.data["train"], 24), abs=1e-6)
    assert found.isfinite().all()


def test_a_word_in_every_text_of_a_label_and_a_single_label_are_numbers() -> None:
    assert word_label_information(batch_of([[1], [1]]), 3).tolist() == [0.0, 0.0, 0.0]
    assert word_label_information(batch_of([[1], [1], [2]], [1.0, 1.0, 0.0]), 3).isfinite().all()


def test_a_word_is_counted_once_per_text() -> None:
    once = word_label_information(batch_of([[1], [2]], [1.0, 0.0]), 3)
    often = word_label_information(batch_of([[1, 1, 1], [2]], [1.0, 0.0]), 3)
    torch.testing.assert_close(once, often)


def test_a_word_in_no_split_scores_zero() -> None:
    task = LinearTask([[1, 3], [2, 3]])
    explainer = MutualInformation().fit(task)
    assert explainer(batch_of([[4, 1]])).scores[0, 0] == 0


def test_targets_that_are_not_classes_are_refused() -> None:
    task = LinearTask([[1], [2]])
    task.data["train"] = batch_of([[1], [2]], [0.5, 1.25])
    with pytest.raises(TaskError, match="needs a task that classifies"):
        MutualInformation().fit(task)
