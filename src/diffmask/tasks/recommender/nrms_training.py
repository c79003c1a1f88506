"""Training of NRMS: softmax over a clicked candidate and sampled others, early stopping, checkpoints that resume."""

import logging
import random
import time
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from diffmask.core.batch import Batch
from diffmask.core.checkpoints import Checkpoints, optimizer_tensors, restore_optimizer, under_prefix, with_prefix
from diffmask.core.config import digest_of
from diffmask.core.hooks import exclusive
from diffmask.core.progress import progress_bar
from diffmask.core.training import generator, seeded
from diffmask.datasets.mind import Impression
from diffmask.errors import ConfigError, InputError
from diffmask.tasks.recommender.news_recommender import NewsRecommender
from diffmask.tasks.recommender.nrms import NRMS, Slots
from diffmask.tasks.recommender.ranking_metrics import RankingMetrics, ranking_metrics
from diffmask.tasks.text.finetuning import mask_random_tokens

logger = logging.getLogger(__name__)

CHECKPOINT = "nrms-checkpoint"
KEPT_METRIC = "auc"
"""Validation metric by which the best epoch is chosen, as in MIND."""


@dataclass(frozen=True, kw_only=True)
class NRMSHyperparameters:
    """Hyperparameters of the training."""

    epochs: int = 10
    """Largest number of passes over the clicks."""
    batch_size: int = 64
    """Clicks per step."""
    learning_rate: float = 3e-3
    """Learning rate of Adam for all layers but a Hugging Face encoder."""
    encoder_learning_rate: float = 2e-5
    """Learning rate of a Hugging Face encoder."""
    negatives: int = 4
    """Unclicked candidates of the same impression that each click is compared with, drawn again in every epoch."""
    patience: int = 3
    """Epochs without a better validation AUC after which the training ends."""
    max_gradient_norm: float = 1.0
    masked_fraction: float = 0.2
    """Share of the titles of a step in which words are masked at random, so that masked titles are not unfamiliar."""

    def __post_init__(self) -> None:
        if min(self.epochs, self.batch_size, self.negatives, self.patience) < 1:
            raise ConfigError(f"nrms: epochs, batch_size, negatives and patience must be at least 1; found {self}")
        if not (self.learning_rate > 0 and self.encoder_learning_rate >= 0 and self.max_gradient_norm > 0):
            raise ConfigError(f"nrms: learning rates and max_gradient_norm must be above 0; found {self}")
        if not 0 <= self.masked_fraction <= 1:
            raise ConfigError(f"nrms: masked_fraction must be in [0, 1]; found {self.masked_fraction}")


@dataclass(frozen=True, kw_only=True)
class NRMSTraining(NRMSHyperparameters):
    """Training of a recommender with early stopping."""

    def train(
        self, task: NewsRecommender, seed: int = 0, checkpoints: str | Path | None = None
    ) -> list[dict[str, Any]]:
        """Train the task's model in place, keep the best epoch, and return one record per epoch.

        With a folder for checkpoints every finished epoch is written there, and a killed training resumes after the
        last one.
        """
        clicks = _clicks(task.impressions["train"])
        progress = _Progress(self._optimizer(task.model), deepcopy(task.model.state_dict()))
        key = digest_of([self._recipe(), asdict(task.model.config), seed, len(clicks)])
        saved = None if checkpoints is None else Checkpoints(Path(checkpoints), CHECKPOINT, key)
        if saved is not None:
            progress.resume(task.model, saved)
        with exclusive(task.model):
            while not self._finished(progress):
                self._epoch(task, clicks, progress, seed)
                if saved is not None:
                    progress.save(task.model, saved)
        task.model.load_state_dict(progress.best)
        _set_deviation(task)
        task.model.eval().requires_grad_(False)
        task.trained_with_masks = self.masked_fraction > 0
        task.training_history = progress.history
        return progress.history

    def _recipe(self) -> dict[str, Any]:
        """Return the choices that a checkpoint must share; a resumed training may have more epochs."""
        return {name: value for name, value in asdict(self).items() if name not in ("epochs", "patience")}

    def _finished(self, progress: "_Progress") -> bool:
        return len(progress.history) >= self.epochs or progress.epochs_since_best >= self.patience

    def _optimizer(self, model: NRMS) -> torch.optim.Optimizer:
        body = [] if isinstance(model.encoder, nn.Embedding) else list(model.encoder.parameters())
        names = {id(value) for value in body}
        head = [value for value in model.parameters() if id(value) not in names]
        groups = [{"params": head, "lr": self.learning_rate}, {"params": body, "lr": self.encoder_learning_rate}]
        return torch.optim.Adam([group for group in groups if group["params"]])

    def _epoch(
        self, task: NewsRecommender, clicks: Sequence[tuple[Impression, int]], progress: "_Progress", seed: int
    ) -> None:
        """Train one epoch; its randomness depends on seed and number only, so that a resumed one is the same."""
        model, number, start = task.model, len(progress.history) + 1, time.perf_counter()
        losses: list[float] = []
        with seeded(seed, "nrms dropout", number):
            model.train().requires_grad_(True)
            for rows in progress_bar(
                self._batches(clicks, seed, number), f"epoch {number}", -(-len(clicks) // self.batch_size)
            ):
                loss = self._loss(task, rows, generator(seed, "nrms masks", number, len(losses)))
                progress.optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), self.max_gradient_norm)
                progress.optimizer.step()
                losses.append(loss.item())
        model.eval().requires_grad_(False)
        metrics = evaluate(task, task.impressions.get("valid", ()))
        record = {"epoch": number, "loss": sum(losses) / len(losses), "seconds": time.perf_counter() - start}
        progress.add({**record, **(asdict(metrics) if metrics.impressions else {})}, model)
        logger.info("epoch %d: %s", number, _described(progress.history[-1]))

    def _batches(self, clicks: Sequence[tuple[Impression, int]], seed: int, epoch: int) -> Iterator[list[list[str]]]:
        """Yield lists of rows; a row is the titles of the click, of the negatives and, after None, of the history."""
        source = random.Random(f"{seed} {epoch}")
        order = source.sample(range(len(clicks)), len(clicks))
        for start in range(0, len(order), self.batch_size):
            yield [self._row(*clicks[index], source) for index in order[start : start + self.batch_size]]

    def _row(self, impression: Impression, clicked: int, source: random.Random) -> Any:
        others = [candidate.title for candidate in impression.candidates if not candidate.clicked]
        drawn = source.sample(others, min(self.negatives, len(others)))
        return [impression.candidates[clicked].title, *drawn], impression.history

    def _loss(self, task: NewsRecommender, rows: Sequence[Any], source: torch.Generator) -> Tensor:
        """Return the cross-entropy of the clicked candidate; every title is encoded once."""
        histories = [history[-task.max_history :] for _, history in rows]
        titles = list(
            dict.fromkeys(
                title for (offered, _), read in zip(rows, histories, strict=True) for title in (*offered, *read)
            )
        )
        # In random order, because the last rows of a batch are masked.
        titles = [titles[index] for index in torch.randperm(len(titles), generator=source).tolist()]
        index = {title: number for number, title in enumerate(titles)}
        grid = _grid(task, titles)
        if task.mask_token is not None:
            grid = mask_random_tokens(task, grid, self.masked_fraction, source)
        slots = Slots.of(
            [[index[title] for title in offered] for offered, _ in rows],
            [[index[title] for title in read] for read in histories],
        )
        vectors = task.model.encode(grid.tokens, grid.present)
        scores = task.model.scores(vectors, slots).masked_fill(~slots.offered, -torch.inf)
        return cross_entropy(scores, torch.zeros(len(rows), dtype=torch.long, device=scores.device))


def _clicks(impressions: Sequence[Impression]) -> list[tuple[Impression, int]]:
    """Return every clicked candidate of impressions that also have an unclicked one and a history."""
    clicks = [
        (impression, clicked)
        for impression in impressions
        if impression.history and len(impression.clicked) < len(impression.candidates)
        for clicked in impression.clicked
    ]
    if not clicks:
        raise InputError("no impression has a history, a clicked and an unclicked candidate: nothing to train on")
    return clicks


def _grid(task: NewsRecommender, titles: Sequence[str]) -> Batch:
    task.titles.add(titles)
    return task.titles.grid(titles, task.pad_token).to(task.device)


@torch.no_grad()
def impression_scores(task: NewsRecommender, impressions: Sequence[Impression]) -> list[list[float]]:
    """Return the scores of every impression's candidates; each different title is encoded once."""
    used = [
        title
        for impression in impressions
        for title in (
            *impression.history[-task.max_history :],
            *(candidate.title for candidate in impression.candidates),
        )
    ]
    titles = list(dict.fromkeys(used))
    task.titles.add(titles)
    vectors = task._encode_tokens([tuple(task.titles.tokens(title)) for title in titles])
    index = {title: number for number, title in enumerate(titles)}
    scores: list[list[float]] = []
    for start in range(0, len(impressions), 256):
        chunk = impressions[start : start + 256]
        slots = Slots.of(
            [[index[candidate.title] for candidate in impression.candidates] for impression in chunk],
            [[index[title] for title in impression.history[-task.max_history :]] for impression in chunk],
        )
        values = task.model.scores(vectors, slots).tolist()
        scores += [row[: len(impression.candidates)] for row, impression in zip(values, chunk, strict=True)]
    return scores


def evaluate(task: NewsRecommender, impressions: Sequence[Impression]) -> RankingMetrics:
    """Return AUC, MRR, nDCG@5, nDCG@10 and accuracy on impressions with known clicks."""
    known = [
        impression
        for impression in impressions
        if all(candidate.clicked is not None for candidate in impression.candidates)
    ]
    clicks = [[bool(candidate.clicked) for candidate in impression.candidates] for impression in known]
    return ranking_metrics(impression_scores(task, known), clicks)


def _set_deviation(task: NewsRecommender) -> None:
    """Store the standard deviation of the candidates' scores, the unit of explained scores."""
    impressions = task.impressions.get("valid", task.impressions["train"])
    values = torch.tensor([score for row in impression_scores(task, impressions) for score in row])
    task.model.score_deviation.fill_(float(values.std().clamp(min=1e-6)) if len(values) > 1 else 1.0)


def _described(record: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value:.4f}" for name, value in record.items() if isinstance(value, float))


@dataclass
class _Progress:
    """State of a training between epochs."""

    optimizer: torch.optim.Optimizer
    best: dict[str, Tensor]
    history: list[dict[str, Any]] = field(default_factory=list)

    @property
    def epochs_since_best(self) -> int:
        """Epochs after the best one; 0 without validation rows."""
        values = [float(record[KEPT_METRIC]) for record in self.history if KEPT_METRIC in record]
        return len(values) - 1 - values.index(max(values)) if values else 0

    def add(self, record: dict[str, Any], model: NRMS) -> None:
        """Append an epoch and keep its weights if no epoch before was better."""
        self.history.append(record)
        value = record.get(KEPT_METRIC)
        if value is None or value >= max(earlier[KEPT_METRIC] for earlier in self.history):
            self.best = deepcopy(model.state_dict())

    def save(self, model: NRMS, checkpoints: Checkpoints) -> None:
        """Write weights, best weights, Adam's state and the history as `epoch_N`."""
        tensors = with_prefix("model", model.state_dict()) | with_prefix("best", self.best)
        tensors |= with_prefix("adam", optimizer_tensors(self.optimizer))
        checkpoints.save(len(self.history), tensors, {"history": self.history})

    def resume(self, model: NRMS, checkpoints: Checkpoints) -> None:
        """Continue after the last epoch that was written completely by the same training."""
        checkpoint = checkpoints.latest()
        if checkpoint is None:
            return
        _, artefact = checkpoint
        model.load_state_dict(under_prefix("model", artefact.tensors))
        self.best, self.history = under_prefix("best", artefact.tensors), list(artefact.values["history"])
        restore_optimizer(self.optimizer, under_prefix("adam", artefact.tensors))
