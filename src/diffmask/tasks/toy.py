"""The counting task whose truth is known. De Cao et al. 2020, section 4.1."""

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.distributions import Bernoulli, Categorical
from torch.nn.functional import binary_cross_entropy_with_logits

from diffmask.core.batch import Batch
from diffmask.core.capabilities import Retrainable, RowText
from diffmask.core.hooks import Site
from diffmask.core.task import Task, TaskConfig
from diffmask.core.training import generator, minibatches, progress_bar, seeded, single_threaded
from diffmask.datasets import toy


class Counter(nn.Module):
    """logit = w' GRU(h_1 .. h_T), h_t = encoder([query; x_t]): the two-dimensional h_t knows whether x_t is counted."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.query = nn.Embedding(toy.VOCABULARY_SIZE, width)
        self.embedding = nn.Embedding(toy.VOCABULARY_SIZE, width)
        self.encoder = nn.Sequential(nn.Linear(3 * width, width), nn.Tanh(), nn.Linear(width, 2))
        self.memory = nn.GRU(2, width, batch_first=True)
        self.answer = nn.Linear(width, 1)

    def forward(
        self, digits: Int[Tensor, "row token"], query: Int[Tensor, "row 2"], present: Bool[Tensor, "row token"]
    ) -> Float[Tensor, " row"]:
        """Logit that the first query digit is counted more often than the second."""
        asked = self.query(query).flatten(start_dim=1)[:, None].expand(-1, digits.shape[1], -1)
        hidden = self.encoder(torch.cat([asked, self.embedding(digits)], dim=-1))
        states, _ = self.memory(hidden)
        # The GRU reads left to right, so its state at the last real token never saw the padding.
        last = present.sum(dim=1) - 1
        return self.answer(states[torch.arange(len(states)), last]).squeeze(-1)


class CountingTask(Task, RowText, Retrainable):
    """The trained counter, its two sites (`embedding`, `hidden`) and its rows."""

    def __init__(self, recipe: "ToyTaskConfig", model: Counter, data: Mapping[str, Batch]) -> None:
        super().__init__(model, {"embedding": Site("embedding"), "hidden": Site("encoder")}, data)
        self.recipe = recipe

    def forward(self, batch: Batch) -> Bernoulli:
        """One pass of the counter."""
        logit = self.model(batch.tokens, batch.inputs["query"], batch.present)
        return Bernoulli(logits=logit, validate_args=False)

    @torch.no_grad()
    def score(self, batch: Batch) -> float:
        """Accuracy."""
        return float(self.per_example_score(batch).mean())

    @torch.no_grad()
    def per_example_score(self, batch: Batch) -> Float[Tensor, " row"]:
        """Whether each answer is right."""
        return ((self.forward(batch).logits > 0) == (batch.target == 1)).float()

    def describe(self, batch: Batch) -> list[list[str]]:
        """Digits; those asked for are marked with `m` and `n`."""
        words = []
        for digits, (first, second) in zip(super().describe(batch), batch.inputs["query"].tolist(), strict=True):
            marks = {str(first): "=m", str(second): "=n"}
            words.append([digit + marks.get(digit, "") for digit in digits])
        return words

    def example(self, batch: Batch) -> int:
        """The published figure's kind of row: six digits, both query digits among them, the first more often."""
        both = (batch.tokens[:, :, None] == batch.inputs["query"][:, None]).any(dim=1).all(dim=1)
        wanted = both & (batch.target == 1) & (batch.present.sum(dim=1) == 6)
        return int(wanted.float().argmax())

    @torch.no_grad()
    def title(self, batch: Batch) -> str:
        """The question and the answer's probability."""
        first, second = batch.inputs["query"][0].tolist()
        yes = float(self.forward(batch).probs[0])
        return f"Is {first} (m) more frequent than {second} (n)? The model says yes with {yes:.3f}."

    def ground_truth(self, batch: Batch) -> Float[Tensor, "row token"]:
        """The digits that are counted."""
        return toy.query_digits(batch)

    def smallest_evidence(self, batch: Batch) -> Float[Tensor, "row token"]:
        """The first of the digits that win."""
        return toy.first_winning_digit(batch)

    def retrain(self, data: Mapping[str, Batch], seed: int) -> "CountingTask":
        """A fresh counter trained on other rows."""
        task = CountingTask(self.recipe, self.recipe.model(seed), data)
        self.recipe.train(task, seed)
        return task


@dataclass(frozen=True, kw_only=True)
class ToyTaskConfig(TaskConfig):
    """Does the first query digit occur more often than the second?"""

    name: ClassVar[str] = "toy"

    rows: int = 10_000
    """Rows to learn from, a tenth of which choose the best epoch; as many again as that tenth are the test."""
    length: int = 10
    """Longest row, in digits."""
    width: int = 64
    """Width of the embeddings and of the GRU."""
    epochs: int = 50
    batch_size: int = 128
    learning_rate: float = 1e-3
    entropy: float = 0.35
    """Weight of the entropy over the batch's logits, which keeps logits moderate."""

    def build(self, seed: int) -> CountingTask:
        """Rows and an untrained counter."""
        held_out = self.rows // 10
        drawn = toy.sample_digits(self.rows + held_out, self.length, seed)
        data = {
            "train": drawn[: self.rows - held_out],
            "valid": drawn[self.rows - held_out : self.rows],
            "test": drawn[self.rows :],
        }
        return CountingTask(self, self.model(seed), data)

    def model(self, seed: int) -> Counter:
        """A counter as it comes from its initialisation."""
        with seeded(seed, "toy model"):
            return Counter(self.width)

    @single_threaded()
    def train(self, task: Task, seed: int) -> None:
        """Adam on cross-entropy less the batch's entropy; the epoch best on the validation rows is kept."""
        model = task.model.requires_grad_(True).train()
        optimizer = torch.optim.Adam(model.parameters(), lr=self.learning_rate)
        source = generator(seed, "toy training")
        best, kept = -1.0, deepcopy(model.state_dict())
        for _ in progress_bar(range(self.epochs), "train the counter"):
            for batch in minibatches(task.data["train"], self.batch_size, source):
                logit = model(batch.tokens, batch.inputs["query"], batch.present)
                # As published, a categorical over the rows of the batch, not over the answers.
                spread = Categorical(logits=logit, validate_args=False).entropy()
                loss = binary_cross_entropy_with_logits(logit, batch.target) - self.entropy * spread
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            accuracy = task.score(task.data["valid"])
            if accuracy >= best:
                best, kept = accuracy, deepcopy(model.state_dict())
        model.load_state_dict(kept)
        model.eval().requires_grad_(False)
