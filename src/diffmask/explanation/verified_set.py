"""The claim that a person reads: these words are enough, as measured on this very text."""

from dataclasses import asdict, dataclass
from typing import Any

from diffmask.results.formatting import format_decimal


@dataclass(frozen=True)
class Prediction:
    """The model's prediction for one text."""

    label: str
    """The class, the labels joined by ` + `, or the number."""
    probability: float | None
    """Probability of that label; None for a regression."""
    span: tuple[int, int, int] | None = None
    """Where the prediction is part of the text: the segment, and the first and last character; else None."""

    def __str__(self) -> str:
        return self.label if self.probability is None else f"{self.label} ({self.probability:.3f})"


@dataclass(frozen=True, kw_only=True)
class VerifiedSet:
    """Units that keep the model's answer when all other units are erased; truthy if that was measured to hold."""

    words: tuple[str, ...]
    """The units that are kept, in the order of the text."""
    kept: tuple[bool, ...]
    """One for each unit that the set was searched among."""
    kl: float
    """KL(original || only these units), in nats."""
    margin: float
    """Largest allowed KL, in nats."""
    same_prediction: bool
    minimal: bool
    """Whether dropping any single unit was measured to break the margin or the prediction."""
    rows: int
    """Masked copies of the text that went through the model."""
    prediction: Prediction
    """The model's prediction with only these units."""
    unit: str = "word"
    """Kind of the units: word, token, clause, sentence or span."""
    state_layer: str | None = None
    """Layer whose states were erased; None if the units themselves were."""

    def __bool__(self) -> bool:
        return self.same_prediction and self.kl <= self.margin

    @property
    def sentence(self) -> str:
        """Say which claim was verified.

        >>> common = dict(kl=0.031, margin=0.1, same_prediction=True, minimal=True, rows=14)
        >>> common["prediction"] = Prediction("negative", 0.58)
        >>> VerifiedSet(words=("worth", "price"), kept=(False, True, True), **common).sentence
        'enough: worth, price'
        >>> VerifiedSet(words=(), kept=(False,), **common).sentence
        'no word is needed: the model answers negative whatever the text says (prior .58)'
        >>> VerifiedSet(words=("worth",), kept=(True, False), state_layer="block3", **common).sentence
        'enough at block3: the states of worth'
        >>> VerifiedSet(words=(), kept=(False,), state_layer="block3", **common).sentence
        'at block3 no state of a word is needed'
        """
        if self.state_layer is not None:
            states = f"enough at {self.state_layer}: the states of {', '.join(self.words)}"
            return states if self.words else f"at {self.state_layer} no state of a {self.unit} is needed"
        if self.words:
            return f"enough: {', '.join(self.words)}"
        probability = self.prediction.probability
        prior = "" if probability is None else f" (prior {_short(probability, 2)})"
        return f"no {self.unit} is needed: the model answers {self.prediction.label} whatever the text says{prior}"

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, the sentence included."""
        return {**asdict(self), "words": list(self.words), "kept": list(self.kept), "sentence": self.sentence}

    def __str__(self) -> str:
        prediction = "same prediction" if self.same_prediction else "another prediction"
        minimal = f"no {self.unit} can be dropped" if self.minimal else "a smaller set may exist"
        relation = "<=" if self.kl <= self.margin else ">"
        checked = [f"KL {_short(self.kl)} {relation} {_short(self.margin)}", prediction]
        return f"verified: {', '.join([*checked, minimal] if self.words else checked)}"


def _short(value: float, digits: int = 3) -> str:
    """Return a number without its leading zero: .031, .1, 1.2."""
    return format_decimal(value, digits).rstrip("0").rstrip(".").removeprefix("0") or "0"
