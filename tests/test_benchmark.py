"""A benchmark of a small model, from its plan to its board."""

from pathlib import Path

import pytest
import torch

import diffmask as dm
from diffmask.board import Board
from diffmask.tasks.toy import CountingTask

torch.set_num_threads(1)
METHODS = ["gradient", {"name": "diffmask", "mask": "states", "steps": 3, "batch_size": 32}, "erasure"]


def silent(text: str) -> None:
    """Nobody is told."""


@pytest.fixture(scope="module")
def folder(toy_task: CountingTask, tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("board")
    dm.benchmark(toy_task, METHODS, texts=40, seeds=(0, 1), out=home, say=silent)
    return home


def test_the_board_has_every_method_and_a_random_order(folder: Path) -> None:
    board = Board.load(folder)
    assert [method.name for method in board.methods] == ["random", "gradient", "diffmask", "erasure"]
    assert [measure.name for measure in board.measures] == ["comprehensiveness", "sufficiency"]
    assert all(set(method.estimates) == {"comprehensiveness", "sufficiency"} for method in board.methods)
    assert all(method.estimates["sufficiency"].rows == 40 for method in board.methods)
    assert len(board.comparisons) == 12
    assert len(board.curves) == 8 and list(board.curves[0].x) == [0.05, 0.1, 0.2, 0.5]
    print(board)
