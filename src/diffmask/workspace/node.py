"""A `Part` of an evaluation: work that is worth doing by itself, beside other parts, and is kept."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field

from diffmask.core.explainer import Method
from diffmask.workspace.workspace import Workspace


@dataclass(frozen=True)
class Part(ABC):
    """One artefact of an evaluation, on one task at one seed; what it builds on it makes where it is missing."""

    bench: Workspace = field(repr=False)

    @property
    @abstractmethod
    def address(self) -> tuple[str, str]:
        """Kind and digest of the artefact."""

    @property
    @abstractmethod
    def needs(self) -> tuple[tuple[str, str], ...]:
        """Addresses of the artefacts that it builds on."""

    @property
    @abstractmethod
    def label(self) -> str:
        """What it does, for people."""

    @property
    def trains(self) -> bool:
        """Whether a model is trained for it."""
        return False

    @property
    def explained_by(self) -> Method | None:
        """The method that explains every row for it, where one does."""
        return None

    @abstractmethod
    def make(self) -> None:
        """Make the artefact, unless it is there."""
