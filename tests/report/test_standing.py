"""Best is only who was shown to be best."""

from dataclasses import replace

import pytest

from diffmask.report.leaderboard import standings
from diffmask.results.benchmark_result import BenchmarkResult, Comparison
from support.board import synthetic_board


def pair(first: str, second: str, winner: str | None) -> Comparison:
    return Comparison(
        metric="flip", first=first, second=second, difference=0.0, low=0.0, high=0.0, p_value=0.5, winner=winner
    )


def board_with(*comparisons: Comparison) -> BenchmarkResult:
    """Random, attention and gradient on `flip`, where lower is better; gradient has the best mean."""
    board = synthetic_board(texts=1, methods=3)
    flip = next(metric for metric in board.metrics if metric.name == "flip")
    return replace(board, metrics=[flip], comparisons=comparisons)


@pytest.mark.parametrize(
    ("second", "marks"),
    [("gradient", ["", "", "best"]), (None, ["", "tie", "tie"])],
    ids=["won", "tied"],
)
def test_the_leader_is_best_only_if_it_beats_everyone(second: str | None, marks: list[str]) -> None:
    board = board_with(
        pair("random", "attention", "attention"),
        pair("random", "gradient", "gradient"),
        pair("attention", "gradient", second),
    )
    standing = standings(board)["flip"]
    assert standing.leader == "gradient"
    assert [standing.mark(name) for name in ("random", "attention", "gradient")] == marks
    assert standing.chance == frozenset()


def test_what_was_not_compared_is_not_decided() -> None:
    standing = standings(board_with())["flip"]
    assert standing.tied == {"attention", "gradient"}
    assert standing.chance == {"attention", "gradient"}
    assert [standing.mark(name) for name in ("random", "attention", "gradient")] == ["", "", ""]


def test_a_method_that_loses_to_random_is_not_above_chance() -> None:
    board = board_with(pair("random", "attention", "random"), pair("random", "gradient", "gradient"))
    assert standings(board)["flip"].chance == {"attention"}


def test_one_method_alone_is_not_the_best() -> None:
    board = synthetic_board(texts=1, methods=1)
    assert standings(board)["flip"].mark("random") == ""
