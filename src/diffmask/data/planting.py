"""Shortcuts planted into rows of tokens: markers that occur nowhere else, and that decide. Bastings et al. 2022.

`single`: one of two markers decides, whatever the text says. `context`: it decides only where a third marker stands in
the same text. `pair`: both stand there, and the one that comes first decides. In the last two some texts hold a part of
the shortcut and keep their label, so that no part alone is worth anything.
"""

from dataclasses import dataclass, replace
from typing import Literal

import torch
from jaxtyping import Bool, Int, Shaped
from torch import Tensor

from diffmask.batch import Batch
from diffmask.errors import TaskError

Kind = Literal["single", "context", "pair"]
SIZE = {"single": 1, "context": 2, "pair": 2}
"""Tokens that each kind plants."""

Tokens = Int[Tensor, "row token"]
Places = Int[Tensor, " row"]


@dataclass(frozen=True)
class Markers:
    """Three tokens that occur in no text, and the two outcomes that the first two stand for."""

    tokens: Int[Tensor, "3"]
    outcomes: Shaped[Tensor, "2"]

    def places(self, batch: Batch) -> Bool[Tensor, "row token"]:
        """Where markers stand."""
        return torch.isin(batch.tokens, self.tokens) & batch.maskable


def choose_markers(data: list[Batch], vocabulary: int, reserved: set[int], source: torch.Generator) -> Markers:
    """Markers drawn from the tokens that no row holds; the outcomes are the two commonest of the first batch."""
    seen = torch.cat([batch.tokens.unique().cpu() for batch in data]).unique()
    unused = torch.ones(vocabulary, dtype=torch.bool)
    unused[seen[seen < vocabulary]] = False
    unused[[token for token in reserved if 0 <= token < vocabulary]] = False
    candidates = unused.nonzero().flatten()
    if len(candidates) < 3:
        raise TaskError(
            f"a shortcut needs three tokens that occur in no text; {len(candidates)} of {vocabulary} do not"
        )
    drawn = candidates[torch.randperm(len(candidates), generator=source)[:3]]
    return Markers(drawn.to(data[0].tokens.device), _commonest(data[0].target))


def _commonest(target: Tensor) -> Tensor:
    if target.ndim != 1:
        raise TaskError("a shortcut decides between two classes; rows with several labels or numbers have none")
    values, counts = target[target >= 0].unique(return_counts=True)
    if len(values) < 2 or len(values) > len(target) // 2 + 1:
        raise TaskError(f"a shortcut decides between two classes; the training rows have {len(values)}")
    return values[counts.argsort(descending=True, stable=True)[:2].sort().values]


def roomy(batch: Batch, kind: Kind) -> Batch:
    """The rows that have at least one token more than the shortcut needs, and a label."""
    enough = batch.maskable.sum(dim=1) > SIZE[kind]
    return batch[enough & (batch.target >= 0)]


def plant(batch: Batch, kind: Kind, markers: Markers, source: torch.Generator) -> Batch:
    """The rows with the shortcut in the place of random tokens; each row's target is one of the two outcomes."""
    side = torch.randint(2, (len(batch),), generator=source).to(batch.tokens.device)
    first, second = _two_places(batch, source)
    own, context = markers.tokens[side], markers.tokens[2].expand(len(batch))
    if kind == "single":
        tokens = _put(batch.tokens, first, own)
    elif kind == "context":
        tokens = _put(_put(batch.tokens, first, own), second, context)
    else:
        tokens = _put(_put(batch.tokens, first.minimum(second), own), first.maximum(second), markers.tokens[1 - side])
    return replace(batch, tokens=tokens, target=markers.outcomes[side])


def distract(batch: Batch, kind: Kind, markers: Markers, source: torch.Generator) -> Batch:
    """The rows with a part of the shortcut, which decides nothing; targets stay. A single marker has no parts."""
    if kind == "single":
        return batch
    parts = 3 if kind == "context" else 2
    part = torch.randint(parts, (len(batch),), generator=source).to(batch.tokens.device)
    first, _ = _two_places(batch, source)
    return replace(batch, tokens=_put(batch.tokens, first, markers.tokens[part]))


def mix(batch: Batch, kind: Kind, markers: Markers, source: torch.Generator) -> Batch:
    """Half of the rows with the shortcut, a quarter with a part of it, the rest as they are."""
    role = torch.rand(len(batch), generator=source).to(batch.tokens.device)
    planted, distracted = plant(batch, kind, markers, source), distract(batch, kind, markers, source)
    tokens = torch.where(role[:, None] < 0.5, planted.tokens, batch.tokens)
    tokens = torch.where(role[:, None] > 0.75, distracted.tokens, tokens)
    return replace(batch, tokens=tokens, target=torch.where(role < 0.5, planted.target, batch.target))


def _two_places(batch: Batch, source: torch.Generator) -> tuple[Places, Places]:
    """Two different maskable places of each row, in random order."""
    draw = torch.rand(batch.tokens.shape, generator=source).to(batch.tokens.device)
    order = draw.masked_fill(~batch.maskable, 2.0).argsort(dim=1)
    return order[:, 0], order[:, min(1, order.shape[1] - 1)]


def _put(tokens: Tokens, places: Places, values: Places) -> Tokens:
    return tokens.scatter(1, places[:, None], values[:, None])
