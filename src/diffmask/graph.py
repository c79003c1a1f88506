"""The pieces of work an experiment is made of: each makes one artefact, and whatever it needs that is not there yet."""

from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass, field

from diffmask.bench import Bench
from diffmask.evaluation import Evaluation
from diffmask.explainer import Method
from diffmask.part import Part
from diffmask.recipe import digest_of
from diffmask.record import Record, record_from
from diffmask.store import Artefact

Address = tuple[str, str]
"""Kind and digest of an artefact."""


@dataclass(frozen=True)
class Node(ABC):
    """One piece of work on one task at one seed: a small value that travels to whoever does it."""

    bench: Bench = field(repr=False)

    @property
    @abstractmethod
    def address(self) -> Address:
        """Kind and digest of the artefact it makes."""

    @property
    @abstractmethod
    def label(self) -> str:
        """What it does, for people."""

    @abstractmethod
    def run(self) -> list[Record]:
        """Make the artefact unless it is there; the numbers it holds, if any."""

    @property
    def needs(self) -> tuple[Address, ...]:
        """Artefacts it builds on. Those of other nodes are waited for; any other it makes itself."""
        return ()

    @property
    def place(self) -> str:
        """Task and seed, for people."""
        return f"{self.bench.recipe.label}, seed {self.bench.seed}"

    def is_done(self) -> bool:
        """Whether its artefact is there."""
        return self.bench.store.has(*self.address)


@dataclass(frozen=True)
class TrainNode(Node):
    """Train the task's model, and see how good it is."""

    @property
    def address(self) -> Address:
        """The trained task."""
        return "task", self.bench.task_digest()

    @property
    def label(self) -> str:
        """Task and seed."""
        return f"train {self.place}"

    def run(self) -> list[Record]:
        """The task's own score of the unmasked model on held-out rows."""
        task = self.bench.task()
        held_out = task.data["test"]
        return [
            Record(
                task=self.bench.recipe.label,
                method="model",
                site="",
                metric="quality",
                value=task.quality(held_out),
                seed=self.bench.seed,
                rows=len(held_out),
                digest=self.bench.task_digest(),
            )
        ]


@dataclass(frozen=True)
class FitNode(Node):
    """Fit a method to the task."""

    method: Method

    @property
    def address(self) -> Address:
        """The fitted explainer."""
        return "fit", self.bench.learned_digest(self.method)

    @property
    def label(self) -> str:
        """Method, task and seed."""
        return f"fit {self.method.label} on {self.place}"

    @property
    def needs(self) -> tuple[Address, ...]:
        """The trained task."""
        return (("task", self.bench.task_digest()),)

    def run(self) -> list[Record]:
        """Nothing is measured here."""
        self.bench.explainer(self.method)
        return []


@dataclass(frozen=True)
class PartNode(Node):
    """Make a part of an evaluation."""

    part: Part

    @property
    def address(self) -> Address:
        """The part's."""
        return self.part.address

    @property
    def label(self) -> str:
        """The part's."""
        return self.part.label

    @property
    def needs(self) -> tuple[Address, ...]:
        """What the part builds on."""
        return self.part.needs

    def run(self) -> list[Record]:
        """The evaluation reads what is made here."""
        self.part.make()
        return []


@dataclass(frozen=True)
class MeasureNode(Node):
    """Run an evaluation of a method."""

    method: Method
    evaluation: Evaluation

    @property
    def address(self) -> Address:
        """The records."""
        return "measure", digest_of(["measure", self.bench.fit_digest(self.method), self.evaluation.digest])

    @property
    def label(self) -> str:
        """Evaluation, method, task and seed."""
        return f"{self.evaluation.label} of {self.method.label} on {self.place}"

    @property
    def needs(self) -> tuple[Address, ...]:
        """The fitted explainer, and the evaluation's parts."""
        parts = self.evaluation.parts(self.method, self.bench)
        return (("fit", self.bench.learned_digest(self.method)), *(part.address for part in parts))

    def run(self) -> list[Record]:
        """The evaluation's numbers."""

        def make() -> Artefact:
            return Artefact(
                {}, {"records": [asdict(record) for record in self.evaluation.run(self.method, self.bench)]}
            )

        kept = self.bench.store.get_or_make(*self.address, make)
        return [record_from(values) for values in kept.values["records"]]
