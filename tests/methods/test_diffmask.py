"""DiffMask recovers the ground truth of the toy task, and names the problem of a bad fit."""

import warnings
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
import torch

from diffmask.core.config import parse
from diffmask.core.distributions import divergence
from diffmask.core.explainer import ForwardTrace
from diffmask.errors import ConfigError, FitWarning, SiteError, TaskError
from diffmask.experiments.experiment import Experiment
from diffmask.methods.diffmask.base import MaskExplainer
from diffmask.methods.diffmask.gate_training import GateSchedule, GateTrainer
from diffmask.methods.diffmask.gated import DiffMask, GatedMaskExplainer
from diffmask.methods.diffmask.nested import NestedDiffMask
from diffmask.methods.diffmask.surrogate import SurrogateMask
from diffmask.metrics.ground_truth import js_rows, kl_rows, normalise, score_range
from diffmask.tasks.toy import CountingTask, ToyTaskConfig

TOY = Experiment.read(Path(__file__).parents[2] / "experiments/toy.yaml")
STATES = next(method for method in TOY.methods if isinstance(method, DiffMask))


@pytest.fixture(scope="module")
def counter() -> CountingTask:
    """The toy task as published."""
    task = ToyTaskConfig().load(seed=0)
    assert isinstance(task, CountingTask)
    return task


@pytest.fixture(scope="module")
def explainer(counter: CountingTask) -> MaskExplainer:
    fitted = STATES.fit(counter, seed=0)
    assert isinstance(fitted, MaskExplainer)
    return fitted


def test_the_model_learns_the_task(counter: CountingTask) -> None:
    assert counter.score(counter.data["test"]) >= 0.995


def test_at_the_hidden_state_the_masks_are_the_truth(counter: CountingTask, explainer: MaskExplainer) -> None:
    batch = counter.data["test"]
    truth = counter.ground_truth(batch)
    known = truth.sum(dim=1) > 0
    by_layer = explainer(batch).by_layer
    assert by_layer is not None
    scores = normalise(by_layer[known, 1], batch.maskable[known])
    target = normalise(truth[known], batch.maskable[known])
    assert kl_rows(target, scores).mean() <= 0.005
    assert js_rows(target, scores).mean() <= 0.002


def test_at_the_embedding_all_tokens_score_alike(counter: CountingTask, explainer: MaskExplainer) -> None:
    batch = counter.data["test"]
    by_layer = explainer(batch).by_layer
    assert by_layer is not None
    assert (score_range(by_layer[:, 0], batch.maskable) < 0.02).float().mean() >= 0.99


def test_hard_masks_satisfy_the_margin_at_every_site(counter: CountingTask, explainer: MaskExplainer) -> None:
    batch = counter.data["test"]
    trace = ForwardTrace.of(counter, batch)
    for site in explainer.sites:
        hard = explainer.hard_mask(trace, site)
        masked = counter.predict(batch, explainer.edits(site, hard, batch.maskable))
        assert divergence(trace.answer, masked).mean() <= 0.05


def test_a_good_fit_has_no_problems(explainer: MaskExplainer) -> None:
    assert all(not site["problems"] for site in explainer.diagnostics.values())
    # The baseline is the mean of training rows and not learned, so it is nearly the mean of held-out rows.
    assert all(site["baseline"]["distance"] < 0.2 for site in explainer.diagnostics.values())


@pytest.mark.parametrize(
    ("change", "names"),
    [
        (
            {"baseline": "random", "learn_baseline": True, "schedule": GateSchedule(joint_baseline=True)},
            {"leaking baseline"},
        ),
        ({"margin": 0.0}, {"margin of zero"}),
        ({"learning_rate": 10.0}, {"all open", "all closed", "margin", "unreachable", "blind"}),
    ],
    ids=["baseline", "margin", "rate"],
)
def test_the_problem_of_a_bad_fit_is_named(counter: CountingTask, change: dict[str, object], names: set[str]) -> None:
    with pytest.warns(FitWarning) as caught:
        bad = replace(STATES, steps=500, **change).fit(counter, seed=0)  # type: ignore[arg-type]
    problems = {name for site in bad.diagnostics.values() for name in site["problems"]}
    assert problems & names
    assert any(name in str(warning.message) for warning in caught for name in problems & names)


@pytest.mark.parametrize("joint", [False, True])
def test_a_baseline_is_learned_on_random_masks_before_the_gates_or_jointly(toy_task: CountingTask, joint: bool) -> None:
    method = DiffMask(
        mask="states", baseline="zero", learn_baseline=True, batch_size=32, schedule=GateSchedule(joint_baseline=joint)
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)
        short, long = (
            cast(GatedMaskExplainer, replace(method, steps=steps).fit(toy_task, seed=0)).baselines[-1]
            for steps in (2, 6)
        )
    assert short.norm() > 0
    assert torch.equal(short, long) is not joint


@pytest.mark.parametrize("mask", ["inputs", "states"])
@pytest.mark.parametrize("sparsity", ["l0", "log"])
def test_the_same_seed_gives_the_same_bits(toy_task: CountingTask, mask: str, sparsity: str) -> None:
    method = DiffMask(mask=mask, sparsity=sparsity, steps=3, batch_size=32)  # type: ignore[arg-type]
    batch = toy_task.data["test"][:20]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)
        first, second, other = (method.fit(toy_task, seed)(batch).scores for seed in (1, 1, 2))
    assert torch.equal(first, second)
    assert not torch.equal(first, other)


class KilledError(Exception):
    """Stands for the end of the process in the middle of a fit."""


@pytest.mark.parametrize("probe", ["diffmask", "layerwise"])
def test_a_killed_fit_resumes_to_the_same_bits(
    toy_task: CountingTask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, probe: str
) -> None:
    method = DiffMask(mask="inputs", probe=probe, steps=20, batch_size=16)  # type: ignore[arg-type]
    step = GateTrainer.step
    steps: list[int] = []

    def counted(trainer: GateTrainer, number: int) -> None:
        if len(steps) == 13:
            raise KilledError
        steps.append(number)
        step(trainer, number)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)
        whole = method.fit(toy_task, seed=3)
        monkeypatch.setattr(GateTrainer, "step", counted)
        with pytest.raises(KilledError):
            method.fit(toy_task, seed=3, checkpoints=tmp_path)
        steps.clear()
        resumed = method.fit(toy_task, seed=3, checkpoints=tmp_path)
        assert steps == list(range(12, 20))
        steps.clear()
        method.fit(toy_task, seed=3, checkpoints=tmp_path)
        assert steps == []
        monkeypatch.setattr(GateTrainer, "step", step)
        other = method.fit(toy_task, seed=4, checkpoints=tmp_path)  # not resumed: another seed
    batch = toy_task.data["test"][:20]
    assert torch.equal(whole(batch).scores, resumed(batch).scores)
    assert not torch.equal(whole(batch).scores, other(batch).scores)
    assert whole.training_history == resumed.training_history
    assert [record["step"] for record in whole.training_history if record["site"] == "hidden"] == list(range(1, 21))


def test_a_method_without_checkpoints_says_so(toy_task: CountingTask, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="surrogate-mask writes no checkpoints"):
        SurrogateMask().fit(toy_task, checkpoints=tmp_path)


def build_gated(task: CountingTask, **choices: object) -> GatedMaskExplainer:
    explainer = DiffMask(**choices).build(task, seed=0)  # type: ignore[arg-type]
    assert isinstance(explainer, GatedMaskExplainer)
    # Votes that differ from token to token, as after a fit.
    for probe in explainer.probes.children():
        torch.nn.init.normal_(probe.vote.weight, generator=torch.Generator().manual_seed(0))  # type: ignore[union-attr, arg-type]
    return explainer


def test_votes_of_earlier_layers_multiply_when_inputs_are_masked(toy_task: CountingTask) -> None:
    explainer = build_gated(toy_task, mask="inputs")
    batch = toy_task.data["test"][:5]
    trace = ForwardTrace.of(toy_task, batch)
    first, second = (explainer.votes(trace, site).open_probability() for site in explainer.sites)
    by_layer = explainer(batch).by_layer
    assert by_layer is not None
    torch.testing.assert_close(by_layer[:, 0], (first * batch.maskable)[:, :10])
    torch.testing.assert_close(by_layer[:, 1], (first * second * batch.maskable)[:, :10])
    assert (explainer.masked_site("embedding"), explainer.masked_site("hidden")) == ("embedding", "embedding")


def test_states_are_masked_each_at_its_own_site(toy_task: CountingTask) -> None:
    explainer = build_gated(toy_task, mask="states")
    assert (explainer.masked_site("embedding"), explainer.masked_site("hidden")) == ("embedding", "hidden")
    assert explainer.baseline("hidden").shape == (2,)


def test_a_shut_gate_is_the_baseline_and_an_open_one_the_state(toy_task: CountingTask) -> None:
    explainer = build_gated(toy_task, mask="states", baseline="zero")
    batch = toy_task.data["test"][:4].trim()
    (edit,) = explainer.edits("hidden", torch.zeros(batch.tokens.shape), batch.maskable).values()
    state = torch.ones(*batch.tokens.shape, 2)
    assert (edit(state)[batch.maskable] == 0).all()
    assert (edit(state)[~batch.maskable] == 1).all()


@pytest.mark.parametrize(
    ("probe_inputs", "mask", "width"), [("auto", "inputs", 66), ("auto", "states", 2), ("both", "states", 66)]
)
def test_a_probe_reads_the_states_of_its_config(
    toy_task: CountingTask, probe_inputs: str, mask: str, width: int
) -> None:
    explainer = build_gated(toy_task, mask=mask, probe_inputs=probe_inputs)
    assert explainer.probes[1].hidden.in_features == width  # type: ignore[union-attr]


def test_only_the_sites_named_are_probed(toy_task: CountingTask) -> None:
    assert build_gated(toy_task, mask="states", sites=("hidden",)).sites == ("hidden",)


def test_a_baseline_that_the_task_does_not_have_is_refused(toy_task: CountingTask) -> None:
    with pytest.raises(TaskError, match="no mask token; use baseline 'mean' or 'zero'"):
        DiffMask(baseline="mask").build(toy_task, seed=0)


def test_an_unknown_site_is_refused_before_any_work(toy_task: CountingTask) -> None:
    with pytest.raises(SiteError, match="nearest: 'hidden'"):
        DiffMask(sites=("hiddn",)).build(toy_task, seed=0)


def test_impossible_options_are_refused_when_a_method_is_made() -> None:
    with pytest.raises(ConfigError, match=r"a margin must be a number of nats, 0 or more; found -1\.0"):
        DiffMask(margin=-1.0)
    with pytest.raises(ConfigError, match="found nan"):
        DiffMask(margin=float("nan"))
    with pytest.raises(ConfigError, match="batch_size must be at least 1, found 0"):
        DiffMask(batch_size=0)
    with pytest.raises(ConfigError, match="min_keep_probability in"):
        GateSchedule(min_keep_probability=0.5)
    with pytest.raises(ConfigError, match=r"schedule\.temperatur: Unexpected keyword argument"):
        parse("method", {"name": "diffmask", "schedule": {"temperatur": 0.5}}, "here")
    with pytest.raises(ConfigError, match="calibration_rows must be at least 1, found 0"):
        SurrogateMask(calibration_rows=0)
    for margins in ((), (0.1, 0.1), (0.1, -1.0)):
        with pytest.raises(ConfigError, match="margin"):
            NestedDiffMask(margins=margins)


def test_the_fit_counts_its_passes(toy_task: CountingTask) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)
        explainer = DiffMask(mask="states", steps=4, sites_per_step=2, batch_size=32).fit(toy_task)
    # Four trace passes and two masked ones each, which alone go backward; diagnostics come on top.
    assert explainer.fit_cost.backwards == 8
    assert explainer.fit_cost.forwards >= 12
    before = explainer.cost.forwards
    explainer(toy_task.data["test"][:10])
    assert explainer.cost.forwards - before == 1


def test_calibration_keeps_the_share_of_predictions_that_is_asked_for(counter: CountingTask) -> None:
    loose, strict = (DiffMask(mask="states", margin=5.0, steps=20, min_agreement=share) for share in (None, 1.0))
    with pytest.warns(FitWarning):
        kept = [method.fit(counter).diagnostics["hidden"] for method in (loose, strict)]
    assert kept[0]["hard_agreement"] < 1 and kept[1]["open_share"] > kept[0]["open_share"]


def test_a_share_of_predictions_is_between_zero_and_one() -> None:
    with pytest.raises(ConfigError, match="min_agreement"):
        DiffMask(min_agreement=95.0)
