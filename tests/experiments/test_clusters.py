"""Dask on loopback and a real Slurm: the same numbers as one process, whoever is killed on the way."""

import os
import subprocess
from pathlib import Path

import pytest

from diffmask.experiments.executors.dask import DaskExecutor
from support import slurm
from support.kills import artefacts, command_for, grid, numbers, run_alone, run_with_kills
from support.nodes import DiesOnce, Number, Raises, made, workspace_in

pytest.importorskip("distributed", reason="the extra [cluster] is not installed")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]


@pytest.fixture(scope="module")
def experiment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return grid(tmp_path_factory.mktemp("grid") / "grid.yaml", seeds=2)


@pytest.fixture(scope="module")
def alone(experiment: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("alone")
    run_alone(experiment, folder)
    return folder


def test_a_job_whose_dask_worker_was_killed_is_done_by_another_and_what_fails_is_left_out(tmp_path: Path) -> None:
    workspace = workspace_in(tmp_path)
    one, two, three = Number(workspace, 1), DiesOnce(workspace, 2), Raises(workspace, 3)
    ran = DaskExecutor(workers=2).run(
        [one, two, three, Number(workspace, 4, (one, two)), Number(workspace, 5, (three,))], tmp_path
    )
    assert {record.metric: record.value for record in ran.records} == {"1": 1.0, "2": 2.0, "4": 7.0}
    assert [failure.why for failure in ran.failures if failure.after is None] == [
        "ArithmeticError: cannot count that far"
    ]
    assert made(tmp_path) == [1, 2, 4]


def test_dask_gives_the_same_numbers_whoever_is_killed(experiment: Path, alone: Path, tmp_path: Path) -> None:
    command = [*command_for(experiment, tmp_path), "--engine", "dask", "--workers", "2"]
    killed = run_with_kills(command, tmp_path, ["worker", "driver"], 0, os.environ)
    assert not killed.lost and killed.starts == 2
    assert numbers(tmp_path) == numbers(alone)
    assert artefacts(tmp_path / "store") == artefacts(alone / "store")


@pytest.mark.skipif(bool(slurm.missing()), reason=slurm.missing() or "it is there")
def test_slurm_gives_the_same_numbers_whoever_is_killed(experiment: Path, alone: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    options = "--engine slurm --queue main --memory 2GB --jobs 2 --walltime 00:30:00 --interface lo"
    with slurm.slurm(tmp_path / "slurm") as environment:
        command = [*command_for(experiment, folder), *options.split()]
        killed = run_with_kills(command, folder, ["worker", "driver"], 0, environment)
        elsewhere = [*command_for(experiment, tmp_path / "refused"), *options.replace("main", "none").split()]
        refused = subprocess.run(elsewhere, env=environment, capture_output=True, text=True, timeout=600)
    assert not killed.lost and killed.starts == 2
    assert numbers(folder) == numbers(alone)
    assert artefacts(folder / "store") == artefacts(alone / "store")
    assert refused.returncode == 2
    assert "Slurm refuses the job" in refused.stderr and "invalid partition" in refused.stderr
