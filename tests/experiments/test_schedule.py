"""A schedule is a graph and what happened so far: checked here without any worker."""

from pathlib import Path

import pytest

from diffmask.errors import ConfigError
from diffmask.experiments.executors.job import NodeFailure, NodeOutcome
from diffmask.experiments.executors.progress_view import estimate_progress
from diffmask.experiments.executors.schedule import MAX_ATTEMPTS, MAX_WORKER_DEATHS, NodeSchedule
from diffmask.workspace.node import Address
from support.nodes import Number, workspace_in

DONE = NodeOutcome((), 2.0)


@pytest.fixture
def diamond(tmp_path: Path) -> list[Number]:
    """1 <- 2, 1 <- 3, (2, 3) <- 4, and 5 by itself."""
    workspace = workspace_in(tmp_path)
    one = Number(workspace, 1)
    two, three = Number(workspace, 2, (one,)), Number(workspace, 3, (one,))
    return [one, two, three, Number(workspace, 4, (two, three)), Number(workspace, 5)]


def ready(schedule: NodeSchedule) -> list[int]:
    return [node.own for node in schedule.ready() if isinstance(node, Number)]


def settle(schedule: NodeSchedule, node: Number, result: NodeOutcome | NodeFailure = DONE) -> None:
    schedule.start(node)
    schedule.settle(node.address, result)


def test_nodes_become_ready_in_order_when_what_they_need_is_done(diamond: list[Number]) -> None:
    schedule = NodeSchedule(diamond)
    assert ready(schedule) == [1, 5]
    settle(schedule, diamond[0])
    assert ready(schedule) == [2, 3, 5]
    schedule.start(diamond[1])
    assert ready(schedule) == [3, 5]
    settle(schedule, diamond[2])
    assert ready(schedule) == [5]
    schedule.settle(diamond[1].address, DONE)
    assert ready(schedule) == [4, 5]


def test_a_node_is_not_asked_for_its_address_again_and_again(
    diamond: list[Number], monkeypatch: pytest.MonkeyPatch
) -> None:
    schedule = NodeSchedule(diamond)
    monkeypatch.setattr(Number, "address", property(lambda node: pytest.fail("asked again")))
    assert ready(schedule) == [1, 5] and len(schedule.waiting) == 5


def test_the_order_in_which_nodes_are_listed_does_not_matter(diamond: list[Number]) -> None:
    assert ready(NodeSchedule(diamond[::-1])) == [5, 1]


def test_a_need_that_is_nobodys_node_is_not_waited_for(diamond: list[Number]) -> None:
    assert ready(NodeSchedule(diamond[1:])) == [2, 3, 5]


def test_a_node_listed_twice_is_one_node(diamond: list[Number]) -> None:
    assert len(NodeSchedule([*diamond, diamond[0]]).nodes) == len(diamond)


def test_nodes_that_need_each_other_are_refused(tmp_path: Path) -> None:
    class Circular(Number):
        @property
        def needs(self) -> tuple[Address, ...]:
            return (self.address,)

    with pytest.raises(ConfigError, match="circle"):
        NodeSchedule([Circular(workspace_in(tmp_path), 1)])


def test_a_node_is_given_up_after_two_retries_with_all_that_builds_on_it(diamond: list[Number]) -> None:
    schedule = NodeSchedule(diamond)
    settle(schedule, diamond[0])
    for attempt in range(MAX_ATTEMPTS):
        assert ready(schedule) == [2, 3, 5], attempt
        settle(schedule, diamond[1], NodeFailure("no"))
    assert ready(schedule) == [3, 5]
    reasons = {verdict.node.address: verdict for verdict in schedule.given_up.values()}
    assert set(reasons) == {diamond[1].address, diamond[3].address}
    assert reasons[diamond[1].address].after is None
    assert reasons[diamond[3].address].after == diamond[1].address
    assert not schedule.is_over
    settle(schedule, diamond[2])
    settle(schedule, diamond[4])
    assert schedule.is_over


def test_workers_that_die_count_apart_from_errors(diamond: list[Number]) -> None:
    schedule = NodeSchedule(diamond)
    for _ in range(MAX_WORKER_DEATHS - 1):
        settle(schedule, diamond[0], NodeFailure("died", lost=True))
    for _ in range(MAX_ATTEMPTS - 1):
        settle(schedule, diamond[0], NodeFailure("no"))
    assert not schedule.given_up
    settle(schedule, diamond[0], NodeFailure("died", lost=True))
    assert diamond[0].address in schedule.given_up


def test_the_forecast_is_work_over_workers_but_no_less_than_the_longest_chain(diamond: list[Number]) -> None:
    schedule = NodeSchedule(diamond)
    assert estimate_progress(schedule, 2).seconds is None
    settle(schedule, diamond[4], NodeOutcome((), 2.0))
    # Four nodes of 2 s are left: 8 s for one worker; for four, three steps one after the other.
    assert estimate_progress(schedule, 1).seconds == 8.0
    assert estimate_progress(schedule, 4).seconds == 6.0
    assert next(estimate_progress(schedule, 1).lines()) == "done: 1 of 5 number"


def test_nodes_that_were_there_before_say_nothing_of_time(diamond: list[Number]) -> None:
    schedule = NodeSchedule(diamond)
    settle(schedule, diamond[4], NodeOutcome((), None))
    assert estimate_progress(schedule, 1).seconds is None
