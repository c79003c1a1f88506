"""NestedDiffMask: masks are nested, every margin is satisfied, and their mean is a ranking."""

import pytest
import torch

from diffmask.core.batch import ranking
from diffmask.core.explainer import ForwardTrace
from diffmask.methods.diffmask.nested import NestedDiffMask, NestedMaskExplainer
from diffmask.metrics.fidelity import evaluate_hard_masks
from diffmask.workspace.persistence import load_explainer, save_explainer
from support.linear import VALUES
from support.small_words import WordsTask

pytestmark = pytest.mark.filterwarnings("ignore::diffmask.errors.FitWarning")

MARGINS = (0.6, 0.02, 0.1)
METHOD = NestedDiffMask(margins=MARGINS, steps=60, batch_size=16, baseline="mask", learning_rate=3e-3, temperature=0.2)


@pytest.fixture(scope="module")
def explainer() -> NestedMaskExplainer:
    fitted = METHOD.fit(WordsTask(), seed=0)
    assert isinstance(fitted, NestedMaskExplainer)
    return fitted


def test_tokens_kept_at_a_loose_margin_are_kept_at_a_tight_one(explainer: NestedMaskExplainer) -> None:
    keep = explainer(explainer.task.data["test"]).by_layer
    assert keep is not None
    assert explainer.sites == ("margin 0.02", "margin 0.1", "margin 0.6")
    assert (keep[:, 1:] <= keep[:, :-1]).all()
    assert all(entry["nested_share"] == 1 for entry in explainer.diagnostics.values())


def test_hard_masks_of_held_out_texts_satisfy_every_margin(explainer: NestedMaskExplainer) -> None:
    trace = ForwardTrace.of(explainer.task, explainer.task.data["test"])
    for margin, site in zip(explainer.margins, explainer.sites, strict=True):
        caused = explainer.masking_divergence(trace, site, explainer.hard_mask(trace, site))
        assert caused.mean() <= 1.1 * margin
        assert explainer.diagnostics[site]["hard_divergence"] <= 1.1 * margin


def test_looser_margins_keep_less(explainer: NestedMaskExplainer) -> None:
    shares = [entry["open_share"] for entry in explainer.diagnostics.values()]
    assert shares == sorted(shares, reverse=True)
    assert shares[-1] < shares[0]


def test_the_ranking_is_that_of_each_word_s_contribution(explainer: NestedMaskExplainer) -> None:
    """In an additive model the word with the largest contribution to the prediction is kept longest."""
    batch = explainer.task.data["test"]
    with torch.no_grad():
        sign = torch.sign(explainer.task.predict(batch).logits)  # type: ignore[attr-defined]
    truth = (torch.tensor(VALUES)[batch.tokens] - VALUES[4]) * sign[:, None]
    first = ranking(explainer(batch).scores, batch.maskable)[:, :1]
    best = truth.masked_fill(~batch.maskable, -torch.inf).amax(dim=1)
    assert (truth.gather(1, first).squeeze(1) == best).float().mean() >= 0.95


def test_margins_are_saved_and_loaded(explainer: NestedMaskExplainer, tmp_path) -> None:  # type: ignore[no-untyped-def]
    save_explainer(explainer, METHOD, tmp_path / "kept")
    batch = explainer.task.data["test"][:5]
    loaded = load_explainer(tmp_path / "kept", explainer.task)
    assert torch.equal(loaded(batch).scores, explainer(batch).scores)


def test_the_comprehensiveness_term_costs_one_pass_per_step() -> None:
    task = WordsTask()
    plain, breaking = (
        NestedDiffMask(
            margins=(0.1, 0.5), steps=10, batch_size=16, baseline="mask", comprehensiveness_weight=weight
        ).fit(task)
        for weight in (0.0, 0.5)
    )
    assert breaking.fit_cost.backwards == plain.fit_cost.backwards + 10
    batch = task.data["test"]
    assert not torch.equal(breaking(batch).scores, plain(batch).scores)


def test_fidelity_has_one_table_per_margin(explainer: NestedMaskExplainer) -> None:
    batch = explainer.task.data["test"]
    tables = evaluate_hard_masks(explainer, batch)
    assert tuple(tables) == explainer.sites
    trace = ForwardTrace.of(explainer.task, batch)
    for site, table in tables.items():
        hard = explainer.hard_mask(trace, site)
        torch.testing.assert_close(table["divergence"], explainer.masking_divergence(trace, site, hard))
    kept = [table["kept"].mean() for table in tables.values()]
    assert kept[-1] < kept[0]
