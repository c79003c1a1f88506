"""Verified sets for every layer, nested over layers: a unit that one layer drops stays dropped at all later ones."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.distributions import Distribution

from diffmask.core.batch import Batch
from diffmask.core.distributions import flat_logits, from_logits
from diffmask.core.verification.masks import (
    MaskedPredictor,
    MaskedTexts,
    TextUnits,
    VerifiedMasks,
    logits_of,
    verify,
)
from diffmask.core.verification.search import Kept, Measurement, SearchConfig
from diffmask.errors import InputError

LayerPredictor = Callable[[Batch, Bool[Tensor, "row token"], str], Distribution]
"""The model's answer under a mask of one layer, such as `Explainer.predict_kept`."""


@dataclass(frozen=True)
class VerifiedLayers:
    """One set per text and layer, each measured on the model; sets shrink from the first layer to the last."""

    layers: tuple[str, ...]
    units: tuple[tuple[Kept, ...], ...]
    """Numbers of the units that stay, for each text and layer."""
    divergence: Float[Tensor, "text layer"]
    """KL(original || masked) in nats, under the mask of each layer alone."""
    same_prediction: Bool[Tensor, "text layer"]
    minimal: Bool[Tensor, "text layer"]
    """Whether every single removal was measured to break the margin or the prediction."""
    rows_used: Int[Tensor, " text"]
    """Masked rows of each text that went through the model."""
    answers: tuple[Distribution, ...]
    """The model's answer to each row of the batch, under the mask of each layer alone."""


@torch.no_grad()
def verify_states(
    masked: LayerPredictor,
    batch: Batch,
    answer: Distribution,
    scores: Float[Tensor, "row layer token"],
    layers: Sequence[str],
    texts: Sequence[TextUnits],
    margins: Sequence[float],
    config: SearchConfig | None = None,
) -> VerifiedLayers:
    """Find, for masks on each layer's states, small sets that hold the margin, from the last layer to the first.

    A layer keeps all units that the next layer keeps, and of the others as few as possible: dropping any one of those
    breaks the margin or the prediction.
    """
    _require_names(scores, layers)
    kept: list[Kept] = [frozenset()] * len(texts)
    verified: list[VerifiedMasks] = []
    sets: list[list[Kept]] = []
    free_of_later: list[Tensor] = []
    for place in reversed(range(len(layers))):
        free_of_later.insert(0, torch.tensor([not some for some in kept], device=batch.tokens.device))
        free = [sorted(set(range(len(text.tokens))) - some) for text, some in zip(texts, kept, strict=True)]
        # Units that are required are left out of the search, and tokens of no unit are always kept.
        left = [_some_units(text, some) for text, some in zip(texts, free, strict=True)]
        masks = verify(_at(masked, layers[place]), batch, answer, scores[:, place], left, margins[place], config)
        kept = [
            some | {units[chosen] for chosen in picked}
            for some, units, picked in zip(kept, free, masks.units, strict=True)
        ]
        verified.insert(0, masks)
        sets.insert(0, kept)
    return VerifiedLayers(
        layers=tuple(layers),
        units=tuple(zip(*sets, strict=True)),
        divergence=torch.stack([masks.divergence for masks in verified], dim=1),
        same_prediction=torch.stack([masks.same_prediction for masks in verified], dim=1),
        # Units that a later layer requires were not removed on their own.
        minimal=torch.stack([masks.minimal for masks in verified], dim=1) & torch.stack(free_of_later, dim=1),
        rows_used=torch.stack([masks.rows_used for masks in verified]).sum(dim=0),
        answers=tuple(masks.answer for masks in verified),
    )


@torch.no_grad()
def verify_inputs(
    masked: MaskedPredictor,
    batch: Batch,
    answer: Distribution,
    keep_probability: Float[Tensor, "row layer token"],
    layers: Sequence[str],
    texts: Sequence[TextUnits],
    last: VerifiedMasks,
    margins: Sequence[float],
) -> VerifiedLayers:
    """Verify the masks on the inputs as seen from each layer, given the verified set of the last layer.

    A layer keeps the verified set and the units with a keep probability over 1/2 at this or a later layer. Where this
    breaks the margin or the prediction, the layer keeps the units that the layer before it keeps.
    """
    _require_names(keep_probability, layers)
    copies = MaskedTexts(masked, batch, answer, texts)
    needed = (keep_probability > 0.5).flip(1).cummax(dim=1).values.flip(1)
    wanted = [
        [frozenset(final) | _units_over(needed[:, layer], text) for layer in range(len(layers) - 1)]
        for text, final in zip(texts, last.units, strict=True)
    ]
    chains = _measured_chains(copies, wanted, margins)
    same = torch.tensor([[step.same_prediction for _, step in chain] for chain in chains]).to(last.same_prediction)
    kl = torch.tensor([[step.divergence for _, step in chain] for chain in chains]).to(last.divergence)
    rows = [len(set(sets)) * len(text.rows) for sets, text in zip(wanted, texts, strict=True)]
    final_units = torch.tensor([list(map(len, last.units))]).T.to(kl.device)
    sizes = torch.tensor([[len(kept) for kept, _ in chain] for chain in chains]).to(kl.device).reshape(len(texts), -1)
    return VerifiedLayers(
        layers=tuple(layers),
        units=tuple(
            (*(kept for kept, _ in chain), frozenset(final)) for chain, final in zip(chains, last.units, strict=True)
        ),
        divergence=torch.cat([kl.reshape(len(texts), -1), last.divergence[:, None]], dim=1),
        same_prediction=torch.cat([same.reshape(len(texts), -1), last.same_prediction[:, None]], dim=1),
        minimal=torch.cat([sizes == final_units, torch.ones_like(final_units, dtype=torch.bool)], dim=1)
        & last.minimal[:, None],
        rows_used=last.rows_used + torch.tensor(rows).to(last.rows_used),
        answers=(*_answers(copies, chains, len(layers) - 1), last.answer),
    )


Chain = list[tuple[Kept, Measurement]]
"""The sets of one text, layer by layer, with their measurements."""


def _measured_chains(copies: MaskedTexts, wanted: list[list[Kept]], margins: Sequence[float]) -> list[Chain]:
    """Measure the wanted sets of each layer; one that breaks is replaced by the set of the layer before."""
    items = list(dict.fromkeys((text, kept) for text, sets in enumerate(wanted) for kept in sets))
    measured = dict(zip(items, copies.measure(items), strict=True)) if items else {}
    chains = []
    for number, original in enumerate(copies.originals()):
        chain = [(frozenset(range(len(copies.texts[number].tokens))), original)]
        for kept, margin in zip(wanted[number], margins, strict=False):
            measurement = measured[number, kept]
            chain.append((kept, measurement) if measurement.holds(margin) else chain[-1])
        chains.append(chain[1:])
    return chains


def _answers(copies: MaskedTexts, chains: list[Chain], layers: int) -> list[Distribution]:
    """Return the answers to all rows of the batch under the sets of each layer but the last."""
    original, rows = flat_logits(copies.answer), [row for text in copies.texts for row in text.rows]
    answers = []
    for layer in range(layers):
        logits = original.clone()
        logits[rows] = torch.cat([logits_of(chain[layer][1]) for chain in chains])
        answers.append(from_logits(copies.answer, logits))
    return answers


def _some_units(text: TextUnits, units: Sequence[int]) -> TextUnits:
    """Return the text with only some of its units."""
    avoided = tuple(place for place, unit in enumerate(units) if unit in text.avoided)
    return TextUnits(text.rows, tuple(text.tokens[unit] for unit in units), avoided)


def _units_over(needed: Bool[Tensor, "row token"], text: TextUnits) -> Kept:
    """Return the units of which some token is needed."""
    return frozenset(
        unit for unit, tokens in enumerate(text.tokens) if any(bool(needed[row, column]) for row, column in tokens)
    )


def _at(masked: LayerPredictor, layer: str) -> MaskedPredictor:
    return lambda batch, kept: masked(batch, kept, layer)


def _require_names(scores: Float[Tensor, "row layer token"], layers: Sequence[str]) -> None:
    if scores.shape[1] != len(layers):
        raise InputError(f"scores of {scores.shape[1]} layers with names for {len(layers)}")
