"""An `Experiment`: tasks x methods x metrics x seeds, expanded to nodes, each of which makes one artefact."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from diffmask.core.config import digest_of, parse, parse_yaml
from diffmask.core.explainer import Method
from diffmask.core.store import Artefact, Store
from diffmask.core.task import TaskConfig
from diffmask.datasets.tables import read_lines
from diffmask.errors import ConfigError, nearest
from diffmask.metrics.metric import Metric
from diffmask.results.records import Record, record_from
from diffmask.workspace.node import Address, Node
from diffmask.workspace.workspace import InMemoryTaskConfig, Workspace


@dataclass(frozen=True)
class TrainNode(Node):
    """Train the task's model and score it on the test rows."""

    @property
    def address(self) -> Address:
        """Address of the trained task."""
        return "task", self.workspace.task_digest()

    @property
    def label(self) -> str:
        """Task and seed."""
        return f"train {self.task_label}"

    def run(self) -> list[Record]:
        """Train the model, and return its score on the test rows."""
        task = self.workspace.task()
        held_out = task.data["test"]
        return [
            Record(
                task=self.workspace.task_config.label,
                method="model",
                site="",
                metric="quality",
                value=task.score(held_out),
                seed=self.workspace.seed,
                rows=len(held_out),
                digest=self.workspace.task_digest(),
            )
        ]


@dataclass(frozen=True)
class FitNode(Node):
    """Fit a method to the task."""

    method: Method

    @property
    def address(self) -> Address:
        """Address of the fitted explainer."""
        return "fit", self.workspace.explainer_key(self.method)

    @property
    def label(self) -> str:
        """Method, task and seed."""
        return f"fit {self.method.label} on {self.task_label}"

    @property
    def needs(self) -> tuple[Address, ...]:
        """Address of the trained task."""
        return (("task", self.workspace.task_digest()),)

    def run(self) -> list[Record]:
        """Fit the explainer."""
        self.workspace.explainer(self.method)
        return []


@dataclass(frozen=True)
class ExplainNode(Node):
    """Explain a split by a method."""

    method: Method
    split: str

    @property
    def address(self) -> Address:
        """Address of the attributions."""
        return "explain", self.workspace.explain_digest(self.method, self.split)

    @property
    def label(self) -> str:
        """Method, split, task and seed."""
        return f"explain '{self.split}' by {self.method.label} on {self.task_label}"

    @property
    def needs(self) -> tuple[Address, ...]:
        """Address of the fitted explainer."""
        return (FitNode(self.workspace, self.method).address,)

    def run(self) -> list[Record]:
        """Explain the split, shard by shard if the workspace has shards."""
        self.workspace.explained(self.method, self.split)
        return []


@dataclass(frozen=True)
class MeasureNode(Node):
    """Compute a metric of a method."""

    method: Method
    metric: Metric
    split: str | None = None
    """Split that `ExplainNode` explains first; None if the metric explains what it needs."""

    @property
    def address(self) -> Address:
        """Address of the records."""
        return "measure", digest_of(["measure", self.workspace.run_key(self.method), self.metric.digest])

    @property
    def label(self) -> str:
        """Metric, method, task and seed."""
        return f"{self.metric.label} of {self.method.label} on {self.task_label}"

    @property
    def needs(self) -> tuple[Address, ...]:
        """Addresses of the explainer, of the attributions and of the metric's own nodes."""
        fitted = FitNode(self.workspace, self.method).address
        explained = () if self.split is None else (ExplainNode(self.workspace, self.method, self.split).address,)
        return fitted, *explained, *(node.address for node in self.metric.nodes(self.method, self.workspace))

    def run(self) -> list[Record]:
        """Compute the metric, and return its records."""

        def make() -> Artefact:
            return Artefact(
                {}, {"records": [asdict(record) for record in self.metric.run(self.method, self.workspace)]}
            )

        artefact = self.workspace.store.get_or_make(*self.address, make)
        return [record_from(values) for values in artefact.values["records"]]


KEYS = ("name", "seeds", "tasks", "methods", "metrics")


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """Tasks x methods x metrics x seeds."""

    name: str
    tasks: tuple[TaskConfig, ...]
    methods: tuple[Method, ...]
    metrics: tuple[Metric, ...]
    seeds: tuple[int, ...] = (0,)
    explained_split: str | None = None
    """Split that every method explains before it is measured; None leaves that to the metrics."""
    shard_size: int | None = None
    """Rows per shard when a split is explained; None explains it in one piece."""

    @staticmethod
    def read(path: str | Path, overrides: Sequence[str] = ()) -> "Experiment":
        """Read an experiment from YAML, with `key=value` overrides such as `seeds=[0,1]` or `methods.0.margin=0.2`."""
        file = Path(path)
        node = parse_yaml("".join(read_lines(file)), str(file))
        if not isinstance(node, Mapping):
            raise ConfigError(f"{file}: an experiment is a mapping with the keys {', '.join(KEYS)}")
        changed = dict(node)
        for override in overrides:
            _override(changed, override)
        return Experiment.from_dict(changed, where=file.name)

    @staticmethod
    def from_dict(node: Mapping[str, Any], where: str = "experiment") -> "Experiment":
        """Parse an experiment from plain values; an error names the place of the mistake."""
        for key in node:
            if key not in KEYS:
                raise ConfigError(f"{where}: '{key}' is not part of an experiment; {nearest(str(key), KEYS)}")
        return Experiment(
            name=str(node.get("name", where)),
            seeds=_seeds(node.get("seeds", [0]), where),
            tasks=_configs("task", node, where),
            methods=_configs("method", node, where),
            metrics=_configs("metric", node, where),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return plain values: the YAML file with every default."""
        lists = {name: [config.to_dict() for config in getattr(self, name)] for name in ("tasks", "methods", "metrics")}
        return {"name": self.name, "seeds": list(self.seeds), **lists}

    def workspaces(self, store: Store) -> list[Workspace]:
        """Return one workspace per task and seed."""
        return [
            Workspace(store, config, seed, shard_size=self.shard_size) for config in self.tasks for seed in self.seeds
        ]

    def nodes(self, workspaces: Sequence[Workspace]) -> list[Node]:
        """Return the nodes of some workspaces in an order that can be run: each after those it needs."""
        return [node for workspace in workspaces for node in self._nodes_of(workspace)]

    def _nodes_of(self, workspace: Workspace) -> list[Node]:
        split = self.explained_split
        # A task in memory needs no training, and its test rows may have no labels to score by.
        trained = [] if isinstance(workspace.task_config, InMemoryTaskConfig) else [TrainNode(workspace)]
        fits = [FitNode(workspace, method) for method in self.methods]
        explained = [] if split is None else [ExplainNode(workspace, method, split) for method in self.methods]
        measures = [MeasureNode(workspace, method, metric, split) for metric in self.metrics for method in self.methods]
        return [*trained, *fits, *explained, *self._metric_nodes(workspace), *measures]

    def _metric_nodes(self, workspace: Workspace) -> list[Node]:
        """Return the nodes that the metrics ask for; a node that several metrics or methods share appears once."""
        nodes: dict[Address, Node] = {}
        for metric in self.metrics:
            for method in self.methods:
                for node in metric.nodes(method, workspace):
                    nodes.setdefault(node.address, node)
        return list(nodes.values())


def _configs(kind: str, node: Mapping[str, Any], where: str) -> tuple[Any, ...]:
    listed = node.get(f"{kind}s", [])
    if not isinstance(listed, list) or not listed:
        raise ConfigError(f"{where}: '{kind}s' is a list of at least one {kind}; found {listed!r}")
    return tuple(parse(kind, item, f"{where}: {kind}s[{index}]") for index, item in enumerate(listed))


def _seeds(node: Any, where: str) -> tuple[int, ...]:
    seeds = [node] if isinstance(node, int) else node
    if not isinstance(seeds, list) or not seeds or not all(type(seed) is int and seed >= 0 for seed in seeds):
        raise ConfigError(f"{where}: 'seeds' is a list of whole numbers from 0; found {node!r}")
    return tuple(seeds)


def _override(node: dict[str, Any], override: str) -> None:
    """Set one value deep in the experiment: `a.b.0.c=value`, the value read as YAML."""
    path, separator, text = override.partition("=")
    if not separator:
        raise ConfigError(f"'{override}' is not an override; write key=value, for example seeds=[0,1]")
    *parents, last = path.split(".")
    here: Any = node
    for step in parents:
        here = _child(here, step, override)
    if isinstance(here, list):
        _child(here, last, override)
        here[int(last)] = parse_yaml(text, f"override '{override}'")
    elif isinstance(here, dict):
        here[last] = parse_yaml(text, f"override '{override}'")
    else:
        raise ConfigError(f"override '{override}': '{parents[-1]}' has no parts")


def _child(here: Any, step: str, override: str) -> Any:
    if isinstance(here, list) and step.isdigit() and int(step) < len(here):
        if isinstance(here[int(step)], str):
            here[int(step)] = {"name": here[int(step)]}
        return here[int(step)]
    if isinstance(here, dict) and step in here:
        return here[step]
    known = map(str, here) if isinstance(here, dict) else map(str, range(len(here) if isinstance(here, list) else 0))
    raise ConfigError(f"override '{override}': there is no '{step}'; {nearest(step, known)}")
