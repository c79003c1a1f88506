"""A task whose logit is looked up in a table of which tokens are there."""

from collections.abc import Mapping

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from support.linear import LinearTask


class Table(nn.Module):
    """logit = table[positions whose state is 1], and a default for sets that the table does not list."""

    def __init__(self, table: Mapping[frozenset[int], float], default: float) -> None:
        super().__init__()
        self.embedding = nn.Embedding.from_pretrained(torch.tensor([[0.0], [1.0]]))
        self.table, self.default = table, default

    def forward(self, tokens: Int[Tensor, "row token"], present: Bool[Tensor, "row token"]) -> Float[Tensor, " row"]:
        there = (self.embedding(tokens).squeeze(-1) == 1) & present
        sets = [frozenset(row.nonzero().flatten().tolist()) for row in there]
        return torch.tensor([self.table.get(kept, self.default) for kept in sets])


class LookupTask(LinearTask):
    """Rows of ones: a token that is erased has state 0."""

    mask_token = 0

    def __init__(self, tokens: int, table: Mapping[frozenset[int], float], default: float = -1.0) -> None:
        super().__init__([[1] * tokens], Table(table, default))


def either(tokens: int, *pairs: tuple[int, int]) -> dict[frozenset[int], float]:
    """The table that says yes (logit 1) to every set that holds one of the pairs."""
    sets = [frozenset(i for i in range(tokens) if code >> i & 1) for code in range(2**tokens)]
    return {kept: 1.0 for kept in sets if any(set(pair) <= kept for pair in pairs)}
