"""Accuracy, macro-F1 and AUROC by hand and against scikit-learn."""

import pytest
import torch
from sklearn.metrics import accuracy_score as sklearn_accuracy
from sklearn.metrics import f1_score, roc_auc_score

from diffmask.core.scores import accuracy_score, auroc_score, macro_f1_score


def test_macro_f1_by_hand() -> None:
    # Class 0: TP 2, FP 1, FN 0, F1 4/5. Class 1: TP 1, FP 0, FN 1, F1 2/3. Class 2: TP 1, FP 0, FN 0, F1 1.
    predicted, target = torch.tensor([0, 0, 0, 1, 2]), torch.tensor([0, 0, 1, 1, 2])
    assert macro_f1_score(predicted, target) == pytest.approx((4 / 5 + 2 / 3 + 1) / 3)


def test_a_class_that_is_never_predicted_counts_0_and_one_that_never_occurs_does_not_count() -> None:
    # Class 1 is never predicted: (2 * 3 / 7 + 0) / 2, the macro-F1 of a majority classifier. Class 2 does not occur.
    majority, target = torch.tensor([0, 0, 0, 0]), torch.tensor([0, 0, 0, 1])
    assert macro_f1_score(majority, target) == pytest.approx(3 / 7)
    assert macro_f1_score(torch.tensor([0, 1, 3]), torch.tensor([0, 1, 3])) == 1.0


def test_rows_without_a_label_are_left_out() -> None:
    predicted, target = torch.tensor([1, 0, 1]), torch.tensor([1, -1, 0])
    assert accuracy_score(predicted, target) == 0.5
    assert macro_f1_score(predicted, target) == pytest.approx(1 / 3)


@pytest.mark.parametrize("seed", range(5))
def test_scores_are_scikit_learn_s(seed: int) -> None:
    source = torch.Generator().manual_seed(seed)
    predicted, target = torch.randint(6, (2, 12), generator=source)
    assert accuracy_score(predicted, target) == pytest.approx(sklearn_accuracy(target, predicted))
    assert macro_f1_score(predicted, target) == pytest.approx(f1_score(target, predicted, average="macro"))
    # Rounded, so that some scores are tied.
    score, binary = torch.randn(40, generator=source).round(decimals=1), torch.arange(40) % 2
    assert auroc_score(score, binary) == pytest.approx(roc_auc_score(binary, score))
