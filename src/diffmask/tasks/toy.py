"""Toy task with a known ground truth: does one digit occur more often than another? De Cao et al. 2020, section 4.1.

A row is digits with a query (m, n); it asks whether m occurs more often than n.
"""

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.distributions import Bernoulli, Categorical
from torch.nn.functional import binary_cross_entropy_with_logits

from diffmask.core.batch import Batch
from diffmask.core.capabilities import Retrainable, RowText
from diffmask.core.hooks import Site
from diffmask.core.progress import progress_bar
from diffmask.core.task import Task, TaskConfig
from diffmask.core.training import generator, minibatches, seeded, torch_threads

VOCABULARY_SIZE = 10
QUERY_RATE = 0.25
"""Probability of each of the two query digits; the other eight share the rest."""


def sample_digits(rows: int, length: int, seed: int) -> Batch:
    """Sample rows of 1 to `length` digits with a query (m, n) each; the target is 1 if m occurs more often than n."""
    rng = np.random.default_rng(seed)
    query = rng.permuted(np.tile(np.arange(VOCABULARY_SIZE), (rows, 1)), axis=1)[:, :2]
    rate = np.full((rows, VOCABULARY_SIZE), (1 - 2 * QUERY_RATE) / (VOCABULARY_SIZE - 2))
    np.put_along_axis(rate, query, QUERY_RATE, axis=1)
    # Inverse transform sampling: the digit is the number of cumulative rates below a uniform draw.
    uniform = rng.random((rows, length, 1))
    digits = (uniform > rate.cumsum(axis=1)[:, None, :-1]).sum(axis=-1)
    lengths = rng.integers(1, length + 1, size=(rows, 1))
    present = torch.from_numpy(np.arange(length) < lengths)
    return digits_batch(torch.from_numpy(digits), torch.from_numpy(query), present)


def digits_batch(
    digits: Int[Tensor, "row token"], query: Int[Tensor, "row 2"], present: Bool[Tensor, "row token"]
) -> Batch:
    """Return a batch of digits and queries with its targets; padding is the digit 0."""
    digits = digits * present
    first, second = (_count(digits, query[:, k], present) for k in (0, 1))
    target = (first > second).float()
    return Batch(tokens=digits, present=present, maskable=present, target=target, inputs={"query": query})


def query_digits(batch: Batch) -> Float[Tensor, "row token"]:
    """Return the ground truth: 1 for every occurrence of a query digit, 0 for the other digits."""
    query = batch.inputs["query"]
    return ((batch.tokens[:, :, None] == query[:, None, :]).any(dim=2) & batch.present).float()


def first_winning_digit(batch: Batch) -> Float[Tensor, "row token"]:
    """Return the smallest evidence: 1 for the first occurrence of the winning digit, which alone decides the row."""
    query = batch.inputs["query"]
    winner = torch.where(batch.target == 1, query[:, 0], query[:, 1])
    wins = (batch.tokens == winner[:, None]) & batch.present
    return (wins & (wins.cumsum(dim=1) == 1)).float()


def _count(
    digits: Int[Tensor, "row token"], digit: Int[Tensor, " row"], present: Bool[Tensor, "row token"]
) -> Int[Tensor, " row"]:
    return ((digits == digit[:, None]) & present).sum(dim=1)


class CountingGRU(nn.Module):
    """logit = w' GRU(h_1 .. h_T), h_t = encoder([query; x_t]) in two dimensions: is x_t counted?"""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.query = nn.Embedding(VOCABULARY_SIZE, width)
        self.embedding = nn.Embedding(VOCABULARY_SIZE, width)
        self.encoder = nn.Sequential(nn.Linear(3 * width, width), nn.Tanh(), nn.Linear(width, 2))
        self.memory = nn.GRU(2, width, batch_first=True)
        self.answer = nn.Linear(width, 1)

    def forward(
        self, digits: Int[Tensor, "row token"], query: Int[Tensor, "row 2"], present: Bool[Tensor, "row token"]
    ) -> Float[Tensor, " row"]:
        """Return the logit that the first query digit is counted more often than the second."""
        question = self.query(query).flatten(start_dim=1)[:, None].expand(-1, digits.shape[1], -1)
        hidden = self.encoder(torch.cat([question, self.embedding(digits)], dim=-1))
        states, _ = self.memory(hidden)
        # The GRU reads left to right, so its state at the last real token never saw the padding.
        last = present.sum(dim=1) - 1
        return self.answer(states[torch.arange(len(states)), last]).squeeze(-1)


class CountingTask(Task, RowText, Retrainable):
    """Trained model with its rows and the sites `embedding` and `hidden`."""

    def __init__(self, config: "ToyTaskConfig", model: CountingGRU, data: Mapping[str, Batch]) -> None:
        super().__init__(model, {"embedding": Site("embedding"), "hidden": Site("encoder")}, data)
        self.config = config

    def forward(self, batch: Batch) -> Bernoulli:
        """Run the model."""
        logit = self.model(batch.tokens, batch.inputs["query"], batch.present)
        return Bernoulli(logits=logit, validate_args=False)

    @torch.no_grad()
    def score(self, batch: Batch) -> float:
        """Return the accuracy."""
        return float(self.per_example_score(batch).mean())

    @torch.no_grad()
    def per_example_score(self, batch: Batch) -> Float[Tensor, " row"]:
        """Return 1 for each correct row."""
        return ((self.forward(batch).logits > 0) == (batch.target == 1)).float()

    def describe(self, batch: Batch) -> list[list[str]]:
        """Return the digits of each row, with `=m` and `=n` at the query digits."""
        words = []
        for digits, (first, second) in zip(super().describe(batch), batch.inputs["query"].tolist(), strict=True):
            marks = {str(first): "=m", str(second): "=n"}
            words.append([digit + marks.get(digit, "") for digit in digits])
        return words

    def example(self, batch: Batch) -> int:
        """Return a row like the published figure: six digits, both query digits among them, the first more often."""
        both = (batch.tokens[:, :, None] == batch.inputs["query"][:, None]).any(dim=1).all(dim=1)
        suitable = both & (batch.target == 1) & (batch.present.sum(dim=1) == 6)
        return int(suitable.float().argmax())

    @torch.no_grad()
    def title(self, batch: Batch) -> str:
        """Return the question and the probability of yes."""
        first, second = batch.inputs["query"][0].tolist()
        yes = float(self.forward(batch).probs[0])
        return f"Is {first} (m) more frequent than {second} (n)? The model says yes with {yes:.3f}."

    def ground_truth(self, batch: Batch) -> Float[Tensor, "row token"]:
        """Return 1 for the query digits."""
        return query_digits(batch)

    def smallest_evidence(self, batch: Batch) -> Float[Tensor, "row token"]:
        """Return 1 for the first occurrence of the more frequent digit."""
        return first_winning_digit(batch)

    def retrain(self, data: Mapping[str, Batch], seed: int) -> "CountingTask":
        """Train a fresh model on other rows."""
        task = CountingTask(self.config, self.config.init_model(seed), data)
        self.config.train(task, seed)
        return task


@dataclass(frozen=True, kw_only=True)
class ToyTaskConfig(TaskConfig):
    """Counting of digits: does the first query digit occur more often than the second?"""

    name: ClassVar[str] = "toy"

    rows: int = 10_000
    """Number of training rows; a tenth of them is the validation split, and as many further rows are the test split."""
    length: int = 10
    """Largest number of digits per row."""
    width: int = 64
    """Width of the embeddings and of the GRU."""
    epochs: int = 50
    batch_size: int = 128
    learning_rate: float = 1e-3
    entropy: float = 0.35
    """Weight of the entropy over the batch's logits, which limits their size."""

    def build(self, seed: int) -> CountingTask:
        """Return the rows and an untrained model."""
        held_out = self.rows // 10
        sampled = sample_digits(self.rows + held_out, self.length, seed)
        data = {
            "train": sampled[: self.rows - held_out],
            "valid": sampled[self.rows - held_out : self.rows],
            "test": sampled[self.rows :],
        }
        return CountingTask(self, self.init_model(seed), data)

    def init_model(self, seed: int) -> CountingGRU:
        """Return an untrained model."""
        with seeded(seed, "toy model"):
            return CountingGRU(self.width)

    @torch_threads(1)
    def train(self, task: Task, seed: int) -> None:
        """Minimise the cross-entropy minus the batch's entropy; keep the epoch with the best validation score."""
        model = task.model.requires_grad_(True).train()
        optimizer = torch.optim.Adam(model.parameters(), lr=self.learning_rate)
        order = generator(seed, "toy training")
        best_score, best = -1.0, deepcopy(model.state_dict())
        for _ in progress_bar(range(self.epochs), "train the model"):
            for batch in minibatches(task.data["train"], self.batch_size, order):
                logit = model(batch.tokens, batch.inputs["query"], batch.present)
                # As published, a categorical over the rows of the batch, not over the answers.
                entropy = Categorical(logits=logit, validate_args=False).entropy()
                loss = binary_cross_entropy_with_logits(logit, batch.target) - self.entropy * entropy
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            accuracy = task.score(task.data["valid"])
            if accuracy >= best_score:
                best_score, best = accuracy, deepcopy(model.state_dict())
        model.load_state_dict(best)
        model.eval().requires_grad_(False)
