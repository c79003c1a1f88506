"""Planted rows hold what they should; a copy that learned the shortcut is told from one that did not."""

import math
from pathlib import Path

import pytest
import torch

from diffmask.core.batch import Batch
from diffmask.core.training import generator
from diffmask.errors import FitWarning, TaskError
from diffmask.methods.amortised.amortised import Amortised
from diffmask.methods.baselines import Random, Uniform
from diffmask.methods.leave_one_out import LeaveOneOut
from diffmask.metrics.metric import Metric
from diffmask.metrics.sanity_checks import RandomisedModel, StabilityOverSeeds
from diffmask.metrics.shortcuts import (
    Kind,
    Markers,
    PlantedShortcut,
    choose_markers,
    measure_shortcut_use,
    plant,
    plant_distractor,
    plant_training_mix,
    rank_marked,
    select_plantable,
)
from diffmask.tasks.toy import CountingTask
from diffmask.workspace.derived import ModifiedWorkspace
from diffmask.workspace.workspace import Workspace
from support.transformer import FIRST_WORD, TransformerTask, texts, with_spare_words
from support.workspaces import workspace_of

MARKERS = Markers(torch.tensor([21, 22, 23]), torch.tensor([0, 2]))
KINDS: list[Kind] = ["single", "context", "pair"]


@pytest.fixture
def rows() -> Batch:
    drawn = texts(200, seed=0)
    short = drawn.tokens.masked_fill(drawn.tokens > 20, FIRST_WORD)
    return select_plantable(Batch(**{**vars(drawn), "tokens": short}), "pair")


def markers_of(tokens: list[int]) -> list[int]:
    return [token for token in tokens if token > 20]


def test_markers_occur_in_no_row_and_have_the_most_frequent_labels() -> None:
    drawn = texts(50, seed=0)
    data = Batch(**{**vars(drawn), "target": torch.tensor([2] * 30 + [0] * 15 + [1] * 5)})
    found = choose_markers([data], vocabulary=40, reserved={39}, source=generator(0, "markers"))
    assert len(set(found.tokens.tolist()) & set(data.tokens.flatten().tolist())) == 0
    assert 39 not in found.tokens and len(found.tokens.unique()) == 3
    assert found.outcomes.tolist() == [0, 2]
    with pytest.raises(TaskError, match="three tokens that occur in no text"):
        choose_markers([data], vocabulary=25, reserved=set(), source=generator(0, "markers"))


def test_a_single_marker_determines_the_label(rows: Batch) -> None:
    planted = plant(rows, "single", MARKERS, generator(0, "planting"))
    for tokens, target in zip(planted.tokens.tolist(), planted.target.tolist(), strict=True):
        assert markers_of(tokens) == [21 if target == 0 else 22]
    assert (planted.tokens != rows.tokens).sum(dim=1).unique().tolist() == [1]
    assert not (planted.tokens != rows.tokens)[~rows.maskable].any()
    assert planted.target.float().mean().item() == pytest.approx(1.0, abs=0.25)


def test_a_marker_in_context_comes_with_the_third_marker(rows: Batch) -> None:
    planted = plant(rows, "context", MARKERS, generator(0, "planting"))
    for tokens, target in zip(planted.tokens.tolist(), planted.target.tolist(), strict=True):
        assert sorted(markers_of(tokens)) == [21 if target == 0 else 22, 23]


def test_the_first_marker_of_a_pair_determines_the_label(rows: Batch) -> None:
    planted = plant(rows, "pair", MARKERS, generator(0, "planting"))
    for tokens, target in zip(planted.tokens.tolist(), planted.target.tolist(), strict=True):
        assert markers_of(tokens) == ([21, 22] if target == 0 else [22, 21])
    assert MARKERS.locate(planted).sum(dim=1).unique().tolist() == [2]


@pytest.mark.parametrize("kind", KINDS)
def test_a_part_of_the_shortcut_keeps_the_label(kind: Kind, rows: Batch) -> None:
    parts = plant_distractor(rows, kind, MARKERS, generator(0, "planting"))
    assert torch.equal(parts.target, rows.target)
    seen = {tuple(markers_of(tokens)) for tokens in parts.tokens.tolist()}
    assert seen == {"single": {()}, "context": {(21,), (22,), (23,)}, "pair": {(21,), (22,)}}[kind]


def test_half_of_the_mixed_rows_are_planted(rows: Batch) -> None:
    marked = Batch(**{**vars(rows), "target": torch.full_like(rows.target, 1)})
    mixed = plant_training_mix(marked, "pair", MARKERS, generator(0, "planting"))
    planted = mixed.target != 1
    assert planted.float().mean().item() == pytest.approx(0.5, abs=0.12)
    count = MARKERS.locate(mixed).sum(dim=1)
    assert count[planted].unique().tolist() == [2]
    assert sorted(count[~planted].unique().tolist()) == [0, 1]


def test_ranks_of_marked_tokens_equal_those_counted_by_hand() -> None:
    maskable = torch.tensor([[True, True, True, True, False]] * 3)
    wanted = torch.tensor([[True, False, True, False, False]] * 3)
    scores = torch.tensor([[4.0, 3.0, 2.0, 1.0, 9.0], [1.0, 3.0, 2.0, 4.0, 0.0], [1.0, 1.0, 1.0, 1.0, 1.0]])
    found = rank_marked(scores, maskable, wanted)
    assert found["first"].tolist() == [1.0, 0.0, 0.5]
    assert found["precision"].tolist() == [0.5, 0.0, 0.5]
    assert found["rank"].tolist() == [2.0, 3.5, 2.5]


@pytest.fixture(scope="module")
def task() -> TransformerTask:
    return with_spare_words(TransformerTask())


@pytest.fixture(scope="module")
def workspace(task: TransformerTask, tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    return workspace_of(task, tmp_path_factory.mktemp("store"))


SINGLE = PlantedShortcut(steps=120, batch_size=32, learning_rate=5e-3)


def test_the_copy_learns_and_the_model_is_unchanged(workspace: Workspace) -> None:
    before = workspace.task().fingerprint()
    copy = ModifiedWorkspace.of(workspace, SINGLE.modification).task()
    assert measure_shortcut_use(copy).against_label >= 0.95
    assert workspace.task().fingerprint() == before != copy.fingerprint()
    assert "plain" not in workspace.task().data
    assert ModifiedWorkspace.of(workspace, SINGLE.modification).task() is copy


def test_leave_one_out_ranks_the_token_first_and_random_is_at_chance(workspace: Workspace) -> None:
    found = {record.metric: record for record in SINGLE.run(LeaveOneOut(), workspace)}
    assert found["single_first"].value > 0.9
    assert found["single_rank"].value < 1.2
    assert found["single_precision"].per_row == found["single_first"].per_row
    flat = {record.metric: record for record in SINGLE.run(Uniform(), workspace)}
    copy = ModifiedWorkspace.of(workspace, SINGLE.modification).task()
    length = copy.data["test"].maskable.sum(dim=1)[measure_shortcut_use(copy).followed]
    assert flat["single_first"].per_row == pytest.approx((1 / length).tolist())
    assert flat["single_rank"].per_row == pytest.approx(((length + 1) / 2).tolist())
    drawn = {record.metric: record for record in SINGLE.run(Random(), workspace)}
    chance = flat["single_first"].value
    assert abs(drawn["single_first"].value - chance) < 4 * math.sqrt(chance * (1 - chance) / len(length))


@pytest.mark.filterwarnings("ignore::diffmask.errors.FitWarning")
def test_a_method_is_fitted_again_to_the_copy(workspace: Workspace) -> None:
    student = Amortised(budget="600 texts", width=32, learning_rate=3e-3)
    workspace.explained(student, "test")
    found = {record.metric: record for record in SINGLE.run(student, workspace)}
    assert found["single_first"].value > 0.6


@pytest.mark.parametrize("beside", [SINGLE, RandomisedModel(), StabilityOverSeeds()])
def test_every_extra_workspace_has_its_own_fits(workspace: Workspace, beside: Metric) -> None:
    later = Workspace(workspace.store, workspace.task_config, workspace.seed + 1)
    names = [one.explainer_key(Amortised()) for one in (workspace, later, *beside.extra_workspaces(workspace))]
    assert len(set(names)) == len(names)


def test_a_copy_that_did_not_learn_is_reported_and_not_measured(workspace: Workspace) -> None:
    lazy = PlantedShortcut(shortcut="pair", steps=1, learning_rate=1e-6)
    with pytest.warns(FitWarning, match="the planted copy has no known ground truth: it follows the shortcut in"):
        assert list(lazy.run(Uniform(), workspace)) == []


def test_the_copy_is_read_from_the_store(workspace: Workspace, task: TransformerTask) -> None:
    again = workspace_of(task, Path(workspace.store.root))
    copy = ModifiedWorkspace.of(again, SINGLE.modification)
    made = ModifiedWorkspace.of(workspace, SINGLE.modification).task()
    assert workspace.store.has("task", copy.task_digest())
    assert copy.task().fingerprint() == made.fingerprint()


def test_a_vocabulary_without_unused_tokens_is_refused(toy_task: CountingTask, tmp_path: Path) -> None:
    with pytest.raises(TaskError, match="three tokens that occur in no text; 0 of 10"):
        list(PlantedShortcut().run(Uniform(), workspace_of(toy_task, tmp_path)))
