"""Factors per text: a stated share of unseen texts holds the margin, measured on rows that calibrated nothing."""

from itertools import pairwise

import pytest
import torch
from torch.distributions import Bernoulli

from diffmask.core.distributions import agreement, divergence
from diffmask.core.explainer import ForwardTrace
from diffmask.errors import ConfigError
from diffmask.methods.diffmask.coverage import FACTORS, SMALLEST_FACTOR, calibrate_coverage, text_features
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


def test_nine_in_ten_unseen_texts_hold_at_a_coverage_of_nine_tenths(fitted: SurrogateMaskExplainer) -> None:
    # Thresholds that erase far too much: nearly every text breaks.
    fitted.thresholds.fill_(1e6)
    site = fitted.sites[-1] if fitted.mask == "inputs" else fitted.sites[0]
    unseen = texts(300, 2)
    before = holding_share(fitted, unseen, site)
    calibrate_coverage(fitted, fitted.task.data["valid"], MARGIN, 0.9)
    assert before < 0.8
    # Even the smallest multiple of these thresholds erases everything: only the smallest factor is left, and honest.
    fitted.thresholds.fill_(MARGIN)
    fitted.factor_weights.zero_()
    calibrate_coverage(fitted, fitted.task.data["valid"], MARGIN, 0.9)
    # Three standard errors of 300 texts below nine tenths.
    assert holding_share(fitted, unseen, site) >= 0.9 - 3 * (0.09 / 300) ** 0.5


def test_with_few_rows_the_thresholds_stay_as_they_are(fitted: SurrogateMaskExplainer) -> None:
    fitted.factor_weights.zero_()
    calibrate_coverage(fitted, fitted.task.data["valid"][:20], MARGIN, 0.95)
    assert not fitted.factor_weights.any()


def test_masks_at_factor_one_are_the_hard_masks(fitted: SurrogateMaskExplainer) -> None:
    fitted.factor_weights.zero_()
    trace = ForwardTrace.of(fitted.task, fitted.task.data["valid"][:8])
    site = fitted.sites[-1]
    _, masks = fitted.scaled_masks(trace, site, (1.0,))
    assert torch.equal(masks[0] & trace.rows.maskable, (fitted.hard_mask(trace, site) > 0) & trace.rows.maskable)


def test_a_smaller_factor_keeps_more(fitted: SurrogateMaskExplainer) -> None:
    trace = ForwardTrace.of(fitted.task, fitted.task.data["valid"][:8])
    _, masks = fitted.scaled_masks(trace, fitted.sites[-1], FACTORS)
    for small, large in pairwise(masks):
        assert not (large & ~small).any()
    assert FACTORS[0] > SMALLEST_FACTOR


def test_features_are_what_they_say() -> None:
    costs = torch.tensor([[torch.inf, 0.5, 2.0, 0.1]])
    features = text_features(Bernoulli(logits=torch.tensor([3.0])), costs, torch.tensor(0.2))
    expected = torch.tensor([3.0 / 5, 3.0, 2.0, 2.0 + 1])
    expected[1:] = expected[1:].log()
    torch.testing.assert_close(features[0], expected)


def test_a_coverage_outside_of_zero_and_one_is_refused() -> None:
    with pytest.raises(ConfigError, match="coverage"):
        SurrogateMask(coverage=1.0)


def test_a_fit_reports_the_share_that_holds() -> None:
    task = TextClassification(tiny_model("bert"), word_pieces(), train=texts(200, 0), valid=texts(200, 1))
    explainer = SurrogateMask(steps=4, batch_size=16, margin=MARGIN, coverage=0.95).fit(task)
    last = explainer.diagnostics[task.sites[-1]]
    assert last["coverage"] == 0.95 and last["rows"] == 100
    assert 0 <= last["falsely_empty"] <= 1 - last["holding_share"] <= 1
    assert last["p90_divergence"] >= 0
    assert last["minimal_share"] is not None
    assert explainer.diagnostics[task.sites[0]]["minimal_share"] is None
