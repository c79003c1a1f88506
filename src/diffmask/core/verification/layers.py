"""Verified sets for every layer, nested over layers: a unit that one layer drops stays dropped at all later ones."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.distributions import Distribution

from diffmask.core.batch import Batch
from diffmask.core.verification.masks import MaskedPredictor, MaskedTexts, TextUnits, VerifiedMasks, verify
from diffmask.core.verification.search import Kept, SearchConfig
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
    rows_used: Int[Tensor, " text"]
    """Masked rows of each text that went through the model."""


@torch.no_grad()
def verify_states(
    masked: LayerPredictor,
    batch: Batch,
    answer: Distribution,
    scores: Float[Tensor, "row layer token"],
    layers: Sequence[str],
    texts: Sequence[TextUnits],
    margin: float,
    config: SearchConfig | None = None,
) -> VerifiedLayers:
    """Find, for masks on each layer's states, small sets that hold the margin, from the last layer to the first.

    A layer keeps all units that the next layer keeps, and of the others as few as possible: dropping any one of those
    breaks the margin or the prediction.
    """
    _require_names(scores, layers)
    kept: list[Kept] = [frozenset()] * len(texts)
    found: list[VerifiedMasks] = []
    sets: list[list[Kept]] = []
    for place in reversed(range(len(layers))):
        free = [sorted(set(range(len(text.tokens))) - some) for text, some in zip(texts, kept, strict=True)]
        # Units that are required are left out of the search, and tokens of no unit are always kept.
        left = [
            TextUnits(text.rows, tuple(text.tokens[unit] for unit in some))
            for text, some in zip(texts, free, strict=True)
        ]
        masks = verify(_at(masked, layers[place]), batch, answer, scores[:, place], left, margin, config)
        kept = [
            some | {units[chosen] for chosen in picked}
            for some, units, picked in zip(kept, free, masks.units, strict=True)
        ]
        found.insert(0, masks)
        sets.insert(0, kept)
    return VerifiedLayers(
        layers=tuple(layers),
        units=tuple(zip(*sets, strict=True)),
        divergence=torch.stack([masks.divergence for masks in found], dim=1),
        same_prediction=torch.stack([masks.same_prediction for masks in found], dim=1),
        rows_used=torch.stack([masks.rows_used for masks in found]).sum(dim=0),
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
    margin: float,
) -> VerifiedLayers:
    """Verify the masks on the inputs as seen from each layer, given the verified set of the last layer.

    A layer keeps the verified set and the units with a keep probability over 1/2 at this or a later layer. Where this
    breaks the margin or the prediction, the layer keeps what the layer before it keeps.
    """
    _require_names(keep_probability, layers)
    copies = MaskedTexts(masked, batch, answer, texts)
    needed = (keep_probability > 0.5).flip(1).cummax(dim=1).values.flip(1)
    wanted = [
        [frozenset(final) | _units_over(needed[:, layer], text) for layer in range(len(layers) - 1)]
        for text, final in zip(texts, last.units, strict=True)
    ]
    items = list(dict.fromkeys((text, kept) for text, sets in enumerate(wanted) for kept in sets))
    measured = dict(zip(items, copies.measure(items), strict=True)) if items else {}
    chains = []
    for number, original in enumerate(copies.originals()):
        chain = [(frozenset(range(len(texts[number].tokens))), original)]
        for kept in wanted[number]:
            measurement = measured[number, kept]
            chain.append((kept, measurement) if measurement.holds(margin) else chain[-1])
        chains.append(chain[1:])
    divergence = torch.tensor([[one.divergence for _, one in chain] for chain in chains]).to(last.divergence)
    same = torch.tensor([[one.same_prediction for _, one in chain] for chain in chains]).to(last.same_prediction)
    return VerifiedLayers(
        layers=tuple(layers),
        units=tuple(
            (*(kept for kept, _ in chain), frozenset(final)) for chain, final in zip(chains, last.units, strict=True)
        ),
        divergence=torch.cat([divergence.reshape(len(texts), -1), last.divergence[:, None]], dim=1),
        same_prediction=torch.cat([same.reshape(len(texts), -1), last.same_prediction[:, None]], dim=1),
        rows_used=last.rows_used
        + torch.tensor([len(set(sets)) * len(text.rows) for sets, text in zip(wanted, texts, strict=True)]).to(
            last.rows_used
        ),
    )


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
