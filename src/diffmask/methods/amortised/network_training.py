"""Training loop of an amortised explainer: budget, replay buffer, averaged weights, early stopping."""

import copy
import math
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Generic, Literal, Protocol, TypeVar, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from diffmask.core.batch import Batch
from diffmask.core.progress import Progress, progress_bar, stop_at_interrupt
from diffmask.core.training import cosine_decay
from diffmask.errors import ConfigError
from diffmask.methods.amortised.network import CachedStates

SECONDS_PER_UNIT = {"s": 1, "sec": 1, "min": 60, "h": 3600}


@dataclass(frozen=True)
class Budget:
    """Number of texts or seconds that a fit may use, whichever is spent first."""

    texts: float = math.inf
    seconds: float = math.inf

    def fraction_spent(self, texts: int, seconds: float) -> float:
        """Return the spent fraction of the budget, 1 when all is spent."""
        return max(texts / self.texts, seconds / self.seconds)


def parse_budget(text: str) -> Budget:
    """Parse a budget. Only a budget in texts gives the same explainer twice.

    >>> parse_budget("5min"), parse_budget("3000 texts")
    (Budget(texts=inf, seconds=300.0), Budget(texts=3000.0, seconds=inf))
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", text)
    amount, unit = (float(match[1]), match[2]) if match else (0.0, "")
    if amount > 0 and unit in ("", "text", "texts"):
        return Budget(texts=amount)
    if amount > 0 and unit in SECONDS_PER_UNIT:
        return Budget(seconds=amount * SECONDS_PER_UNIT[unit])
    raise ConfigError(f"'{text}' is no budget; write '5min', '90s' or '3000 texts'")


@runtime_checkable
class TrainingBatch(Protocol):
    """Training data from a few texts: their states and, in each implementation, the targets."""

    @property
    def cached(self) -> CachedStates:
        """States that the network reads."""


BatchT = TypeVar("BatchT", bound=TrainingBatch)
NetworkT = TypeVar("NetworkT", bound=nn.Module)


class Objective(ABC, Generic[NetworkT, BatchT]):
    """Source of training batches and the loss on them."""

    @abstractmethod
    def query_model(self, batch: Batch) -> BatchT:
        """Run the explained model on a few texts to obtain training data; this is the expensive part."""

    @abstractmethod
    def loss(self, network: NetworkT, batch: BatchT) -> Float[Tensor, "row copy"]:
        """Return the loss per row and masked copy; 0 for a perfect network."""


@dataclass(frozen=True)
class TrainingSchedule:
    """Hyperparameters of the training loop."""

    budget: Budget
    steps_per_batch: int
    """Optimiser steps after each batch of texts."""
    replay_tokens: int
    """Tokens in the replay buffer; the oldest batches are dropped first."""
    learning_rate: float
    patience: int
    """Evaluations on held-out texts without improvement before training stops."""
    evaluations: int = 16
    """Evaluations on held-out texts, evenly spread over the budget."""
    weight_decay: float = 0.01


class AmortisedTraining(Generic[NetworkT, BatchT]):
    """AdamW on batches drawn from a replay buffer; a moving average of the weights is evaluated and returned."""

    def __init__(
        self,
        network: NetworkT,
        objective: Objective[NetworkT, BatchT],
        schedule: TrainingSchedule,
        held_out: list[BatchT],
        source: torch.Generator,
        start: float,
        label: str = "fit",
    ) -> None:
        self.label = label
        self.network, self.objective, self.schedule, self.held_out = network, objective, schedule, held_out
        self.source = source
        self.ema_network = copy.deepcopy(network)
        self.optimizer = torch.optim.AdamW(
            network.parameters(), lr=schedule.learning_rate, weight_decay=schedule.weight_decay
        )
        self.replay: list[BatchT] = []
        self.learning_curve: list[dict[str, float]] = []
        self.texts = self.steps = 0
        self.start = start

    def run(self, batches: Iterator[Batch], keep: Literal["best", "last"] = "best") -> None:
        """Train until the budget is spent or patience runs out, then load the best or the last averaged weights."""
        self.best_weights = self.ema_network.state_dict()
        self._evaluate()
        with stop_at_interrupt(self.label, lambda: f"{self.texts:,} texts"), self._progress_bar() as bar:
            while not self.texts or not self._finished():  # one batch at least, even if the budget is already spent
                before = self._progress()
                self._learn(next(batches))
                bar.update((self._progress() - before) * (bar.total or 0))
        self.network.load_state_dict(self.best_weights if keep == "best" else self.ema_network.state_dict())

    def _progress_bar(self) -> Progress[None]:
        """Count texts or, if the budget is a time, seconds."""
        budget = self.schedule.budget
        unit, total = ("texts", budget.texts) if math.isfinite(budget.texts) else ("seconds", budget.seconds)
        return progress_bar((), f"{self.label} ({unit})", total if math.isfinite(total) else None)

    def _learn(self, batch: Batch) -> None:
        """Query the model on a batch, take the steps that belong to it, and evaluate when it is time to."""
        self.replay.append(self.objective.query_model(batch))
        self._trim_replay()
        self.texts += len(batch)
        for _ in range(self.schedule.steps_per_batch):
            self._step()
        if self._progress() >= len(self.learning_curve) / self.schedule.evaluations:
            self._evaluate()
            if self.best == len(self.learning_curve) - 1:
                self.best_weights = copy.deepcopy(self.ema_network.state_dict())

    @property
    def best(self) -> int:
        """Index of the evaluation with the smallest error, the one before training excluded."""
        errors = [point["error"] for point in self.learning_curve[1:]]
        return 1 + errors.index(min(errors)) if errors else 0

    def diagnostics(self) -> dict[str, Any]:
        """Return the learning curve, and whether the error still fell by 1 % in the last quarter of the budget."""
        curve = self.learning_curve
        earlier = curve[max(1, self.best - len(curve) // 4)]["error"]
        improving = self.best == len(curve) - 1 and earlier > 1.01 * curve[self.best]["error"]
        return {"curve": curve, "more_would_help": improving}

    def _progress(self) -> float:
        return min(1.0, self.schedule.budget.fraction_spent(self.texts, time.perf_counter() - self.start))

    def _finished(self) -> bool:
        return self._progress() >= 1 or len(self.learning_curve) - 1 - self.best >= self.schedule.patience

    def _trim_replay(self) -> None:
        sizes = [batch.cached.present.numel() for batch in self.replay]
        while len(sizes) > 1 and sum(sizes) > self.schedule.replay_tokens:
            del self.replay[0], sizes[0]

    def _step(self) -> None:
        """Take one optimiser step on a batch from the replay buffer and update the averaged weights."""
        for group in self.optimizer.param_groups:
            group["lr"] = self.schedule.learning_rate * _rate(self._progress(), self.steps)
        index = int(torch.randint(len(self.replay), (1,), generator=self.source))
        self.optimizer.zero_grad()
        self.objective.loss(self.network, self.replay[index]).mean().backward()
        nn.utils.clip_grad_norm_(self.network.parameters(), 1.0)
        self.optimizer.step()
        self.steps += 1
        decay = min(0.99, self.steps / (self.steps + 10))
        with torch.no_grad():
            for average, current in zip(self.ema_network.parameters(), self.network.parameters(), strict=True):
                average.lerp_(current, 1 - decay)

    @torch.no_grad()
    def _evaluate(self) -> None:
        """Add the held-out error of the averaged weights to the learning curve."""
        losses = torch.cat([self.objective.loss(self.ema_network, batch).flatten() for batch in self.held_out])
        seconds = time.perf_counter() - self.start
        self.learning_curve.append({"texts": self.texts, "seconds": round(seconds, 3), "error": losses.mean().item()})


WARMUP_STEPS = 100
"""Steps until the learning rate reaches its maximum."""
WARMUP_FRACTION = 0.2
"""Fraction of the budget until it does, if that comes first."""


def _rate(progress: float, steps: int) -> float:
    """Return the fraction of the maximal learning rate: linear warm-up, then half a cosine with a floor of 0.02.

    >>> [round(_rate(progress, steps), 2) for progress, steps in ((0.0, 49), (0.1, 9), (0.5, 999), (1.0, 1999))]
    [0.5, 0.49, 0.5, 0.02]
    """
    warmup = max((steps + 1) / WARMUP_STEPS, progress / WARMUP_FRACTION)
    return min(1.0, warmup) * cosine_decay(progress)
