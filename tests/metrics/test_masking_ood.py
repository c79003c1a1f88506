"""The masking check: arithmetic on a sum, and a transformer with and without masked fine-tuning."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import diffmask as dm
from diffmask.core.task import Task, copy_task
from diffmask.core.training import generator
from diffmask.errors import TaskError
from diffmask.metrics.masking_ood import measure_masking_shift
from diffmask.tasks.text.finetuning import FineTuning, mask_random_tokens
from diffmask.tasks.toy import ToyTaskConfig
from support.linear import LinearTask
from support.transformer import MASK, TransformerTask


def test_loss_accuracy_and_confidence_equal_arithmetic() -> None:
    task = LinearTask([[3], [2], [1], [1]])
    batch = replace(task.data["test"], target=torch.tensor([1.0, 0.0, 1.0, 0.0]))
    shift = measure_masking_shift(task, batch, shares=(0.0, 1.0))
    logits = torch.tensor([4.0, -2.0, 1.0, 1.0])
    signs = torch.tensor([1.0, -1.0, 1.0, -1.0])
    assert shift.loss[0] == pytest.approx(float(-torch.nn.functional.logsigmoid(signs * logits).mean()))
    assert shift.accuracy == (0.75, 0.5)
    # With all tokens masked every logit is -0.5.
    assert shift.confidence[1] == pytest.approx(1 / (1 + math.exp(-0.5)))
    assert shift.prior_loss == pytest.approx(math.log(2))
    assert shift.warning() == ""


def test_a_model_confident_about_fully_masked_texts_is_reported() -> None:
    task = LinearTask([[3, 3, 3, 3], [1, 1, 1, 1]])
    task.mask_token = 3
    batch = replace(task.data["test"], target=torch.tensor([1.0, 0.0]))
    shift = measure_masking_shift(task, batch, shares=(0.0, 1.0))
    assert shift.excess_loss > 5
    assert shift.warning().startswith(
        "masked texts are out of distribution for this model: with 100% of the tokens erased"
    )
    with pytest.raises(TaskError, match="no row has one"):
        measure_masking_shift(task, replace(batch, target=torch.tensor([-1.0, -1.0])))


def test_the_last_rows_are_masked_each_by_its_own_share() -> None:
    task = TransformerTask()
    batch = task.data["train"]
    seen = mask_random_tokens(task, batch, 0.5, generator(0, "masks"))
    masked = (seen.tokens == MASK) & batch.maskable
    assert not masked[:60].any()
    assert not (seen.tokens != batch.tokens)[~batch.maskable].any()
    share = (masked.sum(dim=1) / batch.maskable.sum(dim=1))[60:]
    assert share.mean().item() == pytest.approx(0.5, abs=0.15)
    assert share.std().item() > 0.2
    assert mask_random_tokens(task, batch, 0.0, generator(0, "masks")) is batch


def test_after_masked_fine_tuning_masked_texts_are_less_out_of_distribution() -> None:
    excess = {}
    for masked in (0.0, 0.5):
        task = copy_task(TransformerTask())
        task.data = {**task.data, "valid": task.data["test"]}
        FineTuning(epochs=10, batch_size=24, learning_rate=5e-3, masked_fraction=masked).fine_tune(task, seed=0)
        excess[masked] = measure_masking_shift(task, task.data["train"]).excess_loss
    assert excess[0.5] < 0.3 < excess[0.0]
    assert task.trained_with_masks


def test_without_a_mask_token_there_is_no_masked_fine_tuning(tmp_path: Path) -> None:
    task = copy_task(TransformerTask())
    task.mask_token = None
    task.data = {**task.data, "valid": task.data["test"]}
    with pytest.raises(TaskError, match="cannot be fine-tuned on masked texts"):
        FineTuning(epochs=1, masked_fraction=0.5).fine_tune(task, seed=0)


@pytest.mark.parametrize(
    ("make_task", "warns"),
    [(lambda: ToyTaskConfig(rows=600, epochs=3).load(seed=0), False), (TransformerTask, True)],
    ids=["toy", "transformer"],
)
def test_a_benchmark_reports_the_excess_loss_and_warns_only_if_it_is_large(
    make_task: Callable[[], Task], warns: bool
) -> None:
    task = make_task()
    shift = measure_masking_shift(task, task.data["test"])
    result = dm.benchmark(task, ["gradient"], texts=len(task.data["test"]), say=lambda _: None)
    assert result.masking_excess_loss == pytest.approx(shift.excess_loss)
    assert (shift.excess_loss > 0.1) is warns
    assert any("out of distribution" in warning for warning in result.warnings) is warns


def test_a_benchmark_of_metrics_without_masking_does_not_run_the_check() -> None:
    task = copy_task(TransformerTask())
    result = dm.benchmark(task, ["gradient"], ["randomised-model"], texts=10, say=lambda _: None)
    assert result.masking_excess_loss is None
    assert not any("masked texts" in warning for warning in result.warnings)
