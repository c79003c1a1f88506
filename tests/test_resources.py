"""When memory runs out, batches are halved and the work continues."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from diffmask.core.explainer import Method
from diffmask.core.resources import AdaptiveBatchSize, is_out_of_memory
from diffmask.methods.gradients import Gradient, IntegratedGradients
from diffmask.methods.leave_one_out import LeaveOneOut
from support.linear import LinearTask, Sum


class Narrow(Sum):
    """A model that runs out of memory with more than `most` rows."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = most

    def forward(self, tokens: Tensor, present: Tensor) -> Tensor:
        if len(tokens) > self.most:
            raise RuntimeError("CUDA out of memory. Tried to allocate 20.00 GiB")
        return super().forward(tokens, present)


ROWS = [[1, 2, 3], [3, 1], [2], [1, 1, 2], [3], [3, 2]]


@pytest.mark.parametrize("most", [5, 2, 1])
@pytest.mark.parametrize(
    "method", [Gradient(), LeaveOneOut(), IntegratedGradients(n_steps=7)], ids=lambda method: method.name
)
def test_explanations_are_the_same_in_little_memory(
    method: Method, most: int, caplog: pytest.LogCaptureFixture
) -> None:
    model = Narrow(6)
    wide, narrow = LinearTask(ROWS), LinearTask(ROWS, model)
    explainer = method.fit(narrow)
    model.most = most
    attribution = explainer(narrow.data["test"])
    torch.testing.assert_close(attribution.scores, method.fit(wide)(wide.data["test"]).scores)
    assert "out of memory with 6 rows per pass; continuing with 3" in caplog.text


def test_only_the_internal_batch_is_halved_if_the_rows_fit(caplog: pytest.LogCaptureFixture) -> None:
    task = LinearTask(ROWS[:2], Narrow(4))
    explainer = LeaveOneOut(internal_batch_size=8).fit(task)
    explainer(task.data["test"])
    assert [record.getMessage() for record in caplog.records] == [
        "out of memory with 5 rows per pass; continuing with 2"
    ]
    assert explainer.cost.forwards == 1 + 1 + 3
    caplog.clear()
    explainer(task.data["test"])
    assert not caplog.records


def test_a_single_row_that_does_not_fit_is_an_error() -> None:
    model = Narrow(6)
    task = LinearTask(ROWS, model)
    explainer = Gradient().fit(task)
    model.most = 0
    with pytest.raises(MemoryError, match="out of memory with 1 rows per pass"):
        explainer(task.data["test"])


def test_other_errors_pass() -> None:
    def fail(items: slice) -> None:
        raise RuntimeError("size mismatch")

    with pytest.raises(RuntimeError, match="size mismatch"):
        AdaptiveBatchSize(4).split(8, fail)
    assert not is_out_of_memory(RuntimeError("size mismatch"))
    assert is_out_of_memory(MemoryError())


def test_items_are_processed_in_order_and_never_split() -> None:
    assert AdaptiveBatchSize(6).split(5, lambda items: (items.start, items.stop), rows_each=3) == [
        (0, 2),
        (2, 4),
        (4, 5),
    ]
    assert AdaptiveBatchSize(2).split(2, lambda items: items.stop, rows_each=9) == [1, 2]


RELEASE_HOLES = """
import resource
from pathlib import Path

from diffmask.core.resources import release_free_memory


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


pieces = [bytearray(size) for _ in range(2000) for size in (60_000, 2000)]
in_use = pieces[1::2]
del pieces
before = resident()
release_free_memory()
print(before - resident())
"""
"""Prints the bytes that are released of 120 MB of holes between used blocks."""


@pytest.mark.skipif(not Path("/proc/self/statm").is_file(), reason="the system does not report resident memory")
def test_holes_between_used_blocks_are_released() -> None:
    # In its own process: the heap of this one has holes from other tests.
    run = subprocess.run([sys.executable, "-c", RELEASE_HOLES], capture_output=True, text=True, check=True)
    assert int(run.stdout) > 60_000_000
