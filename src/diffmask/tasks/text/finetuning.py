"""Rows with a random part of their tokens masked: what a model is fine-tuned on to take erasure for granted.

Madsen et al. 2024, "Faithfulness Measurable Masked Language Models".

Fine-tuning: AdamW, a rate that falls in a line, the best epoch kept; on masked texts too where that is asked for.
"""

import logging
from copy import deepcopy
from dataclasses import dataclass, fields, replace
from typing import Literal

import torch

from diffmask.core.batch import Batch
from diffmask.core.hooks import exclusive
from diffmask.core.task import Task
from diffmask.core.training import generator, minibatches, progress_bar, seeded
from diffmask.errors import TaskError


def mask_random_tokens(task: Task, batch: Batch, rows: float, source: torch.Generator) -> Batch:
    """The batch with a share of its rows masked, the last ones: each by a share of its own, token by token."""
    if rows == 0:
        return batch
    if task.mask_token is None:
        raise TaskError(f"{type(task).__name__} has no mask token: it cannot be fine-tuned on masked texts")
    share = torch.rand(len(batch), 1, generator=source)
    share[: len(batch) - round(rows * len(batch))] = 0
    gone = (torch.rand(batch.tokens.shape, generator=source) < share).to(batch.tokens.device) & batch.maskable
    return replace(batch, tokens=batch.tokens.masked_fill(gone, task.mask_token))


logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class FineTuning:
    """The choices of a fine-tuning."""

    epochs: int = 3
    """Passes over the training rows."""
    batch_size: int = 32
    learning_rate: float = 5e-5
    """At its highest, after a tenth of the steps; from there it falls to zero."""
    answers: Literal["classes", "labels", "numbers"] = "classes"
    """One class a text, several labels at once, or a number."""
    masked: float = 0.0
    """Share of each minibatch's rows that are partly masked, so that erased texts do not surprise the model.

    Each such row loses a share of its tokens to the mask token, drawn from (0, 1); the best epoch is the best on the
    validation rows as they are and partly masked. 0.5 is the choice of Madsen et al. 2024.
    """

    @property
    def tuning(self) -> "FineTuning":
        """These choices alone, without those of a recipe that has more."""
        return FineTuning(**{field.name: getattr(self, field.name) for field in fields(FineTuning)})

    def fine_tune(self, task: Task, seed: int) -> list[float]:
        """Train the task's model in place; its score on the validation rows after each epoch, where there are any."""
        model, source = task.model, generator(seed, "fine-tuning")
        masks = generator(seed, "masked fine-tuning")
        held_out = self._held_out(task, seed)
        optimizer = torch.optim.AdamW(model.parameters(), lr=self.learning_rate, weight_decay=0.01)
        steps = self.epochs * -(-len(task.data["train"]) // self.batch_size)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: _rate(step / max(steps, 1)))
        scores: list[float] = []
        kept = deepcopy(model.state_dict())
        with exclusive(model), seeded(seed, "dropout"), progress_bar(range(steps), "train the classifier") as bar:
            for epoch in range(self.epochs):
                model.train().requires_grad_(True)
                for batch in minibatches(task.data["train"], self.batch_size, source, pool=50):
                    optimizer.zero_grad()
                    seen = mask_random_tokens(task, batch, self.masked, masks)
                    loss = -task.forward_train(seen).log_prob(seen.target).mean()
                    loss.backward()
                    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                    optimizer.step()
                    schedule.step()
                    bar.update()
                if held_out:
                    scores.append(sum(map(task.score, held_out)) / len(held_out))
                    logger.info("epoch %d of %d: score %.4f on validation rows", epoch + 1, self.epochs, scores[-1])
                if not held_out or scores[-1] >= max(scores):
                    kept = deepcopy(model.state_dict())
        model.load_state_dict(kept)
        model.eval().requires_grad_(False)
        task.trained_with_masks = task.trained_with_masks or self.masked > 0
        return scores

    def _held_out(self, task: Task, seed: int) -> list[Batch]:
        """The validation rows, and a partly masked copy of all of them where some are masked in training."""
        if "valid" not in task.data:
            return []
        plain = task.data["valid"]
        if not self.masked:
            return [plain]
        return [plain, mask_random_tokens(task, plain, 1.0, generator(seed, "masked validation"))]


def _rate(progress: float) -> float:
    """Share of the highest learning rate: up in the first tenth, then down to zero."""
    return min(progress / 0.1, (1 - progress) / 0.9) if progress < 1 else 0.0
