"""Scores of a classifier: accuracy, macro-F1 and the area under the ROC curve."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

Logits = Float[Tensor, "row class"]
Labels = Int[Tensor, " row"]


def accuracy(logits: Logits, target: Labels) -> float:
    """Share of rows whose most likely class is the right one; also the micro-F1."""
    return float(right(logits, target).mean())


def right(logits: Logits, target: Labels) -> Float[Tensor, " row"]:
    """1 for a row whose most likely class is the right one."""
    return (logits.argmax(dim=1) == target).double()


def macro_f1(logits: Logits, target: Labels) -> float:
    """Mean over classes of 2 TP / (2 TP + FP + FN); a class that is neither given nor found counts 0.

    >>> round(macro_f1(torch.tensor([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0]]), torch.tensor([0, 0, 1])), 3)
    0.4
    """
    found = logits.argmax(dim=1)
    scores = []
    for label in range(logits.shape[1]):
        hit = int(((found == label) & (target == label)).sum())
        total = int((found == label).sum() + (target == label).sum())
        scores.append(2 * hit / total if total else 0.0)
    return sum(scores) / len(scores)


def auroc(logits: Logits, target: Labels) -> float:
    """P(a positive row scores above a negative one), ties counted half; two classes.

    >>> auroc(torch.tensor([[0.0, 1.0], [0.0, 3.0], [0.0, 2.0]]), torch.tensor([0, 1, 0]))
    1.0
    """
    score = (logits[:, 1] - logits[:, 0]).double()
    positive, negative = score[target == 1], score[target == 0]
    if not len(positive) or not len(negative):
        return 0.5
    ordered = negative.sort().values
    below = torch.searchsorted(ordered, positive, right=False)
    up_to = torch.searchsorted(ordered, positive, right=True)
    return float((below + up_to).double().mean() / 2 / len(negative))


SCORES = {"accuracy": accuracy, "macro-f1": macro_f1, "auroc": auroc}
