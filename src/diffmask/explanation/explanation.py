"""What a reader is given for one text: which words were needed, until which layer, and that claim put to the test."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from jaxtyping import Bool, Float
from torch import Tensor

from diffmask.errors import InputError, nearest
from diffmask.explanation.heatmap import Heatmap, short_layer_name
from diffmask.explanation.text_units import Span, Token, Unit, group_tokens, max_over_tokens, sentence_spans, word_spans


@dataclass(frozen=True)
class Prediction:
    """What the model says of one text."""

    label: str
    """The class, the labels joined by ` + `, or the number."""
    probability: float | None
    """Of that outcome; None for a number."""

    def __str__(self) -> str:
        return self.label if self.probability is None else f"{self.label} ({self.probability:.3f})"


@dataclass(frozen=True)
class HardMask:
    """A mask that a reader can check: these units stay, the others are erased, and this is what it does."""

    layer: str | None
    kept: tuple[bool, ...]
    """One for each unit."""
    divergence: float
    """KL(original || masked) in nats, measured on this very text."""
    prediction: Prediction
    """What the model says of what is kept."""

    @property
    def masked_share(self) -> float:
        """Share of the units that are erased."""
        return 1 - sum(self.kept) / len(self.kept) if self.kept else 0.0

    def __str__(self) -> str:
        if not self.kept:
            return "There are no words that could be masked."
        gone, change = len(self.kept) - sum(self.kept), f"a change of {self.divergence:.3f} nats"
        return f"Without {gone} of {len(self.kept)} words the model says {self.prediction}: {change}."


MaskEffect = Callable[[Bool[Tensor, " token"], str | None], tuple[float, Prediction]]
"""What the model makes of a text of which only some tokens are kept at a layer."""


@dataclass(frozen=True, kw_only=True, repr=False)
class Explanation:
    """The scores of one text's words; `at` gives those of its tokens, sentences or spans."""

    text: str
    pair: str | None
    prediction: Prediction
    tokens: tuple[Token, ...]
    """The word pieces that may be masked."""
    units: tuple[Unit, ...]
    """What is scored: words, unless `at` says otherwise."""
    token_scores: Float[Tensor, " token"]
    token_by_layer: Float[Tensor, "layer token"] | None
    layers: tuple[str, ...]
    method: str
    mask_effect: MaskEffect = field(compare=False)

    def __repr__(self) -> str:
        best = sorted(zip(self.scores.tolist(), self.words, strict=True), reverse=True)[:3]
        needed = ", ".join(f"{word!r} {score:.2f}" for score, word in best)
        return f"Explanation({self.prediction}: {needed or 'no words'})"

    @property
    def words(self) -> tuple[str, ...]:
        """The units' texts."""
        return tuple(unit.text for unit in self.units)

    @cached_property
    def scores(self) -> Float[Tensor, " unit"]:
        """How much each unit is needed: the largest score of its tokens."""
        return max_over_tokens(self.token_scores, self.units)

    @cached_property
    def by_layer(self) -> Float[Tensor, "layer unit"] | None:
        """The same as seen from each layer, where the method sees layers."""
        return None if self.token_by_layer is None else max_over_tokens(self.token_by_layer, self.units)

    def at(self, granularity: str | Sequence[Span]) -> "Explanation":
        """The same explanation of its `token`, `word` or `sentence`; or of spans of characters in the text."""
        return replace(self, units=split_units(self.text, self.pair, self.tokens, granularity))

    def dropped_at(self, threshold: float = 0.5) -> tuple[str | None, ...]:
        """For each unit the first layer from which it is not needed any more; None if it is needed to the last."""
        seen = self._layered()
        needed = (seen > threshold).flip(0).cummax(dim=0).values.flip(0)
        counts = needed.sum(dim=0).tolist()
        return tuple(self.layers[count] if count < len(self.layers) else None for count in counts)

    def hard_mask(self, threshold: float = 0.5, layer: str | None = None) -> HardMask:
        """Keep the units over the threshold at a layer (the last, unless named), erase the others, ask the model.

        Scores that are no probabilities, of methods that see no layers, are taken as shares of the largest.
        """
        if self.by_layer is None:
            kept = self.scores > threshold * self.scores.abs().max() if len(self.scores) else self.scores > 0
        else:
            layer = self.layers[-1] if layer is None else layer
            kept = self.by_layer[self._index(layer)] > threshold
        divergence, prediction = self.mask_effect(self._tokens_of(kept), layer)
        return HardMask(layer, tuple(kept.tolist()), divergence, prediction)

    def checks(self, threshold: float = 0.5) -> list[HardMask]:
        """The hard mask of every layer, each put to the test."""
        return [self.hard_mask(threshold, layer) for layer in self.layers or (None,)]

    def to_dict(self, threshold: float = 0.5) -> dict[str, Any]:
        """Plain values: text, prediction, words with scores, and the hard mask of the last layer."""
        mask = self.hard_mask(threshold)
        return {
            "text": self.text,
            "pair": self.pair,
            "method": self.method,
            "prediction": {"label": self.prediction.label, "probability": self.prediction.probability},
            "words": list(self.words),
            "spans": [list(unit.span) for unit in self.units],
            "segments": [unit.segment for unit in self.units],
            "scores": self.scores.tolist(),
            "layers": list(self.layers),
            "by_layer": None if self.by_layer is None else self.by_layer.tolist(),
            "mask": {
                "threshold": threshold,
                "layer": mask.layer,
                "kept": list(mask.kept),
                "divergence": mask.divergence,
                "prediction": {"label": mask.prediction.label, "probability": mask.prediction.probability},
            },
        }

    def heatmap(self, threshold: float = 0.5) -> Heatmap:
        """The words, their scores at every layer, and every layer's hard mask put to the test, for a picture."""
        checks = self.checks(threshold)
        return Heatmap(
            title=f"The model says {self.prediction}.",
            verdict=str(checks[-1]),
            headings=tuple(short_layer_name(layer) for layer in self.layers) or ("score",),
            words=self.words,
            values=self._values(),
            kept=checks[-1].kept,
            masked=tuple(check.masked_share for check in checks),
            divergences=tuple(check.divergence for check in checks),
        )

    def show(self, threshold: float = 0.5) -> None:
        """Print the heat map of words and layers."""
        from diffmask.explanation.heatmap import print_heatmap

        print_heatmap(self.heatmap(threshold))

    def to_html(self, threshold: float = 0.5) -> str:
        """The heat map as a piece of HTML, readable on a light and on a dark page."""
        from diffmask.explanation.heatmap import render_heatmap

        return render_heatmap(self.heatmap(threshold))

    def _repr_html_(self) -> str:
        return self.to_html()

    def plot(self, threshold: float = 0.5) -> Any:
        """The heat map as a matplotlib figure."""
        from diffmask.explanation.heatmap import plot_heatmap

        return plot_heatmap(self.heatmap(threshold))

    def _values(self) -> tuple[tuple[float, ...], ...]:
        """One row a unit; scores that are no probabilities as shares of the largest."""
        if self.by_layer is not None:
            return tuple(tuple(row) for row in self.by_layer.T.tolist())
        top = max((abs(score) for score in self.scores.tolist()), default=0.0) or 1.0
        return tuple((max(score / top, 0.0),) for score in self.scores.tolist())

    def _layered(self) -> Float[Tensor, "layer unit"]:
        if self.by_layer is None:
            raise InputError(f"{self.method} does not see layers; use a method that does, such as diffmask")
        return self.by_layer

    def _index(self, layer: str) -> int:
        if layer not in self.layers:
            raise InputError(f"'{layer}' is not a layer of this explanation; {nearest(layer, self.layers)}")
        return self.layers.index(layer)

    def _tokens_of(self, kept: Bool[Tensor, " unit"]) -> Bool[Tensor, " token"]:
        """All tokens but those of the units that go; a token of no unit, such as a lone space, stays."""
        inside = kept.new_ones(len(self.tokens))
        for unit, stays in zip(self.units, kept.tolist(), strict=True):
            inside[list(unit.tokens)] = stays
        return inside


def split_units(
    text: str, pair: str | None, tokens: Sequence[Token], granularity: str | Sequence[Span]
) -> tuple[Unit, ...]:
    """The units of a text, and of the second text of a pair."""
    if granularity == "token":
        return tuple(Unit(token.piece, token.span, token.segment, (place,)) for place, token in enumerate(tokens))
    if not isinstance(granularity, str):
        return tuple(group_tokens(text, granularity, tokens))
    rules = {"word": word_spans, "sentence": sentence_spans}
    if granularity not in rules:
        raise InputError(f"'{granularity}' is not a granularity; {nearest(granularity, ['token', *rules])}")
    rule = rules[granularity]
    found = [*group_tokens(text, rule(text), tokens), *group_tokens(pair or "", rule(pair or ""), tokens, segment=1)]
    return tuple(found)
