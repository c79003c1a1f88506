"""What a classifier's logits mean: one class of several, several labels at once, or numbers."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Shaped
from torch import Tensor
from torch.distributions import Bernoulli, Categorical, Distribution, Independent, Normal

from diffmask.core.distributions import logits
from diffmask.errors import InputError, nearest
from diffmask.explanation.explanation import Prediction

MISSING = -1
"""Stands for the class of a text without a label."""


@dataclass(frozen=True)
class Head(ABC):
    """From logits to an answer, from labels to targets."""

    names: tuple[str, ...]

    @abstractmethod
    def answer(self, values: Float[Tensor, "row output"]) -> Distribution:
        """The distribution that the logits stand for."""

    @abstractmethod
    def targets(self, labels: Sequence[Any]) -> Shaped[Tensor, "row *event"]:
        """Labels as the outcomes of that distribution; a missing label is -1 or NaN."""

    @abstractmethod
    def score(self, answer: Distribution, target: Shaped[Tensor, "row *event"]) -> float:
        """The head's own score of the rows that have a label."""

    def per_example_score(
        self, answer: Distribution, target: Shaped[Tensor, "row *event"]
    ) -> Float[Tensor, " row"] | None:
        """Each labelled row's part in the score, where the score is their mean."""
        return None

    @abstractmethod
    def outcomes(self, target: Shaped[Tensor, "row *event"]) -> list[str | None]:
        """Targets for people; a missing label is None."""

    @abstractmethod
    def predictions(self, answer: Distribution) -> list[Prediction]:
        """Each row's answer for people."""

    def index(self, label: object) -> int:
        """The output that a label's name, number or number as text stands for."""
        if str(label) in self.names:
            return self.names.index(str(label))
        if str(label).removesuffix(".0").isdigit() and int(float(str(label))) < len(self.names):
            return int(float(str(label)))
        raise InputError(f"'{label}' is not a label of the model; {nearest(str(label), self.names)}")


class MulticlassHead(Head):
    """Categorical over the classes; its score is accuracy."""

    def answer(self, values: Float[Tensor, "row output"]) -> Distribution:
        """Softmax."""
        return Categorical(logits=values, validate_args=False)

    def targets(self, labels: Sequence[Any]) -> Tensor:
        """Numbers of the classes."""
        return torch.tensor([MISSING if label is None else self.index(label) for label in labels])

    def score(self, answer: Distribution, target: Tensor) -> float:
        """Accuracy."""
        return float(self.per_example_score(answer, target).mean())

    def per_example_score(self, answer: Distribution, target: Tensor) -> Float[Tensor, " row"]:
        """Whether each class is the right one."""
        known = _require_labels(target != MISSING)
        return (logits(answer).argmax(dim=-1)[known] == target[known]).float()

    def outcomes(self, target: Tensor) -> list[str | None]:
        """Names of the classes."""
        return [None if number == MISSING else self.names[number] for number in target.tolist()]

    def predictions(self, answer: Distribution) -> list[Prediction]:
        """The likeliest class."""
        best = logits(answer).softmax(dim=-1).max(dim=-1)
        return [
            Prediction(self.names[place], value)
            for value, place in zip(best.values.tolist(), best.indices.tolist(), strict=True)
        ]


class MultilabelHead(Head):
    """Independent Bernoulli labels; their score is the share of label decisions that are right."""

    def answer(self, values: Float[Tensor, "row output"]) -> Distribution:
        """A sigmoid each."""
        return Independent(Bernoulli(logits=values, validate_args=False), 1, validate_args=False)

    def targets(self, labels: Sequence[Any]) -> Tensor:
        """One number a label: a row's label is a list of names, or of as many zeros and ones as there are names."""
        return torch.stack([self._row(label) for label in labels])

    def _row(self, label: Any) -> Tensor:
        if label is None:
            return torch.full((len(self.names),), torch.nan)
        if len(label) == len(self.names) and set(label) <= {0, 1}:
            return torch.tensor(label, dtype=torch.float32)
        row = torch.zeros(len(self.names))
        row[[self.index(name) for name in label]] = 1
        return row

    def score(self, answer: Distribution, target: Tensor) -> float:
        """Share of label decisions that are right."""
        return float(self.per_example_score(answer, target).mean())

    def per_example_score(self, answer: Distribution, target: Tensor) -> Float[Tensor, " row"]:
        """The share of a row's labels."""
        known = _require_labels(~target.isnan().any(dim=1))
        return ((logits(answer)[known] > 0) == (target[known] > 0.5)).float().mean(dim=1)

    def outcomes(self, target: Tensor) -> list[str | None]:
        """The labels that hold, joined as a prediction's are."""
        return [None if bool(row.isnan().any()) else self._named(row - 0.5) for row in target]

    def _named(self, row: Tensor) -> str:
        return " + ".join(name for name, value in zip(self.names, row.tolist(), strict=True) if value > 0) or "none"

    def predictions(self, answer: Distribution) -> list[Prediction]:
        """The labels that are more likely than not."""
        return [self._prediction(row) for row in logits(answer)]

    def _prediction(self, row: Tensor) -> Prediction:
        return Prediction(self._named(row), float(torch.sigmoid(row.abs()).prod()))


class RegressionHead(Head):
    """Normal of unit deviation around each number, so that KL is half the squared change; its score is R squared."""

    def answer(self, values: Float[Tensor, "row output"]) -> Distribution:
        """The outputs are means."""
        return Independent(Normal(values, torch.ones_like(values), validate_args=False), 1, validate_args=False)

    def targets(self, labels: Sequence[Any]) -> Tensor:
        """Numbers, one a row and output."""
        return torch.tensor([self._row(label) for label in labels])

    def _row(self, label: Any) -> list[float]:
        if label is None:
            return [torch.nan] * len(self.names)
        return [float(value) for value in (label if isinstance(label, list | tuple) else [label])]

    def score(self, answer: Distribution, target: Tensor) -> float:
        """R squared."""
        known = _require_labels(~target.isnan().any(dim=1))
        error = (logits(answer)[known] - target[known]).square().sum()
        return float(1 - error / (target[known] - target[known].mean(dim=0)).square().sum().clamp(min=1e-12))

    def outcomes(self, target: Tensor) -> list[str | None]:
        """The numbers, as a prediction's are written."""
        rows = [None if any(value != value for value in row) else row for row in target.tolist()]
        return [None if row is None else ", ".join(f"{value:.4g}" for value in row) for row in rows]

    def predictions(self, answer: Distribution) -> list[Prediction]:
        """The numbers themselves."""
        return [Prediction(", ".join(f"{value:.4g}" for value in row), None) for row in logits(answer).tolist()]


HEADS: Mapping[str, type[Head]] = {
    "single_label_classification": MulticlassHead,
    "multi_label_classification": MultilabelHead,
    "regression": RegressionHead,
}
"""By the name that `transformers` gives them as `config.problem_type`."""


def head_of(config: Any) -> Head:
    """The head a model's configuration states; where it states none, one output is a number, several are classes."""
    kind = config.problem_type or ("regression" if config.num_labels == 1 else "single_label_classification")
    if kind not in HEADS:
        raise InputError(f"problem_type '{kind}' is not known; {nearest(kind, HEADS)}")
    return HEADS[kind](tuple(str(config.id2label.get(place, place)) for place in range(config.num_labels)))


def _require_labels(known: Tensor) -> Tensor:
    if not known.any():
        raise InputError("no row has a label: the model's own score needs labels")
    return known
