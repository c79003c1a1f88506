"""The steps of ROAR on a task whose model is a table: what each step uses, shares, and finds again."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from torch import Tensor, nn

from diffmask.core.batch import Attribution, Batch
from diffmask.core.capabilities import Retrainable
from diffmask.core.distributions import UnnormalizedCategorical
from diffmask.core.explainer import Explainer, Method
from diffmask.core.hooks import Site
from diffmask.core.store import Store
from diffmask.core.task import Task, TaskConfig
from diffmask.errors import ConfigError, TaskError
from diffmask.methods.baselines import Random
from diffmask.metrics.roar.masking import RoarProtocol, Strategy, published_random_scores
from diffmask.metrics.roar.roar_metric import RecursiveRoar, Roar
from diffmask.metrics.roar.step import ImportanceNode, RoarStep
from diffmask.workspace.workspace import Workspace

MASK = 3
CALLS: list[str] = []


class Table(nn.Module):
    """Word counts: what each word weighs is the share of label 1 among the rows that hold it, less a half."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10, 1)

    def forward(self, tokens: Tensor) -> Tensor:
        weight = self.embedding(tokens).sum(dim=1)
        return torch.cat([-weight, weight], dim=1)


class TableTask(Task, Retrainable):
    mask_token = MASK

    def __init__(self, data: Mapping[str, Batch]) -> None:
        super().__init__(Table(), {"embedding": Site("embedding")}, data)

    def learn(self) -> None:
        train = self.data["train"]
        weights = torch.zeros(10, 1)
        for word in range(4, 10):
            holds = (train.tokens == word).any(dim=1)
            if holds.any():
                weights[word] = train.target[holds].float().mean() - 0.5
        self.model.get_submodule("embedding").weight.data = weights  # type: ignore[union-attr]  # it is an embedding

    def forward(self, batch: Batch) -> UnnormalizedCategorical:
        return UnnormalizedCategorical(self.model(batch.tokens))

    def score(self, batch: Batch) -> float:
        return float((self.forward(batch).probs.argmax(-1) == batch.target).float().mean())

    def retrain(self, data: Mapping[str, Batch], seed: int) -> "TableTask":
        CALLS.append(f"retrain on {int((data['train'].tokens == MASK).sum())} masks")
        task = TableTask(data)
        task.learn()
        return task


def rows() -> Batch:
    """Words 4 and 5 say label 1 together, 6 and 7 label 0, 8 and 9 say nothing: 1 is [CLS], 2 is [EOS]."""
    tokens = torch.tensor([[1, 4, 5, 8, 9, 2], [1, 6, 7, 8, 9, 2]] * 4)
    return Batch(
        tokens=tokens,
        present=torch.ones_like(tokens, dtype=torch.bool),
        maskable=tokens > 2,
        target=torch.tensor([1, 0] * 4),
    )


@dataclass(frozen=True, kw_only=True)
class TableRecipe(TaskConfig):
    name: ClassVar[str] = "table"

    def build(self, seed: int) -> TableTask:
        return TableTask({"train": rows(), "test": rows()})

    def train(self, task: Task, seed: int) -> None:
        assert isinstance(task, TableTask)
        task.learn()


@dataclass(frozen=True, kw_only=True)
class Weight(Method):
    """|weight| of each word: exact importance, and it notes each fit."""

    name: ClassVar[str] = "weight"

    def build(self, task: Task, seed: int) -> "WeightExplainer":
        CALLS.append("explain")
        return WeightExplainer(task)


class WeightExplainer(Explainer):
    def explain(self, batch: Batch, target: Tensor) -> Attribution:
        embedding = self.task.model.get_submodule("embedding")
        return Attribution(embedding(batch.tokens).squeeze(-1).abs().detach() + 0.001 * target[:, None])


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    CALLS.clear()
    return Workspace(Store(tmp_path), TableRecipe(), 0)


def step(workspace: Workspace, k: int, recursive: bool = True, strategy: str = "quantile", size: int = 25) -> RoarStep:
    protocol = RoarProtocol(strategy=strategy, recursive=recursive, step_size=size)  # type: ignore[arg-type]  # checked at run
    return RoarStep(workspace, Weight(), protocol, k)


def test_a_recursive_step_uses_the_data_and_the_model_of_the_step_before(workspace: Workspace) -> None:
    first = step(workspace, 25).data()["train"].tokens
    assert first[0].tolist() == [1, MASK, 5, 8, 9, 2]  # 4 and 5 weigh the same: the first goes
    second = step(workspace, 50).data()["train"].tokens
    assert second[0].tolist() == [1, MASK, MASK, 8, 9, 2]
    assert CALLS == ["explain", "retrain on 8 masks", "explain"]


def test_every_split_is_masked_and_missing_parents_are_built(workspace: Workspace) -> None:
    data = step(workspace, 75).data()
    assert {split: int((batch.tokens == MASK).sum()) for split, batch in data.items()} == {"train": 24, "test": 24}
    assert CALLS.count("explain") == 3


def test_without_recursion_the_importances_are_computed_once_for_all_k(workspace: Workspace) -> None:
    for k in (25, 50, 75):
        step(workspace, k, recursive=False).score()
    assert CALLS.count("explain") == 1


def test_nothing_and_everything_masked_are_shared_by_all_methods(workspace: Workspace) -> None:
    for k in (0, 100):
        mine, other = step(workspace, k), RoarStep(workspace, Random(), RoarProtocol(), k)
        assert mine.address == other.address
    assert step(workspace, 50).address != RoarStep(workspace, Random(), RoarProtocol(), 50).address
    assert step(workspace, 100).data()["test"].tokens[0].tolist() == [1, MASK, MASK, MASK, MASK, 2]
    assert "explain" not in CALLS


def test_random_is_never_recursive(workspace: Workspace) -> None:
    once, again = (RoarStep(workspace, Random(), RoarProtocol(recursive=recursive), 50) for recursive in (False, True))
    assert once.address == again.address


def test_the_score_falls_to_chance_exactly_when_the_evidence_is_gone(workspace: Workspace) -> None:
    scores = [step(workspace, k).score().score for k in (0, 25, 50, 100)]
    assert scores == [1.0, 1.0, 0.5, 0.5]


def test_a_second_time_everything_is_found(workspace: Workspace) -> None:
    step(workspace, 50).score()
    before = list(CALLS)
    again = Workspace(workspace.store, workspace.task_config, workspace.seed)
    assert step(again, 50).score().score == 0.5
    assert before == CALLS


def test_the_step_size_is_part_of_what_a_step_is(workspace: Workspace) -> None:
    assert step(workspace, 50, size=25).address != step(workspace, 50, size=50).address


def test_a_long_chain_has_a_name_at_once(workspace: Workspace) -> None:
    assert len(step(workspace, 99, size=1).address[1]) == 16


def test_count_masks_so_many_tokens(workspace: Workspace) -> None:
    masks = step(workspace, 3, strategy="count", size=1).masks()["train"]
    assert masks.sum(dim=1).tolist() == [3] * 8


def test_signed_importances_spare_what_speaks_against_the_outcome(workspace: Workspace) -> None:
    absolute, signed = (
        RoarStep(workspace, Weight(), RoarProtocol(absolute=absolute), 50) for absolute in (True, False)
    )
    assert absolute.address != signed.address


def test_a_task_without_a_mask_token_says_so(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TableTask, "mask_token", None)
    with pytest.raises(TaskError, match="no mask token"):
        step(workspace, 50).data()


@pytest.mark.parametrize("metric", [Roar(amounts=(0, 25, 50, 75, 100)), RecursiveRoar(amounts=(0, 25, 50, 75, 100))])
def test_the_evaluation_yields_the_curve_and_its_areas(workspace: Workspace, metric: Roar | RecursiveRoar) -> None:
    records = list(metric.run(Weight(), workspace))
    curve = [(record.at, record.value) for record in records if record.metric.endswith("_score")]
    assert curve == [(0.0, 1.0), (25.0, 1.0), (50.0, 0.5), (75.0, 0.5), (100.0, 0.5)]
    found = {record.metric.rpartition("roar_")[2]: record.value for record in records}
    assert found["racu"] == pytest.approx(found["area"] / found["area_possible"])


def test_a_curve_by_count_has_a_name_of_its_own_and_no_areas(workspace: Workspace) -> None:
    records = list(RecursiveRoar(strategy="count", amounts=(0, 1, 2)).run(Weight(), workspace))
    assert [(record.metric, record.at) for record in records] == [
        ("recursive_roar_count_score", float(count)) for count in (0, 1, 2)
    ]


def test_the_published_points_are_those_where_none_are_given() -> None:
    assert Roar().points == (0, 10, 20, 30, 40, 50, 60, 70, 80, 90, 100)
    assert RecursiveRoar(strategy="count").points == (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10)


@pytest.mark.parametrize("amounts", [(0,), (10, 20), (0, 20, 10), (0, 10, 10)])
def test_amounts_that_are_no_curve_are_refused(amounts: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match="must increase from 0"):
        Roar(amounts=amounts)


@pytest.mark.parametrize("amounts", [(0, 10, 20), (0, 50, 150)])
def test_a_curve_of_shares_ends_where_all_is_masked(amounts: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match="must end at 100 percent"):
        RecursiveRoar(amounts=amounts)


@pytest.mark.parametrize(("k", "strategy"), [(-1, "count"), (-1, "quantile"), (101, "quantile")])
def test_what_cannot_be_masked_is_refused(workspace: Workspace, k: int, strategy: Strategy) -> None:
    with pytest.raises(ConfigError, match=f"{k} cannot be masked"):
        RoarStep(workspace, Weight(), RoarProtocol(strategy=strategy), k)


def test_a_recursive_step_goes_somewhere() -> None:
    with pytest.raises(ConfigError, match="at least 1"):
        RoarProtocol(recursive=True, step_size=0)


def test_the_parts_make_all_that_the_evaluation_needs(workspace: Workspace) -> None:
    metric = RecursiveRoar(amounts=(0, 25, 50, 75, 100))
    for part in metric.nodes(Weight(), workspace):
        part.run()
        assert workspace.store.has(*part.address)
    before = list(CALLS)
    list(metric.run(Weight(), workspace))
    assert before == CALLS


@pytest.mark.parametrize("amounts", [(), (0, 20, 30, 65, 100)])
def test_a_part_stands_after_what_it_needs(workspace: Workspace, amounts: tuple[int, ...]) -> None:
    made = {("task", workspace.task_digest())}
    for part in RecursiveRoar(amounts=amounts).nodes(Weight(), workspace):
        assert set(part.needs) <= made, part.label
        made.add(part.address)


def test_a_step_is_called_by_what_it_does(workspace: Workspace) -> None:
    protocol = RoarProtocol(recursive=True, step_size=25)
    labels = [RoarStep(workspace, Weight(), protocol, k).label.partition(", seed 0, ")[::2] for k in (0, 50, 100)]
    assert [(first.partition(" ")[0], what) for first, what in labels] == [
        ("score", "nothing masked"),
        ("train", "50 % masked by weight, recursively"),
        ("train", "100 % masked"),
    ]


def test_the_random_baseline_uses_the_published_draws_or_the_scores_of_the_random_method(workspace: Workspace) -> None:
    published, own = (
        RoarStep(workspace, Random(), RoarProtocol(random_draws=draws), 0)  # type: ignore[arg-type]
        for draws in ("published", "method")
    )
    data = workspace.task().data
    explainer = Random().fit(workspace.task(), workspace.seed)
    for split, scores in published_random_scores(data, workspace.seed).items():
        assert torch.equal(published.importances()[split], scores)
        assert torch.equal(own.importances()[split], explainer(data[split], data[split].target).scores)
    assert published.importance_digest() != own.importance_digest()
    assert ImportanceNode(workspace, published).explained_by is None
    assert ImportanceNode(workspace, own).explained_by == Random()
