"""On which side a model wants its padding, found by trying; batches themselves are always padded on the right."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from diffmask.errors import InputError
from diffmask.hooks import Edit

Logits = Callable[[Int[Tensor, "row token"], Bool[Tensor, "row token"]], Float[Tensor, "row output"]]


@dataclass(frozen=True)
class Padding:
    """Carries rows from a batch's own order of tokens to the model's, and states back."""

    left: bool = False

    def to_model(
        self, value: Shaped[Tensor, "row token *rest"], present: Bool[Tensor, "row token"]
    ) -> Shaped[Tensor, "row token *rest"]:
        """Rows as the model wants them."""
        return _take(value, self._places(present)) if self.left else value

    def from_model(
        self, weights: Float[Tensor, "row layer head query key"], present: Bool[Tensor, "row token"]
    ) -> Float[Tensor, "row layer head query key"]:
        """Attention between the model's places as attention between the batch's."""
        if not self.left:
            return weights
        back = self._places(present).argsort(dim=1)
        row = torch.arange(len(weights), device=weights.device)[:, None, None]
        return weights.permute(0, 3, 4, 1, 2)[row, back[:, :, None], back[:, None, :]].permute(0, 3, 4, 1, 2)

    def around(self, edit: Edit, present: Bool[Tensor, "row token"]) -> Edit:
        """The edit for states in the model's order; tokens that the model added at the end are left alone."""
        tokens = present.shape[1]

        def changed(state: Tensor) -> Tensor:
            if self.left:
                there = self._places(present)
                return _take(edit(_take(state, there.argsort(dim=1))), there)
            if state.shape[1] == tokens:
                return edit(state)
            return torch.cat([edit(state[:, :tokens]), state[:, tokens:]], dim=1)

        return changed

    def _places(self, present: Bool[Tensor, "row token"]) -> Int[Tensor, "row token"]:
        """For each of the model's places, the batch's: padding in front, then the row."""
        return present.int().sort(dim=1, stable=True).indices


def _take(value: Tensor, places: Int[Tensor, "row token"]) -> Tensor:
    index = places.view(*places.shape, *[1] * (value.ndim - 2)).expand(-1, -1, *value.shape[2:])
    return value.gather(1, index)


@torch.no_grad()
def find_padding(logits: Logits, pad: int, vocabulary: int, device: torch.device) -> Padding:
    """The side on which padding changes nothing: a short row beside a longer one answers as it does alone."""
    # With a padding token that the model does not know as such, some decoders answer for it.
    known = [token for token in range(vocabulary) if token != pad][-7:]
    long = torch.tensor([known, [*known[:4], pad, pad, pad]], device=device)
    present = torch.arange(7, device=device)[None] < torch.tensor([[7], [4]], device=device)
    alone = logits(long[1:, :4], present[1:, :4])
    for padding in (Padding(), Padding(left=True)):
        beside = logits(padding.to_model(long, present), padding.to_model(present, present))[1:]
        if torch.allclose(beside, alone, rtol=1e-2, atol=1e-3 + 1e-2 * float(alone.abs().max())):
            return padding
    raise InputError(
        f"padding changes the model's answer, on the right and on the left; is {pad} its padding token? "
        "model.config.pad_token_id and tokenizer.pad_token_id must be the same (a model that mixes tokens without an "
        "attention mask, such as FNet, cannot be explained in batches)"
    )
