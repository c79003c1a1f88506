"""Verified sets of texts: the search on token masks, written as claims about words, at every layer."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.distributions import Distribution

from diffmask.core.batch import Attribution, Batch
from diffmask.core.explainer import Explainer
from diffmask.core.verification.layers import VerifiedLayers, verify_inputs, verify_states
from diffmask.core.verification.masks import TextUnits, VerifiedMasks, select_rows, verify
from diffmask.errors import InputError
from diffmask.explanation.text_units import Unit
from diffmask.explanation.verified_set import Prediction, Verification, VerifiedSet
from diffmask.tasks.text.encoding import EncodedBatch


@runtime_checkable
class VerifiableText(Protocol):
    """A text, or the titles of an impression, with the rows of a batch that it was encoded as."""

    @property
    def task(self) -> Any:
        """The task, which turns logits into an answer."""

    @property
    def explainer(self) -> Explainer:
        """The explainer whose scores order the units."""

    @property
    def encoded(self) -> EncodedBatch:
        """The batch of all texts that are verified together."""

    @property
    def rows(self) -> list[int]:
        """Rows of the batch."""

    def units(self, units: Sequence[Unit]) -> TextUnits:
        """Return the rows and columns of the tokens of each unit."""

    def prediction(self, answer: Distribution) -> Prediction:
        """Return the prediction, given the answers to the text's rows."""


def main_layer(explainer: Explainer, attribution: Attribution) -> str | None:
    """Return the layer whose mask says which words are needed.

    Input masks of the last layer know most; state masks of the first layer erase what every later one reads.
    """
    return attribution.layers[0 if explainer.erases_states else -1] if attribution.layers else None


def verify_texts(
    texts: Sequence[VerifiableText],
    units: Sequence[tuple[Unit, ...]],
    kind: str,
    logits: Float[Tensor, "row *feature"],
    attribution: Attribution,
) -> list[Verification]:
    """Search the smallest sufficient set of units of each text, all texts together."""
    explainer = texts[0].explainer
    answer = texts[0].task.distribution(logits)
    positions = [text.units(text_units) for text, text_units in zip(texts, units, strict=True)]
    work = _TextVerification(explainer, texts[0].encoded.batch, answer, attribution, positions)
    named = [
        _NamedUnits(text, tuple(text.rows), text_units, kind) for text, text_units in zip(texts, units, strict=True)
    ]
    if explainer.erases_states and attribution.by_layer is not None:
        layers = work.states()
        sets = [named_units.layers(layers, index, explainer) for index, named_units in enumerate(named)]
        return [Verification(layer_sets[0], partial(tuple[VerifiedSet, ...], layer_sets)) for layer_sets in sets]
    masks = work.inputs()
    return [
        Verification(
            named_units.verified(masks, index, explainer), partial(_input_layers, work, masks, named_units, index)
        )
        for index, named_units in enumerate(named)
    ]


@dataclass(frozen=True)
class _TextVerification:
    """Rows of texts and their scores, to be verified."""

    explainer: Explainer
    batch: Batch
    answer: Distribution
    attribution: Attribution
    texts: Sequence[TextUnits]

    def inputs(self) -> VerifiedMasks:
        """Search for sets of inputs, in the order of the scores."""
        margin = self.explainer.margin_at(None)
        return verify(self._predict, self.batch, self.answer, self.attribution.scores, self.texts, margin)

    def states(self) -> VerifiedLayers:
        """Search for sets of states, layer by layer."""
        scores, layers = self._layered()
        predict = self.explainer.predict_kept
        return verify_states(predict, self.batch, self.answer, scores, layers, self.texts, self._margins())

    def input_layers(self, masks: VerifiedMasks) -> VerifiedLayers:
        """Verify the masks of inputs as seen from every layer, given the sets of the last layer."""
        scores, layers = self._layered()
        return verify_inputs(self._predict, self.batch, self.answer, scores, layers, self.texts, masks, self._margins())

    def one(self, index: int) -> "_TextVerification":
        """Return the verification of one text alone, with the rows of its own."""
        text = self.texts[index]
        rows = torch.tensor(text.rows)
        place = {row: number for number, row in enumerate(text.rows)}
        units = tuple(tuple((place[row], column) for row, column in unit) for unit in text.tokens)
        moved = TextUnits(tuple(range(len(rows))), units, text.avoided)
        answer = select_rows(self.answer, rows)
        return _TextVerification(self.explainer, self.batch[rows], answer, self.attribution[rows], [moved])

    def _predict(self, batch: Batch, kept: Bool[Tensor, "row token"]) -> Distribution:
        return self.explainer.predict_kept(batch, kept, None)

    def _layered(self) -> tuple[Float[Tensor, "row layer token"], tuple[str, ...]]:
        if self.attribution.by_layer is None:
            raise InputError("this method has no scores per layer; use a method that has, such as surrogate-mask")
        return self.attribution.by_layer, self.attribution.layers

    def _margins(self) -> list[float]:
        return [self.explainer.margin_at(layer) for layer in self.attribution.layers]


def _input_layers(
    work: _TextVerification, masks: VerifiedMasks, named: "_NamedUnits", index: int
) -> tuple[VerifiedSet, ...]:
    """Verify the masks of one text as seen from every layer."""
    layers = work.one(index).input_layers(masks.select(index, work.texts[index].rows))
    return replace(named, rows=tuple(range(len(named.rows)))).layers(layers, 0, work.explainer)


@dataclass(frozen=True)
class _NamedUnits:
    """The units of one text, to be written into verified sets."""

    text: VerifiableText
    rows: tuple[int, ...]
    """Rows of the verified batch."""
    units: tuple[Unit, ...]
    kind: str

    def verified(self, masks: VerifiedMasks, index: int, explainer: Explainer) -> VerifiedSet:
        """Return the set of inputs of the text with this index."""
        return VerifiedSet(
            words=tuple(self.units[unit].text for unit in masks.units[index]),
            kept=tuple(unit in masks.units[index] for unit in range(len(self.units))),
            kl=float(masks.divergence[index]),
            margin=explainer.margin_at(None),
            same_prediction=bool(masks.same_prediction[index]),
            minimal=bool(masks.minimal[index]),
            rows=int(masks.rows_used[index]),
            prediction=self.text.prediction(select_rows(masks.answer, torch.tensor(self.rows))),
            unit=self.kind,
        )

    def layers(self, layers: VerifiedLayers, index: int, explainer: Explainer) -> tuple[VerifiedSet, ...]:
        """Return the sets of all layers of the text with this index."""
        return tuple(self._layer(layers, index, place, explainer) for place in range(len(layers.layers)))

    def _layer(self, layers: VerifiedLayers, index: int, place: int, explainer: Explainer) -> VerifiedSet:
        chosen, name = sorted(layers.units[index][place]), layers.layers[place]
        erased = explainer.erases_states and name != explainer.task.sites[0]
        return VerifiedSet(
            words=tuple(self.units[unit].text for unit in chosen),
            kept=tuple(unit in chosen for unit in range(len(self.units))),
            kl=float(layers.divergence[index, place]),
            margin=explainer.margin_at(name),
            same_prediction=bool(layers.same_prediction[index, place]),
            minimal=bool(layers.minimal[index, place]),
            rows=int(layers.rows_used[index]),
            prediction=self.text.prediction(select_rows(layers.answers[place], torch.tensor(self.rows))),
            unit=self.kind,
            state_layer=name if erased else None,
        )
