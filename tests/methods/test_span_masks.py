"""Masks of answers that are positions: a surrogate learns divergences, and how far each token is from the answer."""

import math

import pytest
import torch
from torch.distributions import Categorical, Independent

from diffmask.core.batch import Batch
from diffmask.core.explainer import ForwardTrace, iter_traces
from diffmask.methods.diffmask.answer_distance import FLOOR, distance_features, fit_answer_distances
from diffmask.methods.diffmask.elimination import TIE_BREAK
from diffmask.methods.diffmask.surrogate import SurrogateMask, SurrogateMaskExplainer
from diffmask.methods.diffmask.surrogate_target import COST_SHIFT, DivergenceCosts, LogitChanges, surrogate_target
from support.planted_spans import CANDIDATE, CUE, PlantedSpans
from support.small_words import WordsTask

pytestmark = pytest.mark.filterwarnings("ignore::diffmask.errors.FitWarning")


def needed(batch: Batch) -> torch.Tensor:
    """The cue and the candidate after it."""
    cue = batch.tokens == CUE
    return cue | cue.roll(1, dims=1)


@pytest.fixture(scope="module")
def explainer() -> SurrogateMaskExplainer:
    fitted = SurrogateMask(margin=0.1, steps=80, batch_size=16).fit(PlantedSpans(), seed=0)
    assert isinstance(fitted, SurrogateMaskExplainer)
    return fitted


def test_masks_keep_the_answer_and_its_cue_and_erase_nearly_all_else(explainer: SurrogateMaskExplainer) -> None:
    trace = ForwardTrace.of(explainer.task, explainer.task.data["test"])
    kept = explainer.hard_mask(trace, "cued").bool()
    assert explainer.masking_divergence(trace, "cued", kept).mean() <= 0.1
    assert kept[needed(trace.rows)].float().mean() > 0.95
    assert kept[~needed(trace.rows)].float().mean() < 0.1


def test_the_answer_and_its_cue_have_the_highest_scores(explainer: SurrogateMaskExplainer) -> None:
    batch = explainer.task.data["test"]
    best = explainer(batch).scores.topk(2, dim=1).indices
    assert needed(batch).gather(1, best).float().mean() > 0.95


def test_a_layer_that_cannot_know_the_answer_gives_equal_weight_to_its_candidates() -> None:
    task = PlantedSpans()
    traces = list(iter_traces(task, task.data["train"]))
    distances = fit_answer_distances(task, traces, task.sites, ["cued"])
    trace = ForwardTrace.of(task, task.data["test"])
    weights = distances.probes[0](trace.states["embedding"], trace.rows.present)
    torch.testing.assert_close(weights[trace.rows.tokens == CANDIDATE], torch.full((450,), 1 / 3), atol=0.03, rtol=0)
    assert distances.names("cued") == ("distance to the answer",)
    states = distances.states(trace)
    own = states["distance to the answer"][..., 0]
    answer = trace.rows.target[:, 0]
    assert torch.equal(own.argmax(dim=1), answer)
    early = states[distances.names("embedding")[0]][..., 0]
    assert (early.exp() > 0.2).sum() == 450


def test_features_of_the_distance_by_hand() -> None:
    features = distance_features(torch.tensor([[0.0, 1.0, 0.0]]))
    assert features[0, 1, 0].item() == pytest.approx(math.log(1 + FLOOR), rel=1e-3)
    assert features[0, 0, 1].item() == pytest.approx(math.log(math.exp(-1 / 1.5) + FLOOR))
    assert features[0, :, -1].tolist() == [0, 1, 1]


def test_costs_add_up_from_the_cheapest_token_on() -> None:
    costs = torch.tensor([[0.5, 0.1, 3.0, 0.2]])
    outputs = (costs.expm1().log() + COST_SHIFT)[..., None]
    maskable = torch.tensor([[True, True, True, False]])
    target = DivergenceCosts()
    found = target.elimination_costs(Categorical(logits=torch.zeros(1, 2)), torch.zeros(1, 2), outputs, maskable)
    expected = torch.tensor([[0.6 + 2 * TIE_BREAK, 0.1 + TIE_BREAK, 3.6 + 3 * TIE_BREAK, torch.inf]])
    torch.testing.assert_close(found, expected)


def test_the_error_is_zero_if_the_costs_of_erased_tokens_sum_to_the_divergence() -> None:
    answer = Independent(Categorical(logits=torch.tensor([[[2.0, 0.0], [1.0, 0.0]]])), 1)
    masked = torch.tensor([[[0.0, 0.0, 1.0, 0.0]]])
    p = 1 / (1 + math.exp(-2))
    kl = p * math.log(p / 0.5) + (1 - p) * math.log((1 - p) / 0.5)
    costs = torch.tensor([[0.25 * kl, 7.0, 0.75 * kl]])
    outputs = (costs.expm1().log() + COST_SHIFT)[..., None]
    erased = torch.tensor([[[True, False, True]]])
    assert DivergenceCosts().loss(answer, masked, outputs, erased).item() == pytest.approx(0, abs=1e-9)
    assert DivergenceCosts().loss(answer, masked, outputs, ~erased).item() > 1


def test_only_answers_that_are_positions_are_learned_as_divergences() -> None:
    words, spans = WordsTask(), PlantedSpans()
    assert isinstance(surrogate_target(words.predict(words.data["test"])), LogitChanges)
    assert isinstance(surrogate_target(spans.predict(spans.data["test"])), DivergenceCosts)
