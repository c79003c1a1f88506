"""The explanation of one text: scores of its words, per layer, and hard masks checked on the model."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from diffmask.errors import InputError, nearest
from diffmask.explanation.heatmap import HasHeatmap, Heatmap, describe_columns, short_layer_name
from diffmask.explanation.text_units import (
    Span,
    Token,
    Unit,
    mark_span,
    max_over_tokens,
    split_units,
    unit_gaps,
)
from diffmask.explanation.verified_set import (
    HardMask,
    KnownEffects,
    KnownLayers,
    MaskEffect,
    Prediction,
    VerifiedSet,
    Verifier,
)
from diffmask.results.aggregation import ScoredText, divide_by_largest, to_frame
from diffmask.results.formatting import format_decimal

CACHED = ("scores", "by_layer", "verified_layers")
"""Properties that are computed again after unpickling."""


@dataclass(frozen=True, kw_only=True, repr=False)
class Explanation(HasHeatmap):
    """Scores of the words of one text; `at` gives scores of its tokens, sentences or spans."""

    text: str
    pair: str | None
    prediction: Prediction
    tokens: tuple[Token, ...]
    """The word pieces that may be masked."""
    units: tuple[Unit, ...]
    """The scored units: words, unless `at` chose others."""
    token_scores: Float[Tensor, " token"]
    token_by_layer: Float[Tensor, "layer token"] | None
    layers: tuple[str, ...]
    method: str
    mask_effect: MaskEffect = field(compare=False)
    verifier: Verifier | None = field(default=None, compare=False)
    """Searches for the smallest set of units that is enough."""
    verified: VerifiedSet | None = None
    """Units that were measured to be enough; None for a prediction that was not verified."""
    layer_verifier: Callable[[], tuple[VerifiedSet, ...]] | None = field(default=None, compare=False)
    """Verifies the mask of every layer."""
    granularity: str = "word"
    """Kind of the units: word, token, clause, sentence or span."""
    main_layer: str | None = None
    """Layer whose mask says which units are needed: the last for masks of inputs, the first for masks of states."""
    target: Prediction | None = None
    """The explained class and its probability, if one was chosen; None explains the prediction."""

    def __repr__(self) -> str:
        best = sorted(zip(self.scores.tolist(), self.words, strict=True), reverse=True)[:3]
        needed = ", ".join(f"{word!r} {format_decimal(score, 2)}" for score, word in best)
        explained = self.prediction if self.explains_prediction else f"{self.target}, predicted {self.prediction}"
        return f"Explanation({explained}: {needed or 'no words'})"

    def __getstate__(self) -> dict[str, Any]:
        """Return plain values for pickling: the model stays behind, the checked masks of the picture come along."""
        effects = {
            (tuple(self._tokens_of(torch.tensor(check.kept, dtype=torch.bool)).tolist()), check.layer): (
                check.divergence,
                check.prediction,
            )
            for check in self.checks()
        }
        lost = {
            "mask_effect": KnownEffects(effects),
            "verifier": None,
            "layer_verifier": KnownLayers(self.verified_layers),
        }
        return {**{name: value for name, value in vars(self).items() if name not in CACHED}, **lost}

    @property
    def explains_prediction(self) -> bool:
        """Whether the explained class is the predicted one."""
        return self.target is None or self.target.label == self.prediction.label

    @property
    def words(self) -> tuple[str, ...]:
        """Texts of the units."""
        return tuple(unit.text for unit in self.units)

    @cached_property
    def scores(self) -> Float[Tensor, " unit"]:
        """Score of each unit: the maximum over its tokens."""
        return max_over_tokens(self.token_scores, self.units)

    @cached_property
    def by_layer(self) -> Float[Tensor, "layer unit"] | None:
        """Scores per layer; None for a method without layers."""
        return None if self.token_by_layer is None else max_over_tokens(self.token_by_layer, self.units)

    def at(self, granularity: str | Sequence[Span]) -> "Explanation":
        """Return this explanation at `token`, `word`, `clause` or `sentence` level, or for given character spans."""
        units = split_units(self.text, self.pair, self.tokens, granularity)
        kind = granularity if isinstance(granularity, str) else "span"
        return replace(self, units=units, granularity=kind, verified=None, layer_verifier=None)

    def verify(self) -> "Explanation":
        """Return this explanation with the smallest set of its units that is measured to be enough."""
        if not self.explains_prediction:
            raise InputError("a verified set keeps the prediction; explain the text without a target to verify it")
        if self.verifier is None:
            raise InputError("this explanation has lost its model and cannot be verified; explain the text again")
        verification = self.verifier(self.units, self.granularity)
        return replace(self, verified=verification.verified, layer_verifier=verification.layers)

    @cached_property
    def verified_layers(self) -> tuple[VerifiedSet, ...]:
        """Verified sets of all layers, nested: a unit that one layer drops is dropped at all later ones.

        Empty without verification or without layers. The model runs when this is first read.
        """
        return self.layer_verifier() if self.layer_verifier is not None and self.layers else ()

    def dropped_at(self, threshold: float | None = None) -> tuple[str | None, ...]:
        """Return for each unit the first layer that no longer needs it; None if the last layer still does.

        With a threshold, or without verification, a layer needs the units above the threshold (0.5).
        """
        seen = self._layered()
        if threshold is None and self.verified_layers:
            kept = torch.tensor([layer.kept for layer in self.verified_layers], dtype=torch.bool)
        else:
            kept = seen > (0.5 if threshold is None else threshold)
        needed = kept.flip(0).cummax(dim=0).values.flip(0)
        counts = needed.sum(dim=0).tolist()
        return tuple(self.layers[count] if count < len(self.layers) else None for count in counts)

    def hard_mask(self, threshold: float | None = None, layer: str | None = None) -> HardMask:
        """Return the verified mask of a layer and its measured effect; by default that of the explanation's claim.

        With a threshold, or without verification, keep the units above the threshold (0.5) and run the model. Scores
        of a method without layers are not probabilities; they are divided by the largest.
        """
        layer = self.main_layer if layer is None else layer
        verified = self._verified_at(layer) if threshold is None else None
        if verified is not None:
            return HardMask(layer, verified.kept, verified.kl, verified.prediction, self.granularity)
        threshold = 0.5 if threshold is None else threshold
        if self.by_layer is None:
            kept = self.scores > threshold * self.scores.abs().max() if len(self.scores) else self.scores > 0
        else:
            layer = layer or self.layers[-1]
            kept = self.by_layer[self._index(layer)] > threshold
        divergence, prediction = self.mask_effect(self._tokens_of(kept), layer)
        return HardMask(layer, tuple(kept.tolist()), divergence, prediction, self.granularity)

    def _verified_at(self, layer: str | None) -> VerifiedSet | None:
        if self.verified is None or layer == self.main_layer:
            return self.verified
        return self.verified_layers[self._index(layer or self.layers[-1])]

    def checks(self, threshold: float | None = None) -> list[HardMask]:
        """Return the hard mask of every layer with its measured effect."""
        return [self.hard_mask(threshold, layer) for layer in self.layers or (None,)]

    def to_dict(self, threshold: float | None = None) -> dict[str, Any]:
        """Return plain values: text, prediction, words with scores, and the hard mask of the last layer."""
        mask = self.hard_mask(threshold)
        return {
            "text": self.text,
            "pair": self.pair,
            "method": self.method,
            "prediction": {"label": self.prediction.label, "probability": self.prediction.probability},
            "target": None if self.target is None else asdict(self.target),
            "words": list(self.words),
            "spans": [list(unit.span) for unit in self.units],
            "segments": [unit.segment for unit in self.units],
            "scores": self.scores.tolist(),
            "layers": list(self.layers),
            "by_layer": None if self.by_layer is None else self.by_layer.tolist(),
            "mask": {
                "threshold": threshold if threshold is not None or self.verified else 0.5,
                "layer": mask.layer,
                "kept": list(mask.kept),
                "divergence": mask.divergence,
                "prediction": {"label": mask.prediction.label, "probability": mask.prediction.probability},
            },
            "verified": None if self.verified is None else self.verified.to_dict(),
            "verified_layers": [layer.to_dict() for layer in self.verified_layers],
        }

    def scored_text(self) -> ScoredText:
        """Return words, scores as in pictures, the verified set and the layers that drop words, for `aggregate`."""
        return ScoredText(
            group=(self.target or self.prediction).label,
            words=self.words,
            scores=divide_by_largest(self.scores.tolist()),
            kept=None if self.verified is None else self.verified.kept,
            dropped_at=None if self.by_layer is None else self.dropped_at(),
        )

    def word_columns(self) -> dict[str, list[Any]]:
        """Return one list per column of `to_pandas`."""
        layers = {} if self.by_layer is None else dict(zip(self.layers, self.by_layer.tolist(), strict=True))
        return {
            "word": list(self.words),
            "segment": [unit.segment for unit in self.units],
            "start": [unit.span[0] for unit in self.units],
            "end": [unit.span[1] for unit in self.units],
            "score": self.scores.tolist(),
            **({} if self.verified is None else {"enough": list(self.verified.kept)}),
            **layers,
        }

    def to_pandas(self) -> Any:
        """Return a data frame with one row per word: its place in the text, its scores and whether it is enough."""
        return to_frame(self.word_columns())

    def heatmap(self, threshold: float | None = None) -> Heatmap:
        """Collect words, scores per layer and the measured effect of each layer's hard mask."""
        checks = self.checks(threshold)
        main = next((check for check in checks if check.layer == self.main_layer), checks[-1])
        return Heatmap(
            title=f"Prediction: {self.prediction}{'' if self.explains_prediction else f'; explained: {self.target}'}",
            verdict=f"{main}\n{self._claim(threshold)}",
            headings=tuple(short_layer_name(layer) for layer in self.layers) or ("score",),
            words=self.words,
            values=self._values(threshold),
            kept=main.kept,
            masked=tuple(check.masked_share for check in checks),
            divergences=tuple(check.divergence for check in checks),
            gaps=self._gaps(),
            legend=self._legend(),
        )

    def _gaps(self) -> tuple[str, ...]:
        """Return the text between the units; the words of a prediction that is part of the text are marked."""
        gaps = unit_gaps(self.text, self.pair, self.units)
        return gaps if self.prediction.span is None else mark_span(gaps, self.units, self.prediction.span)

    def _claim(self, threshold: float | None) -> str:
        """Say whether the marked units were verified."""
        if not self.explains_prediction:
            return "Scores are those of another class than the prediction, so no set of words was verified."
        if self.verified is None or threshold is not None:
            return "Predicted, not verified."
        claim = self.verified.sentence
        return f"{claim[0].upper()}{claim[1:]} ({self.verified})."

    def _values(self, threshold: float | None) -> tuple[tuple[float, ...], ...]:
        """Return one row per unit; scores that are not probabilities are divided by the largest.

        Where a verified mask keeps a unit that was predicted to be erased, or the reverse, the probability is moved to
        its side of one half: a value above one half is a unit that the column's mask keeps.
        """
        if self.by_layer is not None:
            values = self.by_layer
            if threshold is None and self.verified_layers:
                kept = torch.tensor([layer.kept for layer in self.verified_layers], dtype=torch.bool)
                values = torch.where(kept, values.clamp(min=0.51), values.clamp(max=0.49)).reshape(values.shape)
            return tuple(tuple(row) for row in values.T.tolist())
        top = max((abs(score) for score in self.scores.tolist()), default=0.0) or 1.0
        return tuple((score / top,) for score in self.scores.tolist())

    def _legend(self) -> str:
        """Say what the columns, the numbers and the marks of the picture are."""
        marked = "Underlined or [bracketed] words are kept."
        if self.prediction.span is not None:
            marked += " «Quoted» words are the prediction."
        if self.by_layer is None:
            return f"score: by {self.method}, divided by the largest; below 0, the word speaks against. {marked}"
        numbers = "Numbers: how much a layer needs the word, 0 to 1; above .5 it is kept"
        rows = "masked %: share of the words erased; KL: change of the prediction by that, in nats"
        return f"{describe_columns(self.layers)} {numbers}. {rows}. {marked}"

    def _layered(self) -> Float[Tensor, "layer unit"]:
        if self.by_layer is None:
            raise InputError(f"{self.method} has no scores per layer; use a method that has, such as surrogate-mask")
        return self.by_layer

    def _index(self, layer: str) -> int:
        if layer not in self.layers:
            raise InputError(f"'{layer}' is not a layer of this explanation; {nearest(layer, self.layers)}")
        return self.layers.index(layer)

    def _tokens_of(self, kept: Bool[Tensor, " unit"]) -> Bool[Tensor, " token"]:
        """Return the kept tokens; a token outside every unit, such as a lone space, is kept."""
        inside = kept.new_ones(len(self.tokens))
        for unit, stays in zip(self.units, kept.tolist(), strict=True):
            inside[list(unit.tokens)] = stays
        return inside
