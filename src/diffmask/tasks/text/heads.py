"""Meaning of a classifier's logits: one class of several, several labels at once, or numbers."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import torch
from jaxtyping import Float, Shaped
from torch import Tensor
from torch.distributions import Bernoulli, Categorical, Distribution, Independent, Normal

from diffmask.core.batch import Batch
from diffmask.core.distributions import class_probabilities, logits
from diffmask.errors import InputError, nearest
from diffmask.explanation.verified_set import Prediction

NO_LABEL = -1
"""Target of a text without a label."""


@dataclass(frozen=True)
class Head(ABC):
    """Conversion of logits to a distribution, of labels to targets, and of both to text."""

    names: tuple[str, ...]

    @abstractmethod
    def distribution(self, values: Float[Tensor, "row output"]) -> Distribution:
        """Return the distribution with these logits."""

    @abstractmethod
    def targets(self, labels: Sequence[Any]) -> Shaped[Tensor, "row *event"]:
        """Convert labels to outcomes of the distribution; a missing label is -1 or NaN."""

    @abstractmethod
    def score(self, answer: Distribution, target: Shaped[Tensor, "row *event"]) -> float:
        """Score the rows that have a label."""

    def per_example_score(
        self, answer: Distribution, target: Shaped[Tensor, "row *event"]
    ) -> Float[Tensor, " row"] | None:
        """Return the score of each labelled row if `score` is their mean, else None."""
        return None

    @abstractmethod
    def outcomes(self, target: Shaped[Tensor, "row *event"]) -> list[str | None]:
        """Return the name of each target; None for a missing label."""

    @abstractmethod
    def predictions(self, answer: Distribution) -> list[Prediction]:
        """Return the predicted outcome of each row with its probability."""

    def outcome_of(self, target: object) -> Shaped[Tensor, "*event"]:
        """Return the outcome that a class, given by name or index, stands for when it is explained."""
        raise InputError(f"the model predicts numbers, not classes; leave target={target!r} out")

    def target_prediction(self, answer: Distribution, target: Shaped[Tensor, "*event"]) -> Prediction:
        """Return the name of an explained class and its probability in the first row."""
        index = int(target.argmax()) if target.ndim else int(target)
        return Prediction(self.names[index], float(class_probabilities(answer)[0, index]))

    def target_index(self, target: object) -> int:
        """Return the index of a class that is given by name or index, after checking that the model has it."""
        if isinstance(target, bool) or not isinstance(target, str | int | Integral):
            raise InputError(f"a target is the name or the index of a class; got {target!r}")
        name = str(target)
        if name in self.names:
            return self.names.index(name)
        if name.isdecimal() and int(name) < len(self.names):
            return int(name)
        classes = ", ".join(f"{index} {name}" for index, name in enumerate(self.names[:20]))
        raise InputError(f"target {target!r} is not a class of the model; its classes are {classes}")

    def index(self, label: object, row: int | None = None) -> int:
        """Return the output of a label that is given by name, by number or by number as text."""
        if str(label) in self.names:
            return self.names.index(str(label))
        if str(label).removesuffix(".0").isdigit() and int(float(str(label))) < len(self.names):
            return int(float(str(label)))
        where = "" if row is None else f"row {row}: "
        raise InputError(
            f"{where}'{label}' is not a label of the model; {nearest(str(label), self.names)}. A pair of texts without "
            "a label is {'text': ..., 'text_pair': ...}"
        )


class MulticlassHead(Head):
    """Softmax over classes, scored by accuracy."""

    def distribution(self, values: Float[Tensor, "row output"]) -> Distribution:
        """Return a categorical distribution."""
        return Categorical(logits=values, validate_args=False)

    def targets(self, labels: Sequence[Any]) -> Tensor:
        """Return the indices of the classes."""
        return torch.tensor([NO_LABEL if label is None else self.index(label, row) for row, label in enumerate(labels)])

    def outcome_of(self, target: object) -> Tensor:
        """Return the index of the class."""
        return torch.tensor(self.target_index(target))

    def score(self, answer: Distribution, target: Tensor) -> float:
        """Return the accuracy."""
        return float(self.per_example_score(answer, target).mean())

    def per_example_score(self, answer: Distribution, target: Tensor) -> Float[Tensor, " row"]:
        """Return 1 for each labelled row whose class is predicted correctly."""
        labelled = _require_any(target != NO_LABEL)
        return (logits(answer).argmax(dim=-1)[labelled] == target[labelled]).float()

    def outcomes(self, target: Tensor) -> list[str | None]:
        """Return the names of the classes."""
        return [None if index == NO_LABEL else self.names[index] for index in target.tolist()]

    def predictions(self, answer: Distribution) -> list[Prediction]:
        """Return the most probable class of each row."""
        best = logits(answer).softmax(dim=-1).max(dim=-1)
        return [
            Prediction(self.names[index], probability)
            for probability, index in zip(best.values.tolist(), best.indices.tolist(), strict=True)
        ]


class MultilabelHead(Head):
    """Independent sigmoid per label, scored by the fraction of correct label decisions."""

    def distribution(self, values: Float[Tensor, "row output"]) -> Distribution:
        """Return independent Bernoulli distributions."""
        return Independent(Bernoulli(logits=values, validate_args=False), 1, validate_args=False)

    def targets(self, labels: Sequence[Any]) -> Tensor:
        """Return one 0 or 1 per label; a row's label is a list of names, or one 0 or 1 per name."""
        return torch.stack([self._target(label) for label in labels])

    def _target(self, label: Any) -> Tensor:
        if label is None:
            return torch.full((len(self.names),), torch.nan)
        if len(label) == len(self.names) and set(label) <= {0, 1}:
            return torch.tensor(label, dtype=torch.float32)
        target = torch.zeros(len(self.names))
        target[[self.index(name) for name in label]] = 1
        return target

    def outcome_of(self, target: object) -> Tensor:
        """Return 1 for the label and 0.5, whose log-odds count nothing, for all others."""
        outcome = torch.full((len(self.names),), 0.5)
        outcome[self.target_index(target)] = 1.0
        return outcome

    def score(self, answer: Distribution, target: Tensor) -> float:
        """Return the fraction of correct label decisions."""
        return float(self.per_example_score(answer, target).mean())

    def per_example_score(self, answer: Distribution, target: Tensor) -> Float[Tensor, " row"]:
        """Return the fraction of correct label decisions of each labelled row."""
        labelled = _require_any(~target.isnan().any(dim=1))
        return ((logits(answer)[labelled] > 0) == (target[labelled] > 0.5)).float().mean(dim=1)

    def outcomes(self, target: Tensor) -> list[str | None]:
        """Return the names of the labels that apply, joined by ' + '."""
        return [None if bool(row.isnan().any()) else self._join_positive(row - 0.5) for row in target]

    def _join_positive(self, row: Tensor) -> str:
        return " + ".join(name for name, value in zip(self.names, row.tolist(), strict=True) if value > 0) or "none"

    def predictions(self, answer: Distribution) -> list[Prediction]:
        """Return the labels that are more probable than not."""
        return [Prediction(self._join_positive(row), float(torch.sigmoid(row.abs()).prod())) for row in logits(answer)]


class RegressionHead(Head):
    """Normal distribution of unit deviation around each number, scored by R squared.

    KL is then half the squared change of the prediction.
    """

    def distribution(self, values: Float[Tensor, "row output"]) -> Distribution:
        """Return normal distributions with these means."""
        return Independent(Normal(values, torch.ones_like(values), validate_args=False), 1, validate_args=False)

    def targets(self, labels: Sequence[Any]) -> Tensor:
        """Return one number per row and output."""
        return torch.tensor([self._target(label) for label in labels])

    def _target(self, label: Any) -> list[float]:
        if label is None:
            return [torch.nan] * len(self.names)
        return [float(value) for value in (label if isinstance(label, list | tuple) else [label])]

    def score(self, answer: Distribution, target: Tensor) -> float:
        """Return R squared."""
        labelled = _require_any(~target.isnan().any(dim=1))
        error = (logits(answer)[labelled] - target[labelled]).square().sum()
        return float(1 - error / (target[labelled] - target[labelled].mean(dim=0)).square().sum().clamp(min=1e-12))

    def outcomes(self, target: Tensor) -> list[str | None]:
        """Return the numbers with four significant digits."""
        return [None if any(value != value for value in row) else _format_row(row) for row in target.tolist()]

    def predictions(self, answer: Distribution) -> list[Prediction]:
        """Return the predicted numbers, without a probability."""
        return [Prediction(_format_row(row), None) for row in logits(answer).tolist()]


def _format_row(row: Sequence[float]) -> str:
    return ", ".join(f"{value:.4g}" for value in row)


HEADS: Mapping[str, type[Head]] = {
    "single_label_classification": MulticlassHead,
    "multi_label_classification": MultilabelHead,
    "regression": RegressionHead,
}
"""Heads by `config.problem_type` of `transformers`."""


def head_of(config: Any) -> Head:
    """Return the head of a model's `problem_type`; without one, a single output is a number, several are classes."""
    kind = config.problem_type or ("regression" if config.num_labels == 1 else "single_label_classification")
    if kind not in HEADS:
        raise InputError(f"problem_type '{kind}' is not known; {nearest(kind, HEADS)}")
    return HEADS[kind](tuple(str(config.id2label.get(index, index)) for index in range(config.num_labels)))


def _require_any(labelled: Tensor) -> Tensor:
    if not labelled.any():
        raise InputError("no row has a label: the model's own score needs labels")
    return labelled


def correct_classes(logits_of: Callable[[Batch], Tensor], batch: Batch) -> Float[Tensor, " labelled"]:
    """Return 1 for each labelled row whose class has the largest logit, 0 for the others."""
    rows = batch[_require_any(batch.target != NO_LABEL)]
    return (logits_of(rows).argmax(dim=-1) == rows.target).float()
