"""What several tests share: one small toy task, trained once a session."""

import pytest
import torch

from diffmask.tasks.toy import CountingTask, ToyTask

torch.set_num_threads(1)

SMALL_TOY = ToyTask(rows=1000, epochs=3)


@pytest.fixture(scope="session")
def toy_task() -> CountingTask:
    """A counter that has learned a little: enough to have gradients worth explaining."""
    task = SMALL_TOY.load(seed=0)
    assert isinstance(task, CountingTask)
    return task
