"""An experiment expands, runs what is missing, goes on after a kill, and stops at a mistake before any work."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import yaml

from diffmask.core.store import Artefact, Store, read_artefact, write_artefact
from diffmask.errors import ConfigError, InputError, RunError, StoreError
from diffmask.experiments.experiment import Experiment, FitNode, MeasureNode, TrainNode
from diffmask.experiments.runner import run_experiment
from diffmask.results.benchmark_result import load_results
from diffmask.results.records import read_jsonl
from support.small import SMALL

pytestmark = pytest.mark.filterwarnings("ignore::diffmask.errors.FitWarning")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "small.yaml"
    path.write_text(yaml.safe_dump(SMALL))
    return path


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    run_experiment(Experiment.from_dict(SMALL), folder)
    return folder


def test_the_graph_has_a_node_for_every_training_fit_and_measurement(tmp_path: Path) -> None:
    experiment = Experiment.from_dict(SMALL)
    nodes = experiment.nodes(experiment.workspaces(Store(tmp_path)))
    counts = {kind: sum(isinstance(node, kind) for node in nodes) for kind in (TrainNode, FitNode, MeasureNode)}
    assert counts == {TrainNode: 2, FitNode: 8, MeasureNode: 16}
    assert len({node.address for node in nodes}) == len(nodes)


def test_records_say_what_was_measured_at_what_cost(finished: Path) -> None:
    records = read_jsonl(finished / "records.jsonl")
    assert {record.experiment for record in records} == {"small"}
    assert {record.seed for record in records} == {0, 1}
    gradient = next(record for record in records if record.method.startswith("integrated-gradients"))
    assert gradient.site == "hidden"
    assert gradient.cost["backwards"] > 0
    erasure = [record for record in records if record.method == "exact-erasure" and record.metric == "kl_to_truth"]
    assert all(record.value == float("inf") for record in erasure)


def test_the_summary_has_one_entry_per_task_method_site_and_metric(finished: Path) -> None:
    summary = json.loads((finished / "summary.json").read_text())
    keys = [(entry["task"], entry["method"], entry["site"], entry["metric"]) for entry in summary]
    assert len(keys) == len(set(keys))
    assert all(entry["seeds"] == 2 and len(entry["interval"]) == 2 for entry in summary)
    assert {"quality", "kl_to_truth", "js_to_truth", "divergence"} <= {entry["metric"] for entry in summary}


def test_the_manifest_holds_versions_seeds_and_the_experiment_in_full(finished: Path) -> None:
    manifest = json.loads((finished / "manifest.json").read_text())
    assert manifest["seeds"] == [0, 1]
    assert "torch" in manifest["versions"]
    assert Experiment.from_dict(manifest["experiment"]) == Experiment.from_dict(SMALL)


def test_a_run_has_a_result_per_task_compared_at_the_last_site(finished: Path) -> None:
    (result,) = load_results(finished)
    assert [metric.name for metric in result.metrics][:2] == ["kl_to_truth", "js_to_truth"]
    assert result.verdict and result.texts
    hidden = [
        value
        for record in read_jsonl(finished / "records.jsonl")
        if record.method.startswith("surrogate-mask") and (record.site, record.metric) == ("hidden", "js_to_truth")
        for value in record.per_row
    ]
    (method,) = (method for method in result.methods if method.name == "surrogate-mask")
    assert method.estimates["js_to_truth"].mean == pytest.approx(sum(hidden) / len(hidden))
    page = (finished / "report.html").read_text()
    assert "All numbers, by site" in page and result.verdict[-1].split(":")[0] in page


def test_a_second_run_measures_nothing_again(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = (finished / "records.jsonl").read_text()

    def refuse(*arguments: object) -> None:
        raise AssertionError("everything was there")

    monkeypatch.setattr("diffmask.core.store.write_artefact", refuse)
    run_experiment(Experiment.from_dict(SMALL), finished)
    assert (finished / "records.jsonl").read_text() == before


def numbers(folder: Path) -> list[tuple[str, str, str, float, int]]:
    found = read_jsonl(folder / "records.jsonl")
    return [(record.method, record.site, record.metric, record.value, record.seed) for record in found]


@pytest.mark.parametrize("engine", ["serial", "processes"])
def test_killed_and_run_again_it_goes_on_and_gives_the_same_numbers(
    engine: str, file: Path, tmp_path: Path, finished: Path
) -> None:
    command = [sys.executable, "-m", "diffmask", "run", str(file), "--out", str(tmp_path / "run"), "--engine", engine]
    store = tmp_path / "run" / "store"
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not list(store.glob("fit/*")):
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    kept = {path: path.stat().st_mtime_ns for path in store.glob("*/*/artefact.json")}
    assert kept
    subprocess.run(command, check=True, capture_output=True)
    assert all(path.stat().st_mtime_ns == when for path, when in kept.items())
    assert numbers(tmp_path / "run") == numbers(finished)


def test_what_fails_is_said_and_the_rest_is_measured_and_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object) -> None:
        raise ArithmeticError("no such erasure")

    monkeypatch.setattr("diffmask.methods.leave_one_out.ExactErasure.build", refuse)
    small = {**SMALL, "seeds": [0], "methods": ["random", "exact-erasure"]}
    with pytest.raises(
        RunError, match=r"1 failed; 2 that build.*\n  fit exact-erasure on toy.*: ArithmeticError: no such"
    ) as told:
        run_experiment(Experiment.from_dict(small), tmp_path)
    assert "log: " in str(told.value)
    assert {record.method for record in read_jsonl(tmp_path / "records.jsonl")} == {"model", "random"}
    assert "random" in (tmp_path / "report.html").read_text()
    monkeypatch.undo()
    run_experiment(Experiment.from_dict(small), tmp_path)
    assert {record.method for record in read_jsonl(tmp_path / "records.jsonl")} == {"model", "random", "exact-erasure"}


def test_a_damaged_artefact_is_built_again_with_the_same_numbers(tmp_path: Path) -> None:
    small = {**SMALL, "seeds": [0]}
    run_experiment(Experiment.from_dict(small), tmp_path)
    before = numbers(tmp_path)
    for artefact in (tmp_path / "store").glob("*/*/tensors.safetensors"):
        artefact.write_bytes(artefact.read_bytes()[:-1])
    run_experiment(Experiment.from_dict(small), tmp_path)
    assert numbers(tmp_path) == before


def test_an_artefact_of_an_older_explainer_is_built_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    small = {**SMALL, "seeds": [0], "methods": ["random"]}
    run_experiment(Experiment.from_dict(small), tmp_path)
    before = numbers(tmp_path)
    (fit,) = (tmp_path / "store" / "fit").iterdir()
    known = read_artefact(fit, "fit", fit.name).values
    shutil.rmtree(tmp_path / "store" / "explain")
    shutil.rmtree(fit)
    write_artefact(fit, "fit", fit.name, Artefact({"unknown": torch.zeros(1)}, known))
    run_experiment(Experiment.from_dict(small), tmp_path)
    assert "the saved fit does not suit RandomExplainer" in caplog.text
    assert numbers(tmp_path) == before


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sedes": [0]}, r"small\.yaml: 'sedes' is not part of an experiment; nearest: 'seeds'"),
        ({"methods": ["botleneck"]}, r"methods\[0\]: there is no method 'botleneck'; nearest: 'bottleneck'"),
        (
            {"methods": [{"name": "diffmask", "margim": 1}]},
            r"methods\[0\]: 'margim' is not an option.*nearest: 'margin'",
        ),
        ({"methods": [{"name": "diffmask", "margin": "wide"}]}, r"methods\[0\]\.margin: .*found 'wide'"),
        ({"tasks": "toy"}, r"'tasks' is a list of at least one task; found 'toy'"),
        ({"seeds": ["a"]}, r"'seeds' is a list of whole numbers"),
    ],
)
def test_a_mistake_stops_before_any_work_with_its_place(
    file: Path, tmp_path: Path, change: dict[str, object], message: str
) -> None:
    file.write_text(yaml.safe_dump({**SMALL, **change}))
    with pytest.raises(ConfigError, match=message):
        Experiment.read(file)


def test_overrides_reach_deep_values(file: Path) -> None:
    changed = Experiment.read(file, ["seeds=[4]", "methods.0.margin=0.2", "methods.1.name=uniform", "tasks.0.rows=300"])
    assert changed.seeds == (4,)
    assert changed.methods[0].to_dict()["margin"] == 0.2
    assert changed.methods[1].name == "uniform"
    assert changed.tasks[0].to_dict()["rows"] == 300


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("seeds", "write key=value"),
        ("method.0.margin=1", "there is no 'method'; nearest: 'methods'"),
        ("methods.9.margin=1", "there is no '9'"),
        ("methods.0.margn=1", "nearest: 'margin'"),
    ],
)
def test_an_override_that_leads_nowhere_is_refused(file: Path, override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Experiment.read(file, [override])


def test_a_file_that_is_missing_or_not_yaml_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"there is no file .*none\.yaml"):
        Experiment.read(tmp_path / "none.yaml")
    (tmp_path / "bad.yaml").write_text("a: [")
    with pytest.raises(ConfigError, match="not YAML"):
        Experiment.read(tmp_path / "bad.yaml")


@pytest.mark.parametrize(
    "shipped", sorted((Path(__file__).parent.parent / "experiments").glob("*.yaml")), ids=lambda path: path.stem
)
def test_every_experiment_that_is_shipped_can_be_read(shipped: Path) -> None:
    assert Experiment.read(shipped).methods


@pytest.mark.parametrize("inside", [".", "deeper"])
def test_a_folder_behind_a_symlink_to_itself_is_refused(inside: str, tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(StoreError, match="is not a path that can be used"):
        run_experiment(Experiment.from_dict(SMALL), tmp_path / "loop" / inside)
