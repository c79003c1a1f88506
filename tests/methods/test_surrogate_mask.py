"""SurrogateMask: tokens that decide are kept, the margin is satisfied, erased tokens stay erased."""

from typing import Literal, cast

import pytest
import torch

from diffmask.core.distributions import divergence, predicted_outcome
from diffmask.core.explainer import ForwardTrace, iter_traces
from diffmask.core.training import generator
from diffmask.methods.diffmask.linear_probe import LinearProbe
from diffmask.methods.diffmask.surrogate import SurrogateMask, SurrogateMaskExplainer
from diffmask.methods.diffmask.surrogate_training import draw_on_policy_masks
from diffmask.tasks.classification import TextClassification
from diffmask.tasks.toy import CountingTask
from support.linear import VALUES, Sum
from support.small_words import WordsTask
from support.tiny_models import tiny_model, word_pieces

pytestmark = pytest.mark.filterwarnings("ignore::diffmask.errors.FitWarning")


@pytest.fixture(scope="module")
def explainer() -> SurrogateMaskExplainer:
    fitted = SurrogateMask(margin=0.1, steps=100, batch_size=32).fit(WordsTask(), seed=0)
    assert isinstance(fitted, SurrogateMaskExplainer)
    return fitted


def test_hard_masks_of_held_out_rows_satisfy_the_margin_and_erase_tokens(explainer: SurrogateMaskExplainer) -> None:
    trace = ForwardTrace.of(explainer.task, explainer.task.data["test"])
    hard = explainer.hard_mask(trace, "embedding")
    masked = explainer.task.predict(trace.rows, explainer.edits("embedding", hard, trace.rows.maskable))
    assert divergence(trace.answer, masked).mean() <= 0.12
    assert hard[trace.rows.maskable].mean() < 0.8


def test_the_token_that_decides_has_the_highest_score(explainer: SurrogateMaskExplainer) -> None:
    batch = explainer.task.data["test"]
    trace = ForwardTrace.of(explainer.task, batch)
    sign = 2 * predicted_outcome(trace.answer) - 1
    contribution = ((torch.tensor(VALUES)[batch.tokens] - VALUES[4]) * sign[:, None]).masked_fill(
        ~batch.maskable, -torch.inf
    )
    scores = explainer(batch).scores.masked_fill(~batch.maskable, -torch.inf)
    is_largest = contribution.gather(1, scores.argmax(dim=1, keepdim=True)).squeeze(1) == contribution.amax(dim=1)
    assert is_largest.float().mean() > 0.9


def test_scores_are_the_changes_in_log_odds(explainer: SurrogateMaskExplainer) -> None:
    batch = explainer.task.data["test"]
    trace = ForwardTrace.of(explainer.task, batch)
    contribution = (torch.tensor(VALUES)[batch.tokens] - VALUES[4]) * (2 * predicted_outcome(trace.answer) - 1)[:, None]
    error = (explainer(batch).scores - contribution).abs()[batch.maskable]
    assert error.mean() < 0.05 * contribution[batch.maskable].abs().mean()


def test_tokens_erased_at_one_layer_stay_erased_at_later_ones() -> None:
    task = TextClassification(tiny_model("bert"), word_pieces(), train=["the film is good", "a dull mess"] * 4)
    by_layer = SurrogateMask(steps=3, batch_size=4, calibration_rows=4).fit(task)(task.data["train"]).by_layer
    assert by_layer is not None
    assert (by_layer[:, 1:] <= by_layer[:, :-1]).all()


def test_states_are_masked_each_at_its_own_site(toy_task: CountingTask) -> None:
    explainer = SurrogateMask(mask="states", margin=0.05, steps=60, calibration_rows=128).fit(toy_task, seed=0)
    assert isinstance(explainer, SurrogateMaskExplainer)
    trace = ForwardTrace.of(toy_task, toy_task.data["test"])
    for site in explainer.sites:
        hard = explainer.hard_mask(trace, site)
        edits = explainer.edits(site, hard, trace.rows.maskable)
        assert tuple(edits) == (site,)
        assert divergence(trace.answer, toy_task.predict(trace.rows, edits)).mean() <= 0.07


def test_the_same_seed_gives_the_same_bits(toy_task: CountingTask) -> None:
    method = SurrogateMask(steps=2, batch_size=16, calibration_rows=16)
    batch = toy_task.data["test"][:20]
    first, second, other = (method.fit(toy_task, seed)(batch).scores for seed in (1, 1, 2))
    assert torch.equal(first, second) and not torch.equal(first, other)


def test_a_learned_baseline_changes_the_prediction_less_than_its_start() -> None:
    task = WordsTask()
    trace = ForwardTrace.of(task, task.data["test"])
    half = (torch.arange(trace.rows.tokens.shape[1]) % 2).to(trace.states["embedding"]).expand(trace.rows.tokens.shape)
    caused = []
    for learn in (False, True):
        fitted = SurrogateMask(steps=40, calibration_rows=16, baseline="zero", learn_baseline=learn).fit(task, seed=0)
        assert isinstance(fitted, SurrogateMaskExplainer)
        caused.append(fitted.masking_divergence(trace, "embedding", half).mean())
    assert caused[1] < 0.9 * caused[0]


def test_a_baseline_is_learned_in_units_of_the_states_it_replaces() -> None:
    small = Sum()
    small.embedding.weight.data.mul_(0.01)
    small.weights.data.div_(0.01)
    method = SurrogateMask(steps=10, calibration_rows=16, baseline="mean", learn_baseline=True)
    large, rescaled = (
        cast(SurrogateMaskExplainer, method.fit(WordsTask(model=model), seed=0)) for model in (Sum(), small)
    )
    assert torch.allclose(rescaled.baselines[0], 0.01 * large.baselines[0], rtol=1e-3)


def test_a_margin_is_satisfied_on_average_and_no_more_passes_are_made_once_it_is_not(
    explainer: SurrogateMaskExplainer,
) -> None:
    traces = list(iter_traces(explainer.task, explainer.task.data["test"], 100))
    empty = [torch.zeros_like(trace.rows.maskable) for trace in traces]
    caused = torch.cat(
        [explainer.masking_divergence(trace, "embedding", mask) for trace, mask in zip(traces, empty, strict=True)]
    )
    assert explainer.satisfies_margin(traces, "embedding", empty, caused.mean().item() + 1e-6)
    assert not explainer.satisfies_margin(traces, "embedding", empty, caused.mean().item() - 1e-4)
    masks = iter(empty)
    assert len(traces) > 2 and not explainer.satisfies_margin(traces, "embedding", masks, 0.0)
    assert len(list(masks)) == len(traces) - 1


def test_on_policy_masks_keep_the_most_costly_tokens_at_every_share() -> None:
    costs = torch.tensor([[1e-3, 10.0, 1e-6, 5.0, 1e3]]).repeat(400, 1)
    maskable = torch.tensor([[True, True, True, True, False]]).repeat(400, 1)
    kept = draw_on_policy_masks(costs, maskable, 4, generator(0, "own"))
    assert kept.shape == (400, 4, 5) and not kept[..., 4].any()
    # Costs that differ by orders of magnitude never swap; those of 5 and 10 nats sometimes do.
    assert (kept[..., 2] <= kept[..., 0]).all() and (kept[..., 0] <= kept[..., 1]).all()
    assert 0 < (kept[..., 3] & ~kept[..., 1]).sum() < (kept[..., 1] & ~kept[..., 3]).sum()
    sizes = kept.sum(dim=2)
    assert set(sizes.unique().tolist()) == {0, 1, 2, 3, 4}
    assert (sizes[:, 0] > sizes[:, 3]).all()


@pytest.mark.parametrize(
    ("probe_inputs", "uses_probe"), [("state", True), ("both", True), ("auto", False), ("all", False)]
)
def test_a_site_that_reads_the_last_states_does_not_use_its_linear_probe(
    probe_inputs: Literal["state", "both", "auto", "all"], uses_probe: bool
) -> None:
    task = TextClassification(tiny_model("bert"), word_pieces(), train=["the film is good", "a dull mess"] * 4)
    method = SurrogateMask(mask="states", probe_inputs=probe_inputs, steps=3, batch_size=4, calibration_rows=4)
    explainer, trace = method.fit(task), ForwardTrace.of(task, task.data["train"])
    assert isinstance(explainer, SurrogateMaskExplainer)
    assert (task.sites[-1] in explainer.attributor.network("embedding").sites) is not uses_probe
    first = explainer.elimination_cost(trace, "embedding")
    for probe in explainer.linear_probes.children():
        cast(LinearProbe, probe).bias[0] += 0.5
    assert torch.equal(explainer.elimination_cost(trace, "embedding"), first) is not uses_probe
