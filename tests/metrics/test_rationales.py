"""Agreement with people: average precision as scikit-learn has it, F1 by hand."""

from pathlib import Path

import pytest
import torch
from sklearn.metrics import average_precision_score, f1_score

from diffmask.datasets.eraser import RationaleExample
from diffmask.methods.baselines import Random, Uniform
from diffmask.metrics.rationales import HumanRationales, average_precision, iou_f1, select_as_many, token_f1
from diffmask.tasks.classification import TextClassification
from support.tiny_models import tiny_model, word_pieces
from support.workspaces import Written, workspace_of


def test_average_precision_equals_scikit_learn_with_ties() -> None:
    source = torch.Generator().manual_seed(0)
    scores = torch.randint(5, (20, 12), generator=source).float()
    marked = torch.rand(20, 12, generator=source) < 0.4
    maskable = torch.ones(20, 12, dtype=torch.bool)
    maskable[:, 10:] = False
    marked[:, 0], marked[:, 10:] = True, False
    found = average_precision(scores, maskable, marked)
    for row in range(20):
        assert found[row].item() == pytest.approx(
            average_precision_score(marked[row, :10].numpy(), scores[row, :10].numpy()), abs=1e-6
        )


def test_token_f1_equals_scikit_learn() -> None:
    source = torch.Generator().manual_seed(0)
    chosen, marked = (torch.rand(10, 12, generator=source) < 0.5 for _ in range(2))
    theirs = [f1_score(marked[row].numpy(), chosen[row].numpy()) for row in range(10)]
    assert token_f1(chosen, marked).tolist() == pytest.approx(theirs)


@pytest.mark.parametrize(
    ("chosen", "marked", "f1"),
    [
        ("11100", "11100", 1.0),
        ("11000", "11100", 1.0),  # 2 of 3
        ("10000", "11100", 0.0),  # 1 of 3
        ("10100", "11100", 0.0),  # two spans of 1 of 3
        ("11011", "11000", 2 / 3),
        ("00000", "11000", 0.0),
    ],
)
def test_a_span_matches_from_half_of_the_union(chosen: str, marked: str, f1: float) -> None:
    rows = [torch.tensor([[mark == "1" for mark in text]]) for text in (chosen, marked)]
    assert iou_f1(rows[0], rows[1], 0.5).tolist() == pytest.approx([f1])


def test_the_number_of_selected_tokens_is_the_average_marked_share() -> None:
    maskable = torch.ones(2, 6, dtype=torch.bool)
    marked = torch.tensor([[1, 1, 0, 0, 0, 0], [1, 1, 1, 1, 0, 0]]).bool()
    scores = torch.tensor([[6.0, 5, 4, 3, 2, 1], [1.0, 2, 3, 4, 5, 6]])
    assert select_as_many(scores, maskable, marked).tolist() == [[True] * 3 + [False] * 3, [False] * 3 + [True] * 3]


def test_scores_on_the_marks_are_perfect_and_baselines_are_at_chance(tmp_path: Path) -> None:
    rows = [
        RationaleExample("good film but a mess", label=1, evidence=((0, 9),)),
        RationaleExample("fun movie", label=1, evidence=((0, 3),)),
    ]
    task = TextClassification(tiny_model("bert", labels=2), word_pieces(), train=rows, test=rows)
    workspace = workspace_of(task, tmp_path)
    right = {
        record.metric: record for record in HumanRationales().run(Written(scores=(0, 3.0, 2.0, 1, 1, 1, 0)), workspace)
    }
    assert right["rationale_auprc"].per_row == (1.0, 1.0)
    # People mark .45 of a text on average: 2 of 5 tokens, 1 of 2.
    assert right["rationale_token_f1"].per_row == (1.0, 1.0)
    assert right["rationale_iou_f1"].per_row == (1.0, 1.0)
    flat = {record.metric: record for record in HumanRationales().run(Uniform(), workspace)}
    assert flat["rationale_auprc"].per_row == pytest.approx((2 / 5, 1 / 2))
    drawn = {record.metric: record for record in HumanRationales().run(Random(), workspace)}
    assert drawn["rationale_auprc"].rows == 2


def test_rows_that_are_fully_marked_are_left_out(tmp_path: Path) -> None:
    rows = [RationaleExample("good film", label=1, evidence=((0, 9),))]
    task = TextClassification(tiny_model("bert", labels=2), word_pieces(), train=rows, test=rows)
    assert list(HumanRationales().run(Uniform(), workspace_of(task, tmp_path))) == []
