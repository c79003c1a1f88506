"""A task whose log-odds are a sum over tokens: logit = sum_t w . e(x_t)."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.distributions import Bernoulli

from diffmask.core.batch import Batch
from diffmask.core.hooks import Site
from diffmask.core.task import Task

VECTORS = [[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [2.0, -1.0], [0.5, 0.5]]
WEIGHTS = [1.0, -2.0]
VALUES = [0.0, 1.0, -2.0, 4.0, -0.5]
"""What each token adds to the logit: w . e(x)."""


class Sum(nn.Module):
    """logit = sum over real tokens of w . e(x_t)."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding.from_pretrained(torch.tensor(VECTORS))
        self.weights = nn.Parameter(torch.tensor(WEIGHTS))

    def forward(self, tokens: Int[Tensor, "row token"], present: Bool[Tensor, "row token"]) -> Float[Tensor, " row"]:
        return ((self.embedding(tokens) @ self.weights) * present).sum(dim=1)


class LinearTask(Task):
    """Rows of tokens 1 to 4, padded with 0."""

    mask_token = 4
    attention_masked = True

    def __init__(self, rows: list[list[int]], model: nn.Module | None = None) -> None:
        batch = batch_of(rows)
        super().__init__(model or Sum(), {"embedding": Site("embedding")}, {"train": batch, "test": batch})

    def forward(self, batch: Batch) -> Bernoulli:
        return Bernoulli(logits=self.model(batch.tokens, batch.present), validate_args=False)

    def score(self, batch: Batch) -> float:
        return 1.0


def batch_of(rows: list[list[int]], target: list[float] | None = None) -> Batch:
    """Rows of any length; every real token may be masked."""
    width = max(map(len, rows))
    tokens = torch.tensor([row + [0] * (width - len(row)) for row in rows])
    present = torch.tensor([[True] * len(row) + [False] * (width - len(row)) for row in rows])
    labels = torch.ones(len(rows)) if target is None else torch.tensor(target)
    return Batch(tokens=tokens, present=present, maskable=present, target=labels)
