"""What several tests share: one small toy task, trained once a session."""

from pathlib import Path

import pytest
import torch

from diffmask.tasks.toy import CountingTask, ToyTaskConfig

torch.set_num_threads(1)

SMALL_TOY = ToyTaskConfig(rows=1000, epochs=3)


@pytest.fixture(scope="session")
def toy_task() -> CountingTask:
    """A counter that has learned a little: enough to have gradients worth explaining."""
    task = SMALL_TOY.load(seed=0)
    assert isinstance(task, CountingTask)
    return task


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Teachers' scores and planted copies are kept for one test only."""
    monkeypatch.setenv("DIFFMASK_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"
