"""The probes of the news recommender, and the two rules that combine votes."""

import warnings

import pytest
import torch

import diffmask as dm
from diffmask.core.baseline_states import SiteStatistics
from diffmask.core.explainer import ForwardTrace
from diffmask.errors import ConfigError, FitWarning
from diffmask.methods.diffmask.calibration import calibrate
from diffmask.methods.diffmask.gated import GatedMaskExplainer
from diffmask.methods.diffmask.hard_concrete import HardConcrete
from diffmask.methods.diffmask.probe import GateProbe, LayerwiseProbe, MeanOfVotes, ProductOfVotes, SimpleProbe
from diffmask.tasks.toy import CountingTask


def gates(*open_probabilities: float) -> list[HardConcrete]:
    odds = [torch.tensor([[p / (1 - p)]]) for p in open_probabilities]
    unshifted = HardConcrete(torch.zeros(1, 1), 0.5)
    return [HardConcrete(value.log() - unshifted.open_logit(), 0.5) for value in odds]


def test_votes_multiply_or_their_log_odds_are_averaged() -> None:
    votes = gates(0.5, 0.9)
    assert ProductOfVotes().log_open(votes).exp().item() == pytest.approx(0.45)
    # Odds 1 and 9 have the geometric mean 3.
    assert MeanOfVotes().log_open(votes).exp().item() == pytest.approx(0.75)
    for rule, expected in ((ProductOfVotes(), 0.45), (MeanOfVotes(), 0.75)):
        assert rule.combine(votes).open_probability().item() == pytest.approx(expected)
        assert rule.share(0.3, 4) ** (4 if rule.nested else 1) == pytest.approx(0.3)


@pytest.mark.parametrize("rule", [ProductOfVotes(), MeanOfVotes()])
def test_lowering_the_last_logit_by_the_excess_makes_a_gate_half_open(rule: ProductOfVotes | MeanOfVotes) -> None:
    first, last = gates(0.8, 0.9)
    moved = HardConcrete(last.logits - rule.excess([first, last]), last.temperature)
    assert rule.log_open([first, moved]).exp().item() == pytest.approx(0.5)


@pytest.mark.parametrize(("kind", "units"), [(SimpleProbe, 3), (LayerwiseProbe, 6)])
def test_the_probes_are_relu_layers_on_standardised_states(kind: type[GateProbe], units: int) -> None:
    source = torch.Generator().manual_seed(0)
    mean, deviation = torch.randn(6, generator=source), torch.rand(6, generator=source) + 0.1
    probe = kind([SiteStatistics(mean, deviation)], None, 3.0, 0.0, 1.0).eval()
    torch.nn.init.normal_(probe.vote.weight, generator=source)
    assert probe.hidden.out_features == units
    states = 5 * torch.randn(2, 3, 6, generator=source)
    features = ((states - mean) / deviation @ probe.hidden.weight.T + probe.hidden.bias).clamp(min=0)
    torch.testing.assert_close(probe(states), 3 * torch.tanh(features @ probe.vote.weight[0] + probe.vote.bias))
    many = states.repeat(50, 1, 1)  # with 900 units and more, dropout drops some
    assert not torch.equal(probe.train()(many), probe.eval()(many))


def build(task: CountingTask, **choices: object) -> GatedMaskExplainer:
    explainer = dm.DiffMask(**choices).build(task, seed=0)  # type: ignore[arg-type]
    for probe in explainer.probes.children():
        torch.nn.init.normal_(probe.vote.weight, generator=torch.Generator().manual_seed(0))  # type: ignore[union-attr, arg-type]
    return explainer


def test_a_simple_probe_decides_alone_and_layerwise_probes_read_all_states_before(toy_task: CountingTask) -> None:
    simple = build(toy_task, probe="simple")
    assert simple.sites == ("hidden",) and simple.probe("hidden").hidden.in_features == 2
    assert build(toy_task, probe="simple", sites=("embedding",)).probe("embedding").hidden.in_features == 64
    layerwise = build(toy_task, probe="layerwise")
    assert [layerwise.probe(site).hidden.in_features for site in layerwise.sites] == [64, 66]


def test_a_mean_of_votes_may_open_a_gate_again(toy_task: CountingTask) -> None:
    explainer = build(toy_task, probe="layerwise", votes="mean")
    trace = ForwardTrace.of(toy_task, toy_task.data["test"][:20])
    keep = explainer.keep_probability(trace, explainer.sites)
    first, second = (explainer.votes(trace, site).open_logit() for site in explainer.sites)
    torch.testing.assert_close(keep[:, 1], torch.sigmoid((first + second) / 2))
    assert (keep[:, 1] > keep[:, 0]).any() and not explainer.nested
    # A threshold that keeps everything does so even where the votes before are all shut.
    explainer.set_threshold("hidden", -torch.inf)
    assert explainer.hard_mask(trace, "hidden").all()


def test_calibrated_means_satisfy_the_margin_as_they_are_used(toy_task: CountingTask) -> None:
    explainer = build(toy_task, probe="layerwise", votes="mean")
    rows = toy_task.data["valid"][:64]
    calibrate(explainer, rows, dict.fromkeys(explainer.sites, 0.5))
    trace = ForwardTrace.of(toy_task, rows)
    for site in explainer.sites:
        assert explainer.masking_divergence(trace, site, explainer.hard_mask(trace, site)).mean() <= 0.5


@pytest.mark.parametrize("votes", ["product", "mean"])
@pytest.mark.parametrize("probe", ["simple", "layerwise"])
def test_a_fit_is_reproducible_and_ends_without_dropout(toy_task: CountingTask, probe: str, votes: str) -> None:
    method = dm.DiffMask(probe=probe, votes=votes, steps=3, batch_size=16)  # type: ignore[arg-type]
    state = torch.get_rng_state()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)
        first, second, other = (method.fit(toy_task, seed)(toy_task.data["test"][:9]).scores for seed in (1, 1, 2))
    assert torch.equal(first, second) and not torch.equal(first, other)
    assert torch.equal(state, torch.get_rng_state())


def test_the_states_that_a_published_probe_reads_are_not_chosen() -> None:
    with pytest.raises(ConfigError, match="probe_inputs is a choice of probe='diffmask'"):
        dm.DiffMask(probe="simple", probe_inputs="both")
