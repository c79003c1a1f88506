"""A task whose answer is one of several candidates in a row of tokens: the one that follows the cue."""

from typing import ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.distributions import Categorical

from diffmask.core.answers import SpanAnswer
from diffmask.core.batch import Batch
from diffmask.core.distributions import logits
from diffmask.core.hooks import Site
from diffmask.core.task import Task
from diffmask.core.training import generator

CANDIDATE, CUE, MASK = 6, 7, 8
LENGTH = 24


class CueModel(nn.Module):
    """logit_t = 4 [x_t is a candidate] + 6 [x_t is a candidate, x_t-1 is the cue]."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding.from_pretrained(torch.eye(MASK + 1))
        self.cued = nn.Identity()

    def forward(self, tokens: Int[Tensor, "row token"]) -> Float[Tensor, "row token"]:
        state = self.embedding(tokens)
        before = torch.cat([torch.zeros_like(state[:, :1]), state[:, :-1]], dim=1)[..., CUE]
        both = self.cued(torch.stack([state[..., CANDIDATE], state[..., CANDIDATE] * before], dim=-1))
        return 4 * both[..., 0] + 6 * both[..., 1]


class PlantedSpans(Task):
    """Rows of 24 tokens: fillers 1 to 5, three candidates apart from each other, and the cue before one of them."""

    mask_token = MASK
    answer_tokens_given: ClassVar[bool] = False

    def __init__(self, rows: int = 600) -> None:
        source = generator(0, "spans")
        tokens = torch.randint(1, 6, (rows, LENGTH), generator=source)
        # One candidate in each third of the row, never in its first column.
        places = torch.randint(1, LENGTH // 3, (rows, 3), generator=source) + torch.arange(3) * (LENGTH // 3)
        chosen = places.gather(1, torch.randint(3, (rows, 1), generator=source))
        tokens = tokens.scatter(1, places, CANDIDATE).scatter(1, chosen - 1, CUE)
        target = chosen.repeat(1, 2)
        parts = {
            "train": slice(0, rows // 2),
            "valid": slice(rows // 2, 3 * rows // 4),
            "test": slice(3 * rows // 4, None),
        }
        data = {name: _batch(tokens[part], target[part]) for name, part in parts.items()}
        super().__init__(CueModel(), {"embedding": Site("embedding"), "cued": Site("cued")}, data)

    def forward(self, batch: Batch) -> SpanAnswer:
        values = self.model(batch.tokens).masked_fill(~batch.present, -50.0)
        return SpanAnswer(Categorical(logits=torch.stack([values, values], dim=1), validate_args=False), 1)

    def score(self, batch: Batch) -> float:
        return 1.0

    def answer_tokens(self, batch: Batch, answer: SpanAnswer) -> Float[Tensor, "row token"]:
        return logits(answer).exp().mean(dim=1)


def _batch(tokens: Int[Tensor, "row token"], target: Int[Tensor, "row 2"]) -> Batch:
    present: Bool[Tensor, "row token"] = torch.ones_like(tokens, dtype=torch.bool)
    return Batch(tokens=tokens, present=present, maskable=present, target=target)
