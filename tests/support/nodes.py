"""Nodes of milliseconds whose number is done by hand, and some that make trouble."""

import os
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path

from diffmask.core.config import digest_of
from diffmask.core.store import Artefact, Store
from diffmask.results.records import Record
from diffmask.tasks.toy import ToyTaskConfig
from diffmask.workspace.node import Address, Node
from diffmask.workspace.workspace import Workspace


@dataclass(frozen=True)
class Number(Node):
    """`own` plus the numbers of its parents, each of which it makes itself if it must."""

    own: int
    parents: tuple["Number", ...] = ()

    @property
    def address(self) -> Address:
        return "number", digest_of([type(self).__name__, self.own, [parent.address for parent in self.parents]])

    @property
    def label(self) -> str:
        return f"number {self.own}, seed {self.workspace.seed}"

    @property
    def needs(self) -> tuple[Address, ...]:
        return tuple(parent.address for parent in self.parents)

    def value(self) -> int:
        return int(self.workspace.store.get_or_make(*self.address, self._make).values["value"])

    def run(self) -> list[Record]:
        return [Record(task="sum", method="number", site="", metric=str(self.own), value=float(self.value()), seed=0)]

    def _make(self) -> Artefact:
        total = self.own + sum(parent.value() for parent in self.parents)
        self.trouble()
        with (self.workspace.store.root / "made").open("a") as made:
            made.write(f"{self.own}\n")
        return Artefact({}, {"value": total})

    def trouble(self) -> None:
        """None here."""

    def first_time(self) -> bool:
        """Whether this was never asked before, by whatever process."""
        try:
            (self.workspace.store.root / f"asked-{self.own}").touch(exist_ok=False)
        except FileExistsError:
            return False
        return True


class Raises(Number):
    """Fails each time."""

    def trouble(self) -> None:
        print("about to fail")
        raise ArithmeticError("cannot count that far")


class RaisesOnce(Number):
    """Fails the first time."""

    def trouble(self) -> None:
        if self.first_time():
            raise ArithmeticError("not yet")


class Dies(Number):
    """Takes its worker with it each time."""

    def trouble(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


class DiesOnce(Number):
    """Takes its worker with it the first time."""

    def trouble(self) -> None:
        if self.first_time():
            os.kill(os.getpid(), signal.SIGKILL)


@dataclass(frozen=True)
class Meets(Number):
    """Is done only while another like it runs."""

    other: int = field(default=0)

    def trouble(self) -> None:
        self.first_time()
        deadline = time.monotonic() + 120
        while not (self.workspace.store.root / f"asked-{self.other}").exists():
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.other} never came")
            time.sleep(0.01)


def workspace_in(folder: Path) -> Workspace:
    """Return a workspace over the folder's store, of a task that nobody trains."""
    store = Store(folder / "store")
    store.root.mkdir(parents=True, exist_ok=True)
    return Workspace(store, ToyTaskConfig(rows=100, epochs=1), 0)


def made(folder: Path) -> list[int]:
    """The numbers that were made, in whatever order, one entry each time."""
    return sorted(int(line) for line in (folder / "store" / "made").read_text().split())
