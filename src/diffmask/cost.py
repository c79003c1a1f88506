"""What an explanation costs: passes through the model, rows, seconds, memory."""

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from torch import Tensor, nn

from diffmask.hooks import watching


@dataclass
class Cost:
    """Everything spent so far; adds up over calls."""

    forwards: int = 0
    """Forward passes of the model, of any number of rows."""
    backwards: int = 0
    """Backward passes through the model."""
    rows: int = 0
    """Rows that went forward, each copy counted."""
    seconds: float = 0.0
    peak_megabytes: float = 0.0
    """Largest resident memory of the process while it ran; 0 where the system does not tell."""
    rows_back: int = 0
    """Rows that went backward."""

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(
            self.forwards + other.forwards,
            self.backwards + other.backwards,
            self.rows + other.rows,
            self.seconds + other.seconds,
            max(self.peak_megabytes, other.peak_megabytes),
            self.rows_back + other.rows_back,
        )

    def as_dict(self) -> dict[str, int | float]:
        """The figures by name, rounded for people."""
        return {name: round(value, 3) for name, value in asdict(self).items()}


@contextmanager
def metering(model: nn.Module, cost: Cost) -> Iterator[Cost]:
    """Within this block every pass through `model` is added to `cost`."""

    def seen(answer: Tensor) -> None:
        cost.forwards += 1
        cost.rows += answer.shape[0]
        count_backward(answer, cost)

    _forget_peak()
    start = time.perf_counter()
    try:
        with watching(model, seen):
            yield cost
    finally:
        cost.seconds += time.perf_counter() - start
        cost.peak_megabytes = max(cost.peak_megabytes, _peak_megabytes())


def count_backward(state: Tensor, cost: Cost) -> None:
    """Add to `cost` every backward pass that comes by this tensor."""

    def count(gradient: Tensor) -> None:
        cost.backwards += 1
        cost.rows_back += gradient.shape[0]

    if state.requires_grad:
        state.register_hook(count)


def _forget_peak() -> None:
    """Ask Linux to start its record of peak memory anew; elsewhere there is nothing to ask."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return


def _peak_megabytes() -> float:
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return 0.0
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    return int(found.group(1)) / 1024 if found else 0.0
