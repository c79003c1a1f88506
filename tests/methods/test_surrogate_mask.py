"""DiffMask from masked copies: what decides is kept, the margin holds, what is dropped stays dropped."""

from typing import Literal, cast

import pytest
import torch

from diffmask.core.distributions import divergence, predicted_outcome
from diffmask.core.explainer import ForwardTrace, iter_traces
from diffmask.core.training import generator
from diffmask.methods.diffmask.linear_probe import LinearProbe
from diffmask.methods.diffmask.surrogate import SurrogateMask, SurrogateMaskExplainer
from diffmask.methods.diffmask.surrogate_training import draw_on_policy_masks
from diffmask.metrics.ranks import rank_correlation
from diffmask.tasks.classification import TextClassification
from diffmask.tasks.toy import CountingTask
from support.linear import VALUES, Sum
from support.small_words import WordsTask
from support.tiny_models import tiny_model, word_pieces

pytestmark = pytest.mark.filterwarnings("ignore::diffmask.errors.FitWarning")


@pytest.fixture(scope="module")
def explainer() -> SurrogateMaskExplainer:
    found = SurrogateMask(margin=0.1, steps=100, batch_size=32).fit(WordsTask(), seed=0)
    assert isinstance(found, SurrogateMaskExplainer)
    return found


def test_hard_masks_of_other_rows_hold_the_margin_and_mask_much(explainer: SurrogateMaskExplainer) -> None:
    clean = ForwardTrace.of(explainer.task, explainer.task.data["test"])
    hard = explainer.hard_mask(clean, "embedding")
    masked = explainer.task.predict(clean.rows, explainer.edits("embedding", hard, clean.rows.maskable))
    assert divergence(clean.answer, masked).mean() <= 0.12
    assert hard[clean.rows.maskable].mean() < 0.8


def test_what_decides_goes_last(explainer: SurrogateMaskExplainer) -> None:
    batch = explainer.task.data["test"]
    clean = ForwardTrace.of(explainer.task, batch)
    sign = 2 * predicted_outcome(clean.answer) - 1
    speaks = ((torch.tensor(VALUES)[batch.tokens] - VALUES[4]) * sign[:, None]).masked_fill(~batch.maskable, -torch.inf)
    scores = explainer(batch).scores.masked_fill(~batch.maskable, -torch.inf)
    loudest = speaks.gather(1, scores.argmax(dim=1, keepdim=True)).squeeze(1) == speaks.amax(dim=1)
    assert loudest.float().mean() > 0.9


def test_what_is_kept_scores_higher_and_either_half_by_what_the_decision_loses(
    explainer: SurrogateMaskExplainer,
) -> None:
    batch = explainer.task.data["test"]
    found, clean = explainer(batch), ForwardTrace.of(explainer.task, batch)
    assert found.by_layer is not None
    kept = (found.by_layer[:, -1] > 0.5) & batch.maskable
    assert torch.equal(found.scores > 0.5, kept)
    speaks = (torch.tensor(VALUES)[batch.tokens] - VALUES[4]) * (2 * predicted_outcome(clean.answer) - 1)[:, None]
    for half in (kept, batch.maskable & ~kept):
        assert rank_correlation(found.scores, speaks, half).nanmean() > 0.95


def test_what_a_layer_drops_is_dropped_for_good() -> None:
    task = TextClassification(tiny_model("bert"), word_pieces(), train=["the film is good", "a dull mess"] * 4)
    by_layer = SurrogateMask(steps=3, batch_size=4, calibration_rows=4).fit(task)(task.data["train"]).by_layer
    assert by_layer is not None
    assert (by_layer[:, 1:] <= by_layer[:, :-1]).all()


def test_states_are_masked_each_at_its_own_site(toy_task: CountingTask) -> None:
    explainer = SurrogateMask(mask="states", margin=0.05, steps=60, calibration_rows=128).fit(toy_task, seed=0)
    assert isinstance(explainer, SurrogateMaskExplainer)
    clean = ForwardTrace.of(toy_task, toy_task.data["test"])
    for site in explainer.sites:
        hard = explainer.hard_mask(clean, site)
        edits = explainer.edits(site, hard, clean.rows.maskable)
        assert tuple(edits) == (site,)
        assert divergence(clean.answer, toy_task.predict(clean.rows, edits)).mean() <= 0.07


def test_the_same_seed_gives_the_same_bits(toy_task: CountingTask) -> None:
    method = SurrogateMask(steps=2, batch_size=16, calibration_rows=16)
    batch = toy_task.data["test"][:20]
    first, second, other = (method.fit(toy_task, seed)(batch).scores for seed in (1, 1, 2))
    assert torch.equal(first, second) and not torch.equal(first, other)


def test_a_learned_baseline_disturbs_the_answer_less_than_the_one_it_starts_from() -> None:
    task = WordsTask()
    clean = ForwardTrace.of(task, task.data["test"])
    half = (torch.arange(clean.rows.tokens.shape[1]) % 2).to(clean.states["embedding"]).expand(clean.rows.tokens.shape)
    caused = []
    for learn in (False, True):
        found = SurrogateMask(steps=40, calibration_rows=16, baseline="zero", learn_baseline=learn).fit(task, seed=0)
        assert isinstance(found, SurrogateMaskExplainer)
        caused.append(found.masking_divergence(clean, "embedding", half).mean())
    assert caused[1] < 0.9 * caused[0]


def test_a_baseline_is_learned_in_units_of_the_states_it_stands_for() -> None:
    small = Sum()
    small.embedding.weight.data.mul_(0.01)
    small.weights.data.div_(0.01)
    method = SurrogateMask(steps=10, calibration_rows=16, baseline="mean", learn_baseline=True)
    large, found = (
        cast(SurrogateMaskExplainer, method.fit(WordsTask(model=model), seed=0)) for model in (Sum(), small)
    )
    assert torch.allclose(found.baselines[0], 0.01 * large.baselines[0], rtol=1e-3)


def test_a_margin_is_held_on_average_and_no_more_is_asked_once_it_is_not(explainer: SurrogateMaskExplainer) -> None:
    passes = list(iter_traces(explainer.task, explainer.task.data["test"], 100))
    nothing = [torch.zeros_like(clean.rows.maskable) for clean in passes]
    caused = torch.cat(
        [explainer.masking_divergence(clean, "embedding", mask) for clean, mask in zip(passes, nothing, strict=True)]
    )
    assert explainer.satisfies_margin(passes, "embedding", nothing, caused.mean().item() + 1e-6)
    assert not explainer.satisfies_margin(passes, "embedding", nothing, caused.mean().item() - 1e-4)
    masks = iter(nothing)
    assert len(passes) > 2 and not explainer.satisfies_margin(passes, "embedding", masks, 0.0)
    assert len(list(masks)) == len(passes) - 1


def test_own_masks_keep_what_is_needed_most_at_every_share() -> None:
    needed = torch.tensor([[1e-3, 10.0, 1e-6, 5.0, 1e3]]).repeat(400, 1)
    maskable = torch.tensor([[True, True, True, True, False]]).repeat(400, 1)
    kept = draw_on_policy_masks(needed, maskable, 4, generator(0, "own"))
    assert kept.shape == (400, 4, 5) and not kept[..., 4].any()
    # Needs so far apart are never exchanged; those of 5 and 10 nats are now and then.
    assert (kept[..., 2] <= kept[..., 0]).all() and (kept[..., 0] <= kept[..., 1]).all()
    assert 0 < (kept[..., 3] & ~kept[..., 1]).sum() < (kept[..., 1] & ~kept[..., 3]).sum()
    sizes = kept.sum(dim=2)
    assert set(sizes.unique().tolist()) == {0, 1, 2, 3, 4}
    assert (sizes[:, 0] > sizes[:, 3]).all()


@pytest.mark.parametrize(
    ("probe_inputs", "guesses"), [("state", True), ("both", True), ("auto", False), ("all", False)]
)
def test_a_site_that_reads_the_last_states_does_not_guess_the_answer(
    probe_inputs: Literal["state", "both", "auto", "all"], guesses: bool
) -> None:
    task = TextClassification(tiny_model("bert"), word_pieces(), train=["the film is good", "a dull mess"] * 4)
    method = SurrogateMask(mask="states", probe_inputs=probe_inputs, steps=3, batch_size=4, calibration_rows=4)
    found, clean = method.fit(task), ForwardTrace.of(task, task.data["train"])
    assert isinstance(found, SurrogateMaskExplainer)
    assert (task.sites[-1] in found.attributor.network("embedding").sites) is not guesses
    first = found.elimination_cost(clean, "embedding")
    for leaning in found.linear_probes.children():
        cast(LinearProbe, leaning).bias[0] += 0.5
    assert torch.equal(found.elimination_cost(clean, "embedding"), first) is not guesses
