"""Sensitivity as Captum has it; shuffled weights and other seeds are told from the same ones."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from captum.metrics import sensitivity_max
from torch import Tensor

from diffmask.core.batch import Attribution, Batch
from diffmask.core.distributions import predicted_outcome
from diffmask.core.explainer import Explainer, Method
from diffmask.core.task import Task, copy_task
from diffmask.errors import ConfigError
from diffmask.methods.attention import Attention
from diffmask.methods.baselines import Random, Uniform
from diffmask.methods.gradients import Gradient, IntegratedGradients, state_gradient
from diffmask.methods.leave_one_out import ExactErasure
from diffmask.metrics.ground_truth import MassOnEvidence
from diffmask.metrics.robustness import MaxSensitivity, draw_noise, max_sensitivity
from diffmask.metrics.sanity_checks import RandomisedModel, ShuffledWeights, StabilityOverSeeds, modules_with_weights
from diffmask.tasks.toy import CountingTask
from diffmask.workspace.workspace import Workspace
from support.transformer import TransformerTask
from support.workspaces import workspace_of


@pytest.fixture(scope="module")
def task() -> TransformerTask:
    return TransformerTask()


@pytest.fixture
def workspace(task: TransformerTask, tmp_path: Path) -> Workspace:
    return workspace_of(task, tmp_path)


def test_sensitivity_equals_captum(task: TransformerTask) -> None:
    batch = task.data["test"][:5].trim()
    noises = draw_noise(task, batch.tokens.shape[1], samples=3, radius=0.2, seed=0)
    outcome = predicted_outcome(task.predict(batch))
    _, states = task.trace(batch)

    def explain(given: tuple[Tensor, ...] | Tensor) -> tuple[Tensor]:
        state = given[0] if isinstance(given, tuple) else given
        copies = len(state) // len(batch)
        part, wanted = batch.repeat(copies), outcome.repeat_interleave(copies, dim=0)
        steep = state_gradient(task, part, wanted, "embedding", "log-probability", state)
        return (steep.norm(dim=-1).masked_fill(~part.maskable, 0.0),)

    def perturb(state: Tensor) -> Tensor:
        return state + torch.stack(noises).repeat(len(batch), 1, 1)

    theirs = sensitivity_max(explain, states["embedding"], perturb_func=perturb, n_perturb_samples=3)
    ours = max_sensitivity(Gradient().fit(task), batch, noises)
    assert torch.allclose(ours, theirs, atol=1e-9)
    assert (ours > 0).all()


@pytest.mark.parametrize("method", [IntegratedGradients(n_steps=4), Attention()], ids=lambda method: method.name)
def test_methods_that_use_the_model_are_sensitive_to_noise(method: Method, workspace: Workspace) -> None:
    (small,) = MaxSensitivity(rows=8, samples=2, radius=0.01).run(method, workspace)
    (large,) = MaxSensitivity(rows=8, samples=2, radius=0.5).run(method, workspace)
    assert 0 < small.value < large.value
    assert small.rows == 8


def test_baselines_are_not_sensitive_and_the_model_is_unchanged(workspace: Workspace) -> None:
    before = workspace.task().predict(workspace.task().data["test"])
    (record,) = MaxSensitivity(rows=8).run(Random(), workspace)
    assert record.value == 0
    after = workspace.task().predict(workspace.task().data["test"])
    assert torch.equal(before.logits, after.logits)  # type: ignore[attr-defined]


def test_shuffling_keeps_the_entries_of_each_weight_and_changes_their_order(task: TransformerTask) -> None:
    copy = copy_task(task)
    ShuffledWeights().train(copy, seed=0)
    assert copy.model is not task.model
    changed = 0
    for (name, weight), other in zip(task.model.named_parameters(), copy.model.parameters(), strict=True):
        assert torch.equal(weight.flatten().sort().values, other.flatten().sort().values), name
        changed += not torch.equal(weight, other)
    assert changed > len(list(task.model.parameters())) / 2


def test_a_share_of_the_modules_is_counted_from_the_head(task: TransformerTask) -> None:
    copy = copy_task(task)
    owners = modules_with_weights(copy.model)
    assert owners[0] is copy.model.embedding and owners[-1] is copy.model.answer
    ShuffledWeights(share=1 / len(owners)).train(copy, seed=0)
    assert not torch.equal(copy.model.get_parameter("answer.weight"), task.model.get_parameter("answer.weight"))
    assert torch.equal(copy.model.get_parameter("embedding.weight"), task.model.get_parameter("embedding.weight"))


def test_scores_of_a_shuffled_model_differ_unless_the_method_ignores_the_model(workspace: Workspace) -> None:
    whole, part = RandomisedModel(shares=(0.1,)).run(Gradient(), workspace)
    assert whole.at is None and part.at == 0.1
    assert abs(whole.value) < 0.5
    blind, _ = RandomisedModel(shares=(0.1,)).run(Random(), workspace)
    assert blind.value == pytest.approx(1.0)


def test_seeds_change_only_random_methods(workspace: Workspace) -> None:
    (random,) = StabilityOverSeeds(others=2).run(Random(), workspace)
    (steady,) = StabilityOverSeeds().run(Gradient(), workspace)
    (flat,) = StabilityOverSeeds().run(Uniform(), workspace)
    assert steady.value == pytest.approx(1.0)
    assert flat.value == 1.0
    longer = [
        value
        for value, tokens in zip(
            random.per_row, workspace.task().data["test"].maskable.sum(dim=1).tolist(), strict=True
        )
        if tokens > 1
    ]
    assert abs(sum(longer) / len(longer)) < 0.25


@dataclass(frozen=True, kw_only=True)
class DropsAtSeed(Method):
    """Three layers; every token is dropped after layer 1 + seed."""

    name: ClassVar[str] = "drops-at-seed"

    def build(self, task: Task, seed: int) -> "DropsAtSeedExplainer":
        return DropsAtSeedExplainer(task, seed)


class DropsAtSeedExplainer(Explainer):
    seed: Tensor

    def __init__(self, task: Task, seed: int) -> None:
        super().__init__(task)
        self.register_buffer("seed", torch.tensor(seed))

    def explain(self, batch: Batch, target: Tensor) -> Attribution:
        layers = (torch.arange(3) <= self.seed).float()
        by_layer = layers[None, :, None].expand(len(batch), 3, batch.tokens.shape[1]).clone()
        return Attribution(by_layer.mean(dim=1), by_layer, ("a", "b", "c"))


def test_the_spread_of_layer_claims_is_the_mean_distance_between_seeds(workspace: Workspace) -> None:
    records = {record.metric: record for record in StabilityOverSeeds(others=2).run(DropsAtSeed(), workspace)}
    # Seed 0 drops after layer 1, seeds 1 and 2 after layers 2 and 3: one layer and two.
    assert set(records["seed_layer_spread"].per_row) == {1.5}


def test_evidence_mass_is_the_share_of_the_scores_on_the_counted_digits(toy_task: CountingTask, tmp_path: Path) -> None:
    workspace = workspace_of(toy_task, tmp_path)
    batch = toy_task.data["test"]
    evidence = toy_task.ground_truth(batch).bool()
    known = evidence.any(dim=1) & (batch.maskable & ~evidence).any(dim=1)
    mass, first = MassOnEvidence().run(Uniform(), workspace)
    share = (evidence.sum(dim=1) / batch.maskable.sum(dim=1))[known]
    assert mass.per_row == pytest.approx(share.tolist())
    assert first.per_row == pytest.approx(share.tolist())
    best, right = MassOnEvidence().run(ExactErasure(), workspace)
    assert best.value == right.value == 1.0


def test_errors_name_the_wrong_option() -> None:
    with pytest.raises(ConfigError, match="shares are above 0"):
        RandomisedModel(shares=(0.0,))
    with pytest.raises(ConfigError, match="others is at least 1"):
        StabilityOverSeeds(others=0)
    with pytest.raises(ConfigError, match="rows and samples are at least 1"):
        MaxSensitivity(rows=0)
