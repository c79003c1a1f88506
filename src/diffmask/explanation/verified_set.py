"""Claims about one text that were measured on the model: words that are enough, and the effect of a hard mask."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from jaxtyping import Bool
from torch import Tensor

from diffmask.errors import InputError
from diffmask.explanation.text_units import Unit
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


@dataclass(frozen=True)
class HardMask:
    """A 0/1 mask over units and its measured effect on the prediction."""

    layer: str | None
    kept: tuple[bool, ...]
    """Whether each unit is kept."""
    divergence: float
    """KL(original || masked) in nats, measured on this very text."""
    prediction: Prediction
    """The prediction with the other units erased."""
    unit: str = "word"
    """Name of a unit: token, word, sentence, span or title."""

    @property
    def masked_share(self) -> float:
        """Share of the units that are erased."""
        return 1 - sum(self.kept) / len(self.kept) if self.kept else 0.0

    def __str__(self) -> str:
        if not self.kept:
            return f"No {self.unit} can be masked."
        erased = len(self.kept) - sum(self.kept)
        effect = f"KL(original || masked) = {format_decimal(self.divergence, 3)} nats"
        return f"Without {erased} of {len(self.kept)} {self.unit}s the model predicts {self.prediction}; {effect}."


@dataclass(frozen=True)
class KnownEffects:
    """Measured effects of masks of an explanation that was pickled without its model."""

    effects: dict[tuple[tuple[bool, ...], str | None], tuple[float, Prediction]]

    def __call__(self, kept: Bool[Tensor, " token"], layer: str | None) -> tuple[float, Prediction]:
        """Return the effect of a mask that was measured before pickling."""
        try:
            return self.effects[tuple(kept.tolist()), layer]
        except KeyError:
            raise InputError(
                "this explanation was loaded without its model, and this mask was not measured before; explain the "
                "text again"
            ) from None


@dataclass(frozen=True)
class KnownLayers:
    """Verified sets of all layers of an explanation that was pickled without its model."""

    layers: tuple[VerifiedSet, ...]

    def __call__(self) -> tuple[VerifiedSet, ...]:
        """Return the sets."""
        return self.layers


MaskEffect = Callable[[Bool[Tensor, " token"], str | None], tuple[float, Prediction]]
"""Divergence and prediction when only the given tokens are kept at a layer."""


@dataclass(frozen=True)
class Verification:
    """The smallest set of units found that keeps the answer, and the search for those of all layers."""

    verified: VerifiedSet
    layers: Callable[[], tuple[VerifiedSet, ...]]
    """Verify the mask of every layer; layers are checked only when someone looks at them."""


Verifier = Callable[[tuple[Unit, ...], str], Verification]
"""Search for the smallest set of units, of a kind such as `word`, that keeps the answer, by running the model."""


def _short(value: float, digits: int = 3) -> str:
    """Return a number without its leading zero: .031, .1, 1.2."""
    return format_decimal(value, digits).rstrip("0").rstrip(".").removeprefix("0") or "0"
