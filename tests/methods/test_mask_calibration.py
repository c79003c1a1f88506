"""Calibration of hard masks: thresholds are consistent with masks, and held-out rows satisfy the margin."""

from typing import cast

import pytest
import torch

from diffmask.core.explainer import ForwardTrace, iter_traces
from diffmask.methods.diffmask.base import MaskExplainer, MaskKind, MaskMethod, binarize
from diffmask.methods.diffmask.calibration import ThresholdSearch, calibrate, calibration_split
from diffmask.methods.diffmask.gated import DiffMask, GatedMaskExplainer
from diffmask.methods.diffmask.nested import NestedDiffMask
from diffmask.methods.diffmask.surrogate import SurrogateMask
from support.small_words import WordsTask
from support.transformer import TransformerTask

pytestmark = pytest.mark.filterwarnings("ignore::diffmask.errors.FitWarning")

METHODS: list[MaskMethod] = [
    DiffMask(mask="inputs", steps=5, calibration_rows=0),
    DiffMask(mask="states", steps=5, calibration_rows=0),
    SurrogateMask(mask="inputs", steps=2, batch_size=8, coverage=None),
    SurrogateMask(mask="states", steps=2, batch_size=8, coverage=None),
    NestedDiffMask(margins=(0.1, 0.5), steps=5, batch_size=8),
]


def fitted(method: MaskMethod, task: TransformerTask | WordsTask) -> MaskExplainer:
    explainer = cast(MaskExplainer, method.fit(task, seed=0))
    if isinstance(explainer, GatedMaskExplainer):
        # Votes that differ between tokens, as after a long fit.
        for index, probe in enumerate(explainer.probes.children()):
            torch.nn.init.normal_(probe.vote.weight, generator=torch.Generator().manual_seed(index))  # type: ignore[union-attr, arg-type]
    return explainer


@pytest.mark.parametrize("method", METHODS, ids=lambda method: f"{method.name} {getattr(method, 'mask', '')}")
def test_the_hard_mask_keeps_the_tokens_whose_score_is_above_the_threshold(method: MaskMethod) -> None:
    task = TransformerTask()
    explainer = fitted(method, task)
    trace = ForwardTrace.of(task, task.data["test"])
    maskable = trace.rows.maskable
    kept = maskable
    with torch.no_grad():
        for site in explainer.sites:
            scores = explainer.threshold_scores(trace, site)
            finite = scores[maskable & scores.isfinite()]
            threshold = finite.quantile(0.4).item() + 1e-4
            explainer.set_threshold(site, threshold)
            expected = (kept if explainer.mask == "inputs" and not isinstance(method, NestedDiffMask) else maskable) & (
                scores > threshold
            )
            assert torch.equal(explainer.hard_mask(trace, site).bool() & maskable, expected)
            kept = expected
        assert kept.any() and not torch.equal(kept, maskable)


@pytest.mark.parametrize("method", METHODS, ids=lambda method: f"{method.name} {getattr(method, 'mask', '')}")
def test_a_threshold_of_minus_infinity_keeps_all_tokens(method: MaskMethod) -> None:
    task = TransformerTask()
    explainer = fitted(method, task)
    trace = ForwardTrace.of(task, task.data["test"])
    with torch.no_grad():
        for site in explainer.sites:
            explainer.set_threshold(site, -torch.inf)
        keep = explainer.keep_probability(trace, explainer.sites)
    assert binarize(keep).bool().transpose(1, 2)[trace.rows.maskable].all()


def test_gates_calibrated_on_validation_rows_satisfy_the_margin_on_others() -> None:
    task = WordsTask()
    explainer = fitted(DiffMask(steps=5, calibration_rows=0), task)
    margin, trace = 0.1, ForwardTrace.of(task, task.data["test"])
    with torch.no_grad():
        before = explainer.masking_divergence(trace, "embedding", explainer.hard_mask(trace, "embedding")).mean()
        calibrate(explainer, calibration_split(task)[0], {"embedding": margin})
        after = explainer.masking_divergence(trace, "embedding", explainer.hard_mask(trace, "embedding")).mean()
    assert after <= margin < before


def test_calibration_rows_and_diagnosis_rows_are_disjoint_halves_of_the_validation_rows() -> None:
    task = WordsTask()
    calibration, diagnosis = calibration_split(task)
    assert torch.equal(calibration.tokens, task.data["valid"].tokens[::2])
    assert torch.equal(diagnosis.tokens, task.data["valid"].tokens[1::2])


def test_a_search_without_a_satisfying_level_keeps_everything() -> None:
    task = WordsTask()
    explainer = fitted(METHODS[2], task)
    traces = list(iter_traces(task, task.data["test"]))
    search = ThresholdSearch.at(explainer, "embedding", traces, [trace.rows.maskable for trace in traces])
    assert search.highest(-1.0) == -torch.inf
    # Every mask satisfies a margin beyond reach: the highest level, then halfway to all tokens, twice.
    pooled = torch.cat([scores[trace.rows.maskable] for scores, trace in zip(search.scores, traces, strict=True)])
    assert search.highest(1e3) == pytest.approx(pooled.quantile(0.9875).item())


def test_a_trained_threshold_that_satisfies_the_margin_is_kept_and_not_moved_to_a_score() -> None:
    task = WordsTask()
    explainer = fitted(METHODS[2], task)
    traces = list(iter_traces(task, task.data["test"]))
    # Two groups of scores with a wide gap: the level of a quantile would put the threshold at an edge of the gap.
    needed = [explainer.threshold_scores(trace, "embedding") for trace in traces]
    middle = torch.cat([scores[trace.rows.maskable] for scores, trace in zip(needed, traces, strict=True)]).median()
    scores = [torch.where(part > middle, 10.0, -10.0) + 0.01 * part for part in needed]
    kept = [trace.rows.maskable for trace in traces]
    search = ThresholdSearch(explainer, "embedding", traces, kept, scores)
    masked = search.masks(0.0)
    caused = torch.cat(
        [explainer.masking_divergence(trace, "embedding", mask) for trace, mask in zip(traces, masked, strict=True)]
    )
    margin = caused.mean().item() + 1e-6
    assert not explainer.satisfies_margin(traces, "embedding", search.masks(11.0), margin)
    assert search.highest(margin, halvings=0, trained=0.0) == 0.0
    assert search.highest(margin, halvings=0) < -9.0
    # A trained threshold that breaks the margin is given up.
    assert search.highest(-1.0, trained=0.0) == -torch.inf


@pytest.mark.parametrize("mask", ["inputs", "states"])
def test_masks_of_a_nested_explainer_are_calibrated_within_those_of_the_site_before(
    mask: MaskKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = TransformerTask()
    explainer = fitted(DiffMask(mask=mask, steps=1, calibration_rows=0), task)
    maskable = [trace.rows.maskable for trace in iter_traces(task, task.data["test"], 32)]
    kept_before: list[list[torch.Tensor]] = []
    searches: list[ThresholdSearch] = []
    at = ThresholdSearch.at

    def watched(explainer: MaskExplainer, site: str, traces: list[ForwardTrace], kept: list[torch.Tensor]) -> object:
        kept_before.append(kept)
        searches.append(at(explainer, site, traces, kept))
        return searches[-1]

    monkeypatch.setattr(ThresholdSearch, "at", staticmethod(watched))
    monkeypatch.setattr(ThresholdSearch, "highest", lambda search, *_, **__: search.scores[0].median().item())
    calibrate(explainer, task.data["test"], dict.fromkeys(explainer.sites, 0.1))
    assert len(kept_before) == len(explainer.sites) > 1
    for site in range(1, len(searches)):
        before = searches[site - 1]
        expected = before.masks(before.scores[0].median().item()) if mask == "inputs" else maskable
        assert all(torch.equal(one, other) for one, other in zip(kept_before[site], expected, strict=True))
