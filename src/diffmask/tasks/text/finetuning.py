"""Fine-tuning of a model on labelled texts: AdamW, linear warm-up and decay, best epoch by validation score.

With `masked_fraction` the classifier is also trained on masked texts, so that masked inputs are not out of
distribution. Madsen et al. 2024, "Faithfulness Measurable Masked Language Models".
"""

import logging
from copy import deepcopy
from dataclasses import dataclass, fields, replace
from typing import Literal

import torch

from diffmask.core.batch import Batch
from diffmask.core.capabilities import row_text
from diffmask.core.hooks import exclusive
from diffmask.core.progress import progress_bar
from diffmask.core.task import Task
from diffmask.core.training import generator, minibatches, seeded
from diffmask.errors import TaskError

logger = logging.getLogger(__name__)


def mask_random_tokens(task: Task, batch: Batch, fraction: float, source: torch.Generator) -> Batch:
    """Mask tokens in the last `fraction` of the rows; each such row has its own masking rate, uniform in (0, 1)."""
    if fraction == 0:
        return batch
    if task.mask_token is None:
        raise TaskError(f"{type(task).__name__} has no mask token: it cannot be fine-tuned on masked texts")
    rate = torch.rand(len(batch), 1, generator=source)
    rate[: len(batch) - round(fraction * len(batch))] = 0
    masked = (torch.rand(batch.tokens.shape, generator=source) < rate).to(batch.tokens.device) & batch.maskable
    return replace(batch, tokens=batch.tokens.masked_fill(masked, task.mask_token))


@dataclass(frozen=True, kw_only=True)
class FineTuning:
    """Hyperparameters of a fine-tuning."""

    epochs: int = 3
    """Passes over the training rows."""
    batch_size: int = 32
    learning_rate: float = 5e-5
    """Peak of the learning rate, after a tenth of the steps; from there it decays linearly to zero."""
    problem_type: Literal["single_label_classification", "multi_label_classification", "regression"] = (
        "single_label_classification"
    )
    """Kind of the outcome, as `transformers` calls it: one class per text, several labels at once, or numbers."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """Precision of matrix products in training: `bfloat16` is faster on processors and GPUs that support it.

    Weights, losses and validation stay in the model's own precision (automatic mixed precision).
    """
    masked_fraction: float = 0.0
    """Fraction of the rows of each minibatch that are masked at random; 0.5 in Madsen et al. 2024.

    Each such row has its own masking rate, drawn from (0, 1). The best epoch is then the best on the validation rows
    and on a masked copy of them.
    """

    @property
    def tuning(self) -> "FineTuning":
        """The hyperparameters alone, without the other fields of a config that inherits them."""
        return FineTuning(**{field.name: getattr(self, field.name) for field in fields(FineTuning)})

    def fine_tune(self, task: Task, seed: int) -> list[float]:
        """Train the task's model in place and return the validation score after each epoch."""
        model, order = task.model, generator(seed, "fine-tuning")
        masks = generator(seed, "masked fine-tuning")
        held_out = self._held_out(task, seed)
        train = labelled_rows(task, task.data["train"])
        optimizer = torch.optim.AdamW(model.parameters(), lr=self.learning_rate, weight_decay=0.01)
        steps = self.epochs * -(-len(train) // self.batch_size)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: _warmup_decay(step / max(steps, 1)))
        scores: list[float] = []
        best = deepcopy(model.state_dict())
        with exclusive(model), seeded(seed, "dropout"), progress_bar(range(steps), "train the model") as bar:
            for epoch in range(self.epochs):
                model.train().requires_grad_(True)
                for rows in minibatches(train, self.batch_size, order, pool=50):
                    optimizer.zero_grad()
                    batch = mask_random_tokens(task, rows, self.masked_fraction, masks)
                    with self._autocast(batch):
                        loss = -task.forward_train(batch).log_prob(batch.target).mean()
                    loss.backward()
                    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                    optimizer.step()
                    schedule.step()
                    bar.update()
                if held_out:
                    scores.append(sum(map(task.score, held_out)) / len(held_out))
                    logger.info("epoch %d of %d: validation score %.4f", epoch + 1, self.epochs, scores[-1])
                if not held_out or scores[-1] >= max(scores):
                    best = deepcopy(model.state_dict())
        model.load_state_dict(best)
        model.eval().requires_grad_(False)
        task.trained_with_masks = task.trained_with_masks or self.masked_fraction > 0
        return scores

    def _autocast(self, batch: Batch) -> torch.autocast:
        return torch.autocast(batch.tokens.device.type, torch.bfloat16, enabled=self.precision == "bfloat16")

    def _held_out(self, task: Task, seed: int) -> list[Batch]:
        """Return the validation rows, with a masked copy if training masks rows; an empty list without the split."""
        if "valid" not in task.data:
            return []
        valid = task.data["valid"]
        if not self.masked_fraction:
            return [valid]
        return [valid, mask_random_tokens(task, valid, 1.0, generator(seed, "masked validation"))]


def labelled_rows(task: Task, batch: Batch) -> Batch:
    """Return the rows that have a label to train on; a window of a long passage may not contain the answer."""
    labelled = torch.tensor([outcome is not None for outcome in row_text(task).outcomes(batch.target)])
    return batch if labelled.all() else batch[labelled.to(batch.tokens.device)]


def _warmup_decay(progress: float) -> float:
    """Return the fraction of the peak learning rate: up over the first tenth of training, then down to zero."""
    return min(progress / 0.1, (1 - progress) / 0.9) if progress < 1 else 0.0
