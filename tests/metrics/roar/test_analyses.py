"""What lies behind the curves."""

import torch

from diffmask.core.batch import Batch
from diffmask.metrics.roar.analysis import mask_position_leak, permuted, riemann, sparsity
from support.transformer import TransformerTask


def batch_of(rows: int, target: torch.Tensor) -> Batch:
    tokens = torch.full((rows, 8), 5)
    real = torch.ones(rows, 8, dtype=torch.bool)
    return Batch(tokens=tokens, present=real, maskable=real, target=target)


def test_even_importances_are_not_sparse_and_a_single_one_is() -> None:
    yes = torch.ones(1, 10, dtype=torch.bool)
    torch.testing.assert_close(torch.tensor(sparsity(torch.ones(1, 10), yes, [0.1, 0.5])), torch.tensor([0.1, 0.5]))
    assert sparsity(torch.eye(10)[:1], yes, [0.1]) == [1.0]


def test_masks_that_stand_where_the_class_says_are_found_out() -> None:
    target = torch.arange(200) % 2
    place = torch.arange(8)
    telling = torch.where(target[:, None] == 1, place < 4, place >= 4)
    silent = (place < 4).expand(200, 8)
    data = {split: batch_of(200, target) for split in ("train", "test")}
    assert mask_position_leak({"train": telling, "test": telling}, data) == 1.0
    assert mask_position_leak({"train": silent, "test": silent}, data) == 0.5


def test_permuted_classes_are_the_same_classes_in_another_order() -> None:
    data = {"train": batch_of(50, torch.arange(50) % 3)}
    dealt = permuted(data)["train"].target
    assert sorted(dealt.tolist()) == sorted(data["train"].target.tolist())
    assert dealt.tolist() != data["train"].target.tolist()


def test_more_points_come_closer_to_very_many() -> None:
    task = TransformerTask()
    few, many, all_of_them = riemann(task, task.data["test"][:6], [2, 20, 100])
    assert few.error > many.error > all_of_them.error == 0
    assert all_of_them.moved == 0
