"""The two values that tasks, methods and metrics exchange: a `Batch` of rows and their `Attribution`.

Also here: iteration over rows in order of length, evenly spaced subsets, and the removal of tokens from a batch.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from diffmask.errors import InputError, NumericsError


@dataclass(frozen=True, kw_only=True, repr=False)
class Batch:
    """Rows of tokens. Each row is one decision to explain; a data set is a long batch."""

    tokens: Int[Tensor, "row token"]
    present: Bool[Tensor, "row token"]
    """True for real tokens, including special ones; False for padding."""
    maskable: Bool[Tensor, "row token"]
    """Whether a token may be scored and erased: never padding, never a special token."""
    target: Shaped[Tensor, "row *event"]
    """The outcome of each row that is explained, or trained on."""
    inputs: Mapping[str, Shaped[Tensor, "row ..."]] = field(default_factory=dict)
    """Other model inputs with one entry per row."""
    token_inputs: Mapping[str, Shaped[Tensor, "row token ..."]] = field(default_factory=dict)
    """Other model inputs with one entry per token, padded with zeros."""

    def __post_init__(self) -> None:
        """Refuse tensors that do not belong to the same rows."""
        for name in ("tokens", "present", "maskable", "target"):
            if not isinstance(getattr(self, name), Tensor):
                raise InputError(f"Batch: {name} must be a tensor; found {type(getattr(self, name)).__name__}")
        shape = self.tokens.shape
        if len(shape) != 2 or self.present.shape != shape or self.maskable.shape != shape:
            shapes = ", ".join(
                f"{name} {tuple(getattr(self, name).shape)}" for name in ("tokens", "present", "maskable")
            )
            raise InputError(f"Batch: tokens, present and maskable have one shape, row x token; found {shapes}")
        if not self.target.ndim or len(self.target) != shape[0]:
            raise InputError(
                f"Batch: {shape[0]} rows, but a target of shape {tuple(self.target.shape)}; give one per row"
            )
        if self.tokens.is_floating_point() or self.present.dtype != torch.bool or self.maskable.dtype != torch.bool:
            raise InputError("Batch: tokens are whole numbers, present and maskable are booleans; convert them")

    def __len__(self) -> int:
        return self.tokens.shape[0]

    def __repr__(self) -> str:
        return f"Batch({len(self)} rows of up to {self.tokens.shape[1]} tokens, {int(self.maskable.sum())} maskable)"

    def map(self, change: Callable[[Tensor], Tensor]) -> "Batch":
        """Apply `change` to every tensor of the batch; the row axis is always first."""
        return Batch(
            tokens=change(self.tokens),
            present=change(self.present),
            maskable=change(self.maskable),
            target=change(self.target),
            inputs={name: change(value) for name, value in self.inputs.items()},
            token_inputs={name: change(value) for name, value in self.token_inputs.items()},
        )

    def __getitem__(self, rows: slice | Tensor) -> "Batch":
        """Select rows by slice, index tensor or boolean tensor."""
        return self.map(lambda value: value[rows])

    def spread(self, count: int) -> "Batch":
        """Select at most `count` evenly spaced rows: a table may be sorted by its labels."""
        return self if count >= len(self) else self[torch.tensor(spread_indices(len(self), count), dtype=torch.long)]

    def repeat(self, copies: int) -> "Batch":
        """Repeat each row `copies` times; the copies of a row are adjacent."""
        return self.map(lambda value: value.repeat_interleave(copies, dim=0))

    def to(self, device: torch.device | str) -> "Batch":
        """Move the batch to another device."""
        return self.map(lambda value: value.to(device))

    def pad(self, width: int, token: int = 0) -> "Batch":
        """Pad the batch on the right to `width` tokens."""
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
        """Remove the columns in which every row is padding."""
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


def require_tokens(batch: Batch) -> None:
    """Raise an InputError for a batch without rows or with an empty row, on which a model could only crash."""
    if len(batch) == 0:
        raise InputError("the batch has no rows")
    if not batch.present.any(dim=1).all():
        row = int((~batch.present.any(dim=1)).nonzero()[0])
        raise InputError(f"row {row} has no tokens; drop empty texts or give them at least one token")


def spread_indices(length: int, count: int) -> list[int]:
    """Return `count` evenly spaced indices of a sequence, all of them if it is shorter.

    >>> spread_indices(10, 4)
    [0, 2, 5, 7]
    """
    return list(range(length)) if count >= length else [index * length // count for index in range(count)]


def order_by_length(batch: Batch) -> Int[Tensor, " row"]:
    """Return row indices from the shortest row to the longest; `order.argsort()` restores the original order."""
    return batch.present.sum(dim=1).argsort(stable=True)


def iter_by_length(batch: Batch, rows_at_once: int) -> Iterator[tuple[Int[Tensor, " row"], Batch]]:
    """Yield portions of rows in order of length, with little padding: the row indices and the trimmed rows."""
    for rows in order_by_length(batch).split(rows_at_once):
        yield rows, batch[rows].trim()


def map_by_length(
    function: Callable[[Batch], Shaped[Tensor, "row ..."]], batch: Batch, rows_at_once: int
) -> Shaped[Tensor, "row ..."]:
    """Apply `function` to portions of rows in order of length; results are returned in the order of the batch."""
    results = torch.cat([function(part) for _, part in iter_by_length(batch, rows_at_once)])
    return results[order_by_length(batch).argsort()]


def hide_tokens(batch: Batch, hidden: Bool[Tensor, "row token"]) -> Batch:
    """Exclude tokens from attention and keep the positions of all others."""
    return replace(batch, present=batch.present & ~hidden, maskable=batch.maskable & ~hidden)


def delete_tokens(batch: Batch, deleted: Bool[Tensor, "row token"]) -> Batch:
    """Remove tokens from their rows and close the gaps."""
    if not deleted.any():
        return batch
    order = deleted.int().argsort(dim=1, stable=True)
    hidden = hide_tokens(batch, deleted)

    def move(value: Shaped[Tensor, "row token *rest"]) -> Shaped[Tensor, "row token *rest"]:
        return value[torch.arange(len(order), device=order.device)[:, None], order]

    return replace(
        hidden,
        tokens=move(hidden.tokens),
        present=move(hidden.present),
        maskable=move(hidden.maskable),
        token_inputs={name: move(value) for name, value in hidden.token_inputs.items()},
    )


@dataclass(frozen=True)
class Attribution:
    """Scores of every token: how much it is needed for its row's outcome. Comparable within a row, larger is more."""

    scores: Float[Tensor, "row token"]
    by_layer: Float[Tensor, "row layer token"] | None = None
    """Scores per layer, for methods that have them."""
    layers: tuple[str, ...] = ()
    """Sites of the layer axis."""

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
        """Concatenate the rows of several attributions."""
        stacks = [part.by_layer for part in parts if part.by_layer is not None]
        by_layer = torch.cat(stacks) if stacks else None
        return Attribution(torch.cat([part.scores for part in parts]), by_layer, parts[0].layers)


def ranking(scores: Float[Tensor, "row token"], maskable: Bool[Tensor, "row token"]) -> Int[Tensor, "row token"]:
    """Return token positions from the highest score to the lowest; unmaskable ones last, ties by position.

    >>> ranking(torch.tensor([[0.1, 9.0, 0.7, 0.7]]), torch.tensor([[True, False, True, True]]))
    tensor([[2, 3, 0, 1]])
    """
    return scores.masked_fill(~maskable, -torch.inf).sort(dim=1, descending=True, stable=True).indices
