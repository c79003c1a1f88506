"""Units of work: each node makes one artefact on one task at one seed."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field

from diffmask.core.explainer import Method
from diffmask.results.records import Record
from diffmask.workspace.workspace import Workspace

Address = tuple[str, str]
"""Kind and digest of an artefact."""


@dataclass(frozen=True)
class Node(ABC):
    """Unit of work that makes one artefact. A small value, so that it can be sent to a worker.

    A node makes missing artefacts that it needs, unless another node of the experiment makes them.
    """

    workspace: Workspace = field(repr=False)

    @property
    @abstractmethod
    def address(self) -> Address:
        """Kind and digest of the artefact that the node makes."""

    @property
    @abstractmethod
    def label(self) -> str:
        """Readable description, such as "fit diffmask on toy, seed 0"."""

    @abstractmethod
    def run(self) -> list[Record]:
        """Make the artefact unless it exists, and return the records that it holds, if any."""

    @property
    def needs(self) -> tuple[Address, ...]:
        """Addresses of the artefacts that the node builds on. An executor waits for those of other nodes."""
        return ()

    @property
    def trains(self) -> bool:
        """Whether the node trains a model. The forecast counts such nodes."""
        return False

    @property
    def explained_by(self) -> Method | None:
        """Method that explains every row of the task in this node, or None."""
        return None

    @property
    def task_label(self) -> str:
        """Readable task and seed."""
        return f"{self.workspace.task_config.label}, seed {self.workspace.seed}"

    def is_done(self) -> bool:
        """Return whether the artefact exists and is complete."""
        return self.workspace.store.has(*self.address)
