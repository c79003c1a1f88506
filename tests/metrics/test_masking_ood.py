"""What erasure does to a model, by hand on a sum; masked fine-tuning takes the surprise away."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from diffmask.core.task import copy_task
from diffmask.core.training import generator
from diffmask.errors import TaskError
from diffmask.metrics.masking_ood import surprise
from diffmask.tasks.text.finetuning import FineTuning, mask_random_tokens
from support.linear import LinearTask
from support.transformer import MASK, TransformerTask


def test_loss_accuracy_and_confidence_are_those_of_the_sum() -> None:
    task = LinearTask([[3], [2], [1], [1]])
    batch = replace(task.data["test"], target=torch.tensor([1.0, 0.0, 1.0, 0.0]))
    found = surprise(task, batch, shares=(0.0, 1.0))
    logits = torch.tensor([4.0, -2.0, 1.0, 1.0])
    signs = torch.tensor([1.0, -1.0, 1.0, -1.0])
    assert found.loss[0] == pytest.approx(float(-torch.nn.functional.logsigmoid(signs * logits).mean()))
    assert found.accuracy == (0.75, 0.5)
    # Everything masked every logit is -.5.
    assert found.confidence[1] == pytest.approx(1 / (1 + math.exp(-0.5)))
    assert found.prior_loss == pytest.approx(math.log(2))
    assert found.warning() == ""


def test_a_model_sure_of_nothing_is_warned_of() -> None:
    task = LinearTask([[3, 3, 3, 3], [1, 1, 1, 1]])
    task.mask_token = 3
    batch = replace(task.data["test"], target=torch.tensor([1.0, 0.0]))
    found = surprise(task, batch, shares=(0.0, 1.0))
    assert found.excess > 5
    assert found.warning().startswith("Erased texts surprise this model: with 100% of the tokens erased")
    with pytest.raises(TaskError, match="no row has one"):
        surprise(task, replace(batch, target=torch.tensor([-1.0, -1.0])))


def test_the_last_rows_are_masked_each_by_its_own_share() -> None:
    task = TransformerTask()
    batch = task.data["train"]
    seen = mask_random_tokens(task, batch, 0.5, generator(0, "masks"))
    gone = (seen.tokens == MASK) & batch.maskable
    assert not gone[:60].any()
    assert not (seen.tokens != batch.tokens)[~batch.maskable].any()
    share = (gone.sum(dim=1) / batch.maskable.sum(dim=1))[60:]
    assert share.mean().item() == pytest.approx(0.5, abs=0.15)
    assert share.std().item() > 0.2
    assert mask_random_tokens(task, batch, 0.0, generator(0, "masks")) is batch


def test_fine_tuned_on_masked_rows_a_model_is_less_surprised() -> None:
    excess = {}
    for masked in (0.0, 0.5):
        task = copy_task(TransformerTask())
        task.data = {**task.data, "valid": task.data["test"]}
        FineTuning(epochs=10, batch_size=24, learning_rate=5e-3, masked=masked).fine_tune(task, seed=0)
        excess[masked] = surprise(task, task.data["train"]).excess
    assert excess[0.5] < 0.3 < excess[0.0]


def test_without_a_mask_token_there_is_no_masked_fine_tuning(tmp_path: Path) -> None:
    task = copy_task(TransformerTask())
    task.mask_token = None
    task.data = {**task.data, "valid": task.data["test"]}
    with pytest.raises(TaskError, match="cannot be fine-tuned on masked texts"):
        FineTuning(epochs=1, masked=0.5).fine_tune(task, seed=0)
