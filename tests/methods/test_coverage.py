"""Factors per text: a stated share of unseen texts holds the margin, measured on rows that calibrated nothing."""

from itertools import pairwise

import pytest
import torch

from diffmask.core.distributions import agreement, divergence
from diffmask.core.explainer import ForwardTrace
from diffmask.core.verification.search import log_odds_bounds
from diffmask.errors import ConfigError
from diffmask.methods.diffmask.coverage import FACTORS, calibrate_coverage, risk_features
from diffmask.methods.diffmask.surrogate import SurrogateMask, SurrogateMaskExplainer
from diffmask.tasks.classification import TextClassification
from support.tiny_models import tiny_model, word_pieces

pytestmark = pytest.mark.filterwarnings("ignore::diffmask.errors.FitWarning")
WORDS = ["good", "dull", "fun", "mess", "plot", "very", "film", "enjoyable"]
MARGIN = 0.002


def texts(count: int, seed: int) -> list[tuple[str, int]]:
    source = torch.Generator().manual_seed(seed)
    rows = []
    for number in range(count):
        length = int(torch.randint(2, 9, (), generator=source))
        words = [WORDS[place] for place in torch.randint(len(WORDS), (length,), generator=source).tolist()]
        rows.append((" ".join(words), number % 3))
    return rows


@pytest.fixture(scope="module", params=["inputs", "states"])
def fitted(request: pytest.FixtureRequest) -> SurrogateMaskExplainer:
    task = TextClassification(tiny_model("bert"), word_pieces(), train=texts(64, 0), valid=texts(300, 1))
    method = SurrogateMask(steps=6, batch_size=16, margin=MARGIN, mask=request.param, coverage=None)
    explainer = method.fit(task)
    assert isinstance(explainer, SurrogateMaskExplainer)
    return explainer


def holding_share(explainer: SurrogateMaskExplainer, rows: list[tuple[str, int]], site: str) -> float:
    trace = ForwardTrace.of(explainer.task, explainer.task.encode([text for text, _ in rows]))  # type: ignore[attr-defined]
    masked = explainer.predict_masked(trace, site, explainer.hard_mask(trace, site))
    holds = (divergence(trace.answer, masked) <= MARGIN) & agreement(trace.answer, masked)
    return holds.float().mean().item()


def without_coverage(explainer: SurrogateMaskExplainer) -> None:
    explainer.risk_weights.zero_()
    explainer.risk_prices.zero_()


def test_nine_in_ten_unseen_texts_hold_at_a_coverage_of_nine_tenths(fitted: SurrogateMaskExplainer) -> None:
    without_coverage(fitted)
    # Thresholds that erase far too much: nearly every text breaks.
    fitted.thresholds.fill_(1e6)
    site = fitted.sites[-1] if fitted.mask == "inputs" else fitted.sites[0]
    unseen = texts(300, 2)
    assert holding_share(fitted, unseen, site) < 0.8
    calibrate_coverage(fitted, fitted.task.data["valid"], 0.9)
    assert fitted.risk_prices.any()
    # Three standard errors of 300 texts below nine tenths.
    assert holding_share(fitted, unseen, site) >= 0.9 - 3 * (0.09 / 300) ** 0.5
    fitted.thresholds.fill_(MARGIN)
    without_coverage(fitted)
    calibrate_coverage(fitted, fitted.task.data["valid"], 0.9)
    assert holding_share(fitted, unseen, site) >= 0.9 - 3 * (0.09 / 300) ** 0.5


def test_with_few_rows_the_thresholds_stay_as_they_are(fitted: SurrogateMaskExplainer) -> None:
    without_coverage(fitted)
    calibrate_coverage(fitted, fitted.task.data["valid"][:18], 0.95)
    assert not fitted.risk_prices.any()


def test_masks_at_factor_one_are_the_hard_masks_and_at_zero_keep_all(fitted: SurrogateMaskExplainer) -> None:
    without_coverage(fitted)
    trace = ForwardTrace.of(fitted.task, fitted.task.data["valid"][:8])
    site = fitted.sites[-1]
    masks = fitted.scaled_masks(trace, site)
    expected = (fitted.hard_mask(trace, site) > 0) & trace.rows.maskable
    assert torch.equal(masks.kept[:, FACTORS.index(1.0)], expected)
    assert torch.equal(masks.kept[:, 0], trace.rows.maskable)
    assert masks.share[:, 0].tolist() == [1.0] * 8


def test_a_smaller_factor_keeps_more(fitted: SurrogateMaskExplainer) -> None:
    trace = ForwardTrace.of(fitted.task, fitted.task.data["valid"][:8])
    masks = fitted.scaled_masks(trace, fitted.sites[-1])
    for small, large in pairwise(masks.kept.unbind(dim=1)):
        assert not (large & ~small).any()
    assert (masks.share.diff(dim=1) <= 0).all()


def test_the_mask_of_a_text_is_one_of_its_scaled_masks(fitted: SurrogateMaskExplainer) -> None:
    without_coverage(fitted)
    calibrate_coverage(fitted, fitted.task.data["valid"], 0.9)
    trace = ForwardTrace.of(fitted.task, fitted.task.data["valid"][:40])
    site = fitted.sites[-1]
    kept = (fitted.hard_mask(trace, site) > 0) & trace.rows.maskable
    candidates = fitted.scaled_masks(trace, site).kept
    assert (candidates == kept[:, None]).all(dim=2).any(dim=1).all()
    attribution = fitted.attribution(trace)
    assert attribution.by_layer is not None
    assert torch.equal((attribution.by_layer[:, -1] > 0.5) & trace.rows.maskable, kept)


def test_features_are_the_tolerance_and_the_distances_to_both_bounds(fitted: SurrogateMaskExplainer) -> None:
    trace = ForwardTrace.of(fitted.task, fitted.task.data["valid"][:3])
    contribution = torch.full(trace.rows.tokens.shape, 0.01)
    erased = trace.rows.maskable[:, None].repeat(1, 2, 1)
    erased[:, 0] = False
    features = risk_features(trace, contribution, erased, margin=0.1)
    probability = trace.answer.probs.amax(dim=1).double()  # type: ignore[attr-defined]
    for row in range(3):
        lead = float(torch.logit(probability[row]))
        low, high = map(float, log_odds_bounds(lead, 0.1))
        for mask, fallen in enumerate([lead, lead - 0.01 * int(trace.rows.maskable[row].sum())]):
            tolerance = float(torch.tensor(max(lead - low, 1e-3)).log())
            expected = [tolerance, min(max(fallen - low, -3), 3), min(max(high - fallen, -1), 3)]
            assert features[row, mask].tolist() == pytest.approx(expected, abs=1e-3)


def test_bounds_of_many_texts_are_those_of_each() -> None:
    leads = [-1.0, 0.01, 0.5, 2.0, 7.0]
    low, high = log_odds_bounds(leads, 0.1)
    for number, lead in enumerate(leads):
        assert (low[number], high[number]) == pytest.approx(tuple(map(float, log_odds_bounds(lead, 0.1))), abs=1e-9)


def test_a_coverage_outside_of_zero_and_one_is_refused() -> None:
    with pytest.raises(ConfigError, match="coverage"):
        SurrogateMask(coverage=1.0)


def test_a_fit_reports_the_share_that_holds() -> None:
    task = TextClassification(tiny_model("bert"), word_pieces(), train=texts(200, 0), valid=texts(200, 1))
    explainer = SurrogateMask(steps=4, batch_size=16, margin=MARGIN).fit(task)
    last = explainer.diagnostics[task.sites[-1]]
    assert last["coverage"] == 0.95 and last["rows"] == 100
    assert 0 <= last["falsely_empty"] <= 1 - last["holding_share"] <= 1
    assert last["p90_divergence"] >= 0
    assert last["minimal_share"] is not None
    assert explainer.diagnostics[task.sites[0]]["minimal_share"] is None
