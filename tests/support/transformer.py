"""A small transformer classifier with special tokens, padding and attention that can be read; weights are random."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.distributions import Categorical

from diffmask.core.batch import Batch
from diffmask.core.hooks import Site
from diffmask.core.task import Task
from diffmask.core.training import generator, seeded

PAD, CLS, SEP, MASK, FIRST_WORD = 0, 1, 2, 3, 4


class Block(nn.Module):
    """Self-attention and a feed-forward layer, each after a norm and beside a residual."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.first_norm, self.second_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mix, self.join = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.widen, self.bend, self.narrow = nn.Linear(width, 2 * width), nn.Tanh(), nn.Linear(2 * width, width)
        self.weights = nn.Identity()

    def forward(
        self, state: Float[Tensor, "row token width"], present: Bool[Tensor, "row token"]
    ) -> Float[Tensor, "row token width"]:
        query, key, value = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in self.mix(self.first_norm(state)).chunk(3, -1)
        )
        match = query @ key.transpose(-1, -2) / query.shape[-1] ** 0.5
        weights = self.weights(match.masked_fill(~present[:, None, None], -torch.inf).softmax(dim=-1))
        state = state + self.join((weights @ value).transpose(1, 2).flatten(2))
        return state + self.narrow(self.bend(self.widen(self.second_norm(state))))


class Encoder(nn.Module):
    """The answer's logits, read from the first position."""

    def __init__(self, words: int = 24, width: int = 16, heads: int = 2, blocks: int = 2, classes: int = 3) -> None:
        super().__init__()
        self.embedding, self.position = nn.Embedding(words, width), nn.Embedding(32, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(blocks))
        self.answer = nn.Linear(width, classes)

    def forward(
        self, tokens: Int[Tensor, "row token"], present: Bool[Tensor, "row token"]
    ) -> Float[Tensor, "row answer"]:
        state = self.embedding(tokens) + 0.3 * self.position(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            state = block(state, present)
        return self.answer(state[:, 0])


class TransformerTask(Task):
    """Texts of 1 to 7 words between [CLS] and [SEP]; the label is the model's own answer, one time in ten another."""

    mask_token = MASK
    pad_token = PAD
    attention_masked = True

    def __init__(self, seed: int = 0) -> None:
        with seeded(seed, "tiny transformer"):
            model = Encoder().double()
        with torch.no_grad():
            for weight in (*model.blocks.parameters(), model.answer.weight):
                weight *= 1.5
            # No class is favoured: decisions then depend on the words.
            model.answer.bias.data -= model(texts(100, seed).tokens, texts(100, seed).present).mean(dim=0)
        places = {
            "embedding": Site("embedding"),
            "block 0": Site("blocks.0", "input"),
            "block 1": Site("blocks.1", "input"),
            "output": Site("blocks.1"),
        }
        super().__init__(model, places, {})
        self.data = {name: self._label(texts(rows, seed + rows), seed) for name, rows in (("train", 120), ("test", 48))}

    def forward(self, batch: Batch) -> Categorical:
        return Categorical(logits=self.model(batch.tokens, batch.present), validate_args=False)

    def attentions(self, batch: Batch) -> Float[Tensor, "row layer head query key"]:
        seen: list[Tensor] = []
        hooks = [
            block.get_submodule("weights").register_forward_hook(lambda _module, _given, weights: seen.append(weights))
            for block in self.model.get_submodule("blocks").children()
        ]
        try:
            self.forward(batch)
        finally:
            for hook in hooks:
                hook.remove()
        return torch.stack(seen, dim=1)

    def score(self, batch: Batch) -> float:
        return float((self.forward(batch).probs.argmax(-1) == batch.target).double().mean())

    def _label(self, batch: Batch, seed: int) -> Batch:
        source = generator(seed, "labels")
        other = torch.randint(3, (len(batch),), generator=source)
        changed = torch.rand(len(batch), generator=source) < 0.1
        own = self.forward(batch).probs.argmax(-1)
        return Batch(**{**vars(batch), "target": torch.where(changed, other, own)})


def with_spare_words(task: TransformerTask) -> TransformerTask:
    """The task, its rows without the last four words of the vocabulary: something can be planted."""
    for name, batch in task.data.items():
        task.data[name] = Batch(**{**vars(batch), "tokens": batch.tokens.masked_fill(batch.tokens > 19, FIRST_WORD)})
    return task


def texts(rows: int, seed: int, longest: int = 7) -> Batch:
    """Random words, framed and padded."""
    source = generator(seed, "texts")
    lengths = torch.randint(1, longest + 1, (rows, 1), generator=source)
    words = torch.randint(FIRST_WORD, 24, (rows, longest + 2), generator=source)
    place = torch.arange(longest + 2)
    tokens = words.where(place <= lengths, PAD).where(place != lengths + 1, SEP).where(place > 0, CLS)
    return Batch(
        tokens=tokens,
        present=place <= lengths + 1,
        maskable=(place > 0) & (place <= lengths),
        target=torch.zeros(rows, dtype=torch.long),
    )
