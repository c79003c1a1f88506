"""Schedule of nodes: which are waiting, running, done or given up. It knows nothing about workers."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from diffmask.errors import ConfigError
from diffmask.experiments.executors.job import NodeFailure, NodeOutcome
from diffmask.workspace.node import Address, Node

MAX_ATTEMPTS = 3
"""Attempts at a node before it is given up."""
MAX_WORKER_DEATHS = 5
"""Workers that may die while they run a node before it is given up."""


@dataclass(frozen=True)
class FailedNode:
    """Node that was given up, with the reason."""

    node: Node
    why: str
    after: Address | None = None
    """Address of the failed node that it needs; None if it failed itself."""


@dataclass
class _Attempts:
    failed: int = 0
    lost: int = 0

    def count(self, failure: NodeFailure) -> bool:
        """Count a failure, and return whether the node is given up."""
        self.lost += failure.lost
        self.failed += not failure.lost
        return failure.permanent or self.failed >= MAX_ATTEMPTS or self.lost >= MAX_WORKER_DEATHS


@dataclass
class NodeSchedule:
    """State of every node: waiting, running, done or given up. A node runs after those that it needs."""

    nodes: Sequence[Node]
    outcomes: dict[Address, NodeOutcome] = field(default_factory=dict)
    running: dict[Address, float] = field(default_factory=dict)
    """Start of every running node, by the monotonic clock."""
    given_up: dict[Address, FailedNode] = field(default_factory=dict)
    _attempts: dict[Address, _Attempts] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Drop nodes that are listed twice, and refuse circular needs."""
        self._by_address = {node.address: node for node in self.nodes}
        self.nodes = list(self._by_address.values())
        self._needs = {
            address: tuple(need for need in node.needs if need in self._by_address)
            for address, node in self._by_address.items()
        }
        _refuse_circles(self._needs)

    def __getitem__(self, address: Address) -> Node:
        return self._by_address[address]

    @property
    def waiting(self) -> list[Node]:
        """Nodes that have not started, in order."""
        return [self[address] for address in self._unsettled()]

    def _unsettled(self) -> list[Address]:
        # By stored addresses: a node would compute its own again, from all artefacts that it needs.
        settled = (self.outcomes, self.running, self.given_up)
        return [address for address in self._by_address if not any(address in part for part in settled)]

    @property
    def is_over(self) -> bool:
        """Whether every node is done or given up."""
        return len(self.outcomes) + len(self.given_up) == len(self.nodes)

    def ready(self) -> list[Node]:
        """Return the nodes whose needs are done, in order."""
        return [
            self[address]
            for address in self._unsettled()
            if all(need in self.outcomes for need in self._needs[address])
        ]

    def start(self, node: Node) -> None:
        """Mark a node as running."""
        self.running[node.address] = time.monotonic()

    def settle(self, address: Address, result: NodeOutcome | NodeFailure) -> None:
        """Record the end of an attempt: done, to be tried again, or given up with all nodes that need it."""
        del self.running[address]
        if isinstance(result, NodeOutcome):
            self.outcomes[address] = result
        elif self._attempts.setdefault(address, _Attempts()).count(result):
            self._give_up(address, FailedNode(self[address], result.why))

    def _give_up(self, address: Address, verdict: FailedNode) -> None:
        self.given_up[address] = verdict
        for other, needs in self._needs.items():
            if address in needs and other not in self.given_up:
                why = f"builds on what failed: {self[address].label}"
                self._give_up(other, FailedNode(self[other], why, after=verdict.after or address))


def _refuse_circles(needs: Mapping[Address, Sequence[Address]]) -> None:
    left = dict(needs)
    while left:
        free = [address for address, wanted in left.items() if not any(need in left for need in wanted)]
        if not free:
            raise ConfigError(f"nodes need each other in a circle: {', '.join(map('/'.join, left))}")
        for address in free:
            del left[address]
