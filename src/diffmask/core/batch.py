"""The two values that pass between tasks, methods and metrics: a `Batch` of decisions, their `Attribution`."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from diffmask.errors import InputError, NumericsError

Rows = TypeVar("Rows", bound=Tensor)


@dataclass(frozen=True, kw_only=True, repr=False)
class Batch:
    """Rows of tokens, each one decision to explain; a data set is a long batch."""

    tokens: Int[Tensor, "row token"]
    present: Bool[Tensor, "row token"]
    """True for every real token, special ones included; False for padding."""
    maskable: Bool[Tensor, "row token"]
    """May be scored and erased: never padding, never a special token."""
    target: Shaped[Tensor, "row *event"]
    """The outcome each row explains, or trains on."""
    inputs: Mapping[str, Shaped[Tensor, "row ..."]] = field(default_factory=dict)
    """Whatever else the model takes, one entry a row."""
    token_inputs: Mapping[str, Shaped[Tensor, "row token ..."]] = field(default_factory=dict)
    """Whatever else the model takes, one entry a token; padded with zeros."""

    def __len__(self) -> int:
        return self.tokens.shape[0]

    def __repr__(self) -> str:
        return f"Batch({len(self)} rows of up to {self.tokens.shape[1]} tokens, {int(self.maskable.sum())} maskable)"

    def map(self, change: Callable[[Tensor], Tensor]) -> "Batch":
        """The batch with `change` applied to each tensor; the row axis is always first."""
        return Batch(
            tokens=change(self.tokens),
            present=change(self.present),
            maskable=change(self.maskable),
            target=change(self.target),
            inputs={name: change(value) for name, value in self.inputs.items()},
            token_inputs={name: change(value) for name, value in self.token_inputs.items()},
        )

    def __getitem__(self, rows: slice | Tensor) -> "Batch":
        """Some of the rows, by slice, index or boolean tensor."""
        return self.map(lambda value: value[rows])

    def spread(self, count: int) -> "Batch":
        """At most so many rows, evenly from first to last: a table may be sorted by its labels."""
        return self if count >= len(self) else self[torch.arange(count) * len(self) // count]

    def repeat(self, copies: int) -> "Batch":
        """Each row `copies` times, copies of a row side by side."""
        return self.map(lambda value: value.repeat_interleave(copies, dim=0))

    def to(self, device: torch.device | str) -> "Batch":
        """The batch on another device."""
        return self.map(lambda value: value.to(device))

    def pad(self, width: int, token: int = 0) -> "Batch":
        """The batch padded on the right to `width` tokens."""
        missing = width - self.tokens.shape[1]
        if missing < 0:
            raise InputError(f"cannot pad {self.tokens.shape[1]} tokens down to {width}; use trim()")
        return replace(
            self,
            tokens=_extend(self.tokens, missing, token),
            present=_extend(self.present, missing, False),
            maskable=_extend(self.maskable, missing, False),
            token_inputs={name: _extend(value, missing, 0) for name, value in self.token_inputs.items()},
        )

    def trim(self) -> "Batch":
        """The batch without the columns in which every row is padding."""
        used = self.present.any(dim=0).nonzero()
        width = int(used.max()) + 1 if len(used) else 1
        return replace(
            self,
            tokens=self.tokens[:, :width],
            present=self.present[:, :width],
            maskable=self.maskable[:, :width],
            token_inputs={name: value[:, :width] for name, value in self.token_inputs.items()},
        )


def _extend(value: Tensor, missing: int, filler: int) -> Tensor:
    columns = value.new_full((value.shape[0], missing, *value.shape[2:]), filler)
    return torch.cat([value, columns], dim=1)


@dataclass(frozen=True)
class Attribution:
    """How much each token is needed for its row's answer; larger is more, comparable within a row."""

    scores: Float[Tensor, "row token"]
    by_layer: Float[Tensor, "row layer token"] | None = None
    """The same, as seen from each layer."""
    layers: tuple[str, ...] = ()
    """The sites that the layer axis runs over."""

    def __post_init__(self) -> None:
        if not torch.isfinite(self.scores).all():
            rows = (~torch.isfinite(self.scores)).any(dim=1).nonzero().flatten().tolist()
            raise NumericsError(f"scores of rows {rows[:5]} are not finite: the method or the model diverged there")
        if self.by_layer is not None and self.by_layer.shape[1] != len(self.layers):
            raise InputError(f"{self.by_layer.shape[1]} layers of scores with names for {len(self.layers)}")

    def __len__(self) -> int:
        return self.scores.shape[0]

    def __getitem__(self, rows: slice | Tensor) -> "Attribution":
        by_layer = None if self.by_layer is None else self.by_layer[rows]
        return Attribution(self.scores[rows], by_layer, self.layers)

    @staticmethod
    def join(parts: Sequence["Attribution"]) -> "Attribution":
        """The rows of several attributions, one below the other."""
        stacks = [part.by_layer for part in parts if part.by_layer is not None]
        by_layer = torch.cat(stacks) if stacks else None
        return Attribution(torch.cat([part.scores for part in parts]), by_layer, parts[0].layers)


def ranking(scores: Float[Tensor, "row token"], maskable: Bool[Tensor, "row token"]) -> Int[Tensor, "row token"]:
    """Token positions from most to least needed; unmaskable ones last, ties by position.

    >>> ranking(torch.tensor([[0.1, 9.0, 0.7, 0.7]]), torch.tensor([[True, False, True, True]]))
    tensor([[2, 3, 0, 1]])
    """
    return scores.masked_fill(~maskable, -torch.inf).sort(dim=1, descending=True, stable=True).indices
