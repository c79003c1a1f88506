"""What a run will do: so many pieces of work of each kind, so many done, about so long."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import mean

from diffmask.engine.schedule import Schedule
from diffmask.graph import Address, Node

PLURALS = {
    "task": "trainings",
    "fit": "fits",
    "importance": "importances",
    "score": "trainings on masked data",
    "measure": "measurements",
}


@dataclass(frozen=True)
class Plan:
    """What there is to do and what of it is done."""

    total: Counter[str]
    """Nodes by kind."""
    done: Counter[str]
    seconds: float | None
    """How long the rest will take, as far as finished nodes tell; none where they tell nothing."""
    unknown: int
    """Missing nodes of whose like none is finished."""

    def lines(self) -> Iterator[str]:
        """The same for people."""
        parts = [f"{self.done[kind]} of {count} {PLURALS.get(kind, kind)}" for kind, count in self.total.items()]
        yield f"done: {', '.join(parts)}"
        if self.done != self.total:
            yield self.forecast()

    def forecast(self) -> str:
        """How long the rest will take."""
        if self.seconds is None:
            return "how long it takes will be known when the first are done"
        without = f", not counting {self.unknown} pieces of a kind not seen yet" if self.unknown else ""
        return f"about {duration(self.seconds)} to go{without}"


def plan_of(schedule: Schedule, workers: int) -> Plan:
    """What the schedule has left for so many workers; nodes that run now count as still to be run."""
    left = [
        node
        for node in schedule.nodes
        if node.address not in schedule.outcomes and node.address not in schedule.given_up
    ]
    speeds = _speeds(schedule)
    expected = {node.address: speeds.get(_without_seed(node), speeds.get(node.address[0])) for node in left}
    known = {address: seconds for address, seconds in expected.items() if seconds is not None}
    rest = max(sum(known.values()) / workers, _longest_chain(left, known)) if known else None
    return Plan(
        Counter(node.address[0] for node in schedule.nodes),
        Counter(kind for kind, _ in schedule.outcomes),
        rest,
        len(expected) - len(known),
    )


def duration(seconds: float) -> str:
    """Seconds for people.

    >>> duration(42.0), duration(600.0), duration(9000.0)
    ('42 seconds', '10 minutes', '2.5 hours')
    """
    if seconds < 100:
        return f"{seconds:.0f} seconds"
    return f"{seconds / 60:.0f} minutes" if seconds < 6000 else f"{seconds / 3600:.1f} hours"


def _speeds(schedule: Schedule) -> dict[str, float]:
    """Mean seconds of finished nodes: by what they do, whatever the seed, and by kind."""
    found: dict[str, list[float]] = defaultdict(list)
    for address, outcome in schedule.outcomes.items():
        if outcome.seconds is not None:
            for key in (_without_seed(schedule[address]), address[0]):
                found[key].append(outcome.seconds)
    return {key: mean(seconds) for key, seconds in found.items()}


def _without_seed(node: Node) -> str:
    return re.sub(r"seed \d+", "", node.label)


def _longest_chain(left: list[Node], known: dict[Address, float]) -> float:
    ends: dict[Address, float] = {}
    for node in left:
        ends[node.address] = known.get(node.address, 0) + max((ends.get(need, 0) for need in node.needs), default=0)
    return max(ends.values())
