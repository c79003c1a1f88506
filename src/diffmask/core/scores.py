"""Scores of predicted classes: accuracy, macro-F1 and the area under the ROC curve.

A target below 0 marks a row without a label; such rows are left out.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor


def accuracy_score(predicted: Int[Tensor, " row"], target: Int[Tensor, " row"]) -> float:
    """Return the fraction of rows whose class is predicted correctly, which is also the micro-F1.

    >>> accuracy_score(torch.tensor([0, 1, 1, 0]), torch.tensor([0, 1, 0, -1]))  # the last row has no label
    0.6666666666666666
    """
    labelled = target >= 0
    return float((predicted == target)[labelled].double().mean())


def macro_f1_score(predicted: Int[Tensor, " row"], target: Int[Tensor, " row"]) -> float:
    """Return the mean over classes of F1 = 2 TP / (2 TP + FP + FN).

    The mean is over the classes that occur among the targets or the predictions, as in scikit-learn's
    `f1_score(average="macro")`: a class that is never predicted counts 0, a class that never occurs does not count.

    >>> macro_f1_score(torch.tensor([0, 0, 0]), torch.tensor([0, 0, 1]))  # (4/5 + 0) / 2
    0.4
    """
    predicted, target = predicted[target >= 0], target[target >= 0]
    classes = torch.cat([predicted, target]).unique()[:, None]
    is_predicted, is_target = predicted == classes, target == classes
    hits = (is_predicted & is_target).sum(dim=1).double()
    return float((2 * hits / (is_predicted.sum(dim=1) + is_target.sum(dim=1))).mean())


def auroc_score(score: Float[Tensor, " row"], target: Int[Tensor, " row"]) -> float:
    """Return P(a row of class 1 scores above a row of class 0), ties counted half; 0.5 if a class is missing.

    >>> auroc_score(torch.tensor([1.0, 3.0, 2.0]), torch.tensor([0, 1, 0]))
    1.0
    """
    positive, negative = score[target == 1].double(), score[target == 0].double()
    if not len(positive) or not len(negative):
        return 0.5
    ordered = negative.sort().values
    below = torch.searchsorted(ordered, positive, right=False)
    up_to = torch.searchsorted(ordered, positive, right=True)
    return float((below + up_to).double().mean() / 2 / len(negative))
