"""The claim that a person reads: these words are enough, as measured on this very text."""

from dataclasses import asdict, dataclass
from typing import Any

from diffmask.results.formatting import format_decimal


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
    prior: str | None = None
    """Where nothing is needed: the model's prediction with every unit erased."""

    def __bool__(self) -> bool:
        return self.same_prediction and self.kl <= self.margin

    @property
    def sentence(self) -> str:
        """Say which claim was verified.

        >>> common = dict(kl=0.031, margin=0.1, same_prediction=True, minimal=True, rows=14)
        >>> VerifiedSet(words=("worth", "price"), kept=(False, True, True), **common).sentence
        'enough: worth, price'
        >>> VerifiedSet(words=(), kept=(False,), prior="negative (0.580)", **common).sentence
        'no word is needed: the model answers negative (0.580) whatever the text says'
        """
        if not self.words:
            return f"no word is needed: the model answers {self.prior} whatever the text says"
        return f"enough: {', '.join(self.words)}"

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, the sentence included."""
        return {**asdict(self), "words": list(self.words), "kept": list(self.kept), "sentence": self.sentence}

    def __str__(self) -> str:
        prediction = "same prediction" if self.same_prediction else "another prediction"
        minimal = "no word can be dropped" if self.minimal else "a smaller set may exist"
        relation = "<=" if self.kl <= self.margin else ">"
        checked = [f"KL {_short(self.kl)} {relation} {_short(self.margin)}", prediction]
        return f"verified: {', '.join([*checked, minimal] if self.words else checked)}"


def _short(value: float) -> str:
    """Return a number without its leading zero: .031, .1, 1.2."""
    return format_decimal(value, 3).rstrip("0").rstrip(".").removeprefix("0") or "0"
