"""Abilities that only some tasks have are requested by name, with an error that names task, purpose and remedy."""

import inspect
from collections.abc import Mapping

import pytest
import torch

from diffmask.core.batch import Batch
from diffmask.core.capabilities import (
    ExplainsInputs,
    HasAttention,
    HasGroundTruth,
    HasSmallestEvidence,
    Retrainable,
    RowText,
    require,
    require_labels,
    row_text,
    training_choices,
)
from diffmask.core.task import Task, copy_task
from diffmask.errors import InputError, TaskError
from diffmask.tasks.toy import CountingTask
from support.linear import LinearTask


class RetrainableTask(LinearTask, Retrainable, RowText):
    """A task with a mixin of each kind; label -1 is unknown."""

    def retrain(self, data: Mapping[str, Batch], seed: int) -> Task:
        return RetrainableTask([[seed]])

    def outcomes(self, target: torch.Tensor) -> list[str | None]:
        return [None if value < 0 else "yes" for value in target.tolist()]


def test_a_task_has_at_most_sixteen_public_members() -> None:
    members = {name for name, _ in inspect.getmembers(Task) if not name.startswith("_")} | {"model"}
    assert len(members) <= 16, sorted(members)


@pytest.mark.parametrize(
    ("ability", "remedy"),
    [
        (HasGroundTruth, "has no known truth; use a task that plants one"),
        (HasSmallestEvidence, "does not know its smallest evidence"),
        (HasAttention, "gives no attention weights; .*eager"),
        (ExplainsInputs, "reads batches only"),
        (Retrainable, "cannot be trained again; .*retrain"),
    ],
)
def test_a_missing_ability_is_an_error_with_purpose_and_remedy(ability: type, remedy: str) -> None:
    with pytest.raises(TaskError, match=f"some metric: LinearTask {remedy}"):
        require(LinearTask([[1]]), ability, "some metric")


def test_a_task_with_the_ability_is_returned_as_it_is(toy_task: CountingTask) -> None:
    for ability in (HasGroundTruth, HasSmallestEvidence, Retrainable):
        assert require(toy_task, ability, "some metric") is toy_task


def test_a_task_without_words_shows_token_ids() -> None:
    task = LinearTask([[1, 2], [3]])
    text = row_text(task)
    assert text.describe(task.data["test"]) == [["1", "2"], ["3"]]
    row = text.read_row("test", 0)
    assert (row.words, row.gaps, row.columns) == (("1", "2"), ("", " ", ""), ((0,), (1,)))
    assert text.outcomes(torch.tensor([0, 1])) == ["0", "1"] and text.title(task.data["test"]) == ""


def test_only_a_retrainable_task_has_training_choices_and_scores_per_row(toy_task: CountingTask) -> None:
    assert training_choices(LinearTask([[1]])) == {}
    task = RetrainableTask([[1, 2]])
    assert training_choices(task) == {} and task.per_example_score(task.data["test"]) is None
    assert task.roar_maskable(task.data["test"]).tolist() == [[True, True]]


def test_a_row_without_a_label_is_refused_with_its_split() -> None:
    task = RetrainableTask([[1], [2]])
    require_labels(task, task.data)
    batch = task.data["test"].map(lambda value: -value if value.is_floating_point() else value)
    with pytest.raises(InputError, match="2 of 2 rows of 'valid' have no label"):
        require_labels(task, {"valid": batch})


def test_a_copied_task_has_its_own_model_and_the_same_rows() -> None:
    task = LinearTask([[1, 2]])
    copy = copy_task(task)
    copy.model.get_parameter("weights").data.zero_()
    assert task.fingerprint() != copy.fingerprint()
    assert copy.data["test"].tokens is task.data["test"].tokens
