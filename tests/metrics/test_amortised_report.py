"""The report compares an amortised explainer with its teachers: held-out, out-of-distribution and planted texts."""

from typing import cast

import pytest
import torch

from diffmask.core.batch import Batch
from diffmask.methods.amortised.amortised import Amortised, AmortisedExplainer
from diffmask.methods.leave_one_out import LeaveOneOut
from diffmask.metrics.amortised_report import AmortisedReport, amortised_report, score_faithfulness, shuffle_tokens
from support.linear import LinearTask
from support.small_words import WordsTask
from support.transformer import TransformerTask, with_spare_words

pytestmark = [pytest.mark.filterwarnings("ignore::diffmask.errors.FitWarning"), pytest.mark.usefixtures("cache")]


@pytest.fixture(scope="module")
def explainer() -> AmortisedExplainer:
    method = Amortised(budget="2400 texts", width=32, batch_size=32, steps_per_batch=4, learning_rate=5e-3)
    return method.fit(WordsTask(), seed=0)  # type: ignore[return-value]


@pytest.fixture(scope="module")
def report(explainer: AmortisedExplainer) -> AmortisedReport:
    return amortised_report(explainer, rows=40)


def test_the_explainer_is_compared_with_standard_methods(report: AmortisedReport) -> None:
    amortised, gradients, erasure = report.held_out.rows
    assert (gradients.method.split()[0], erasure.method) == ("integrated-gradients", "leave-one-out")
    assert amortised.correlation == pytest.approx(1) and amortised.overlap == 1
    # In an additive model all three are right, up to ties.
    assert amortised.faithfulness.comprehensiveness == pytest.approx(erasure.faithfulness.comprehensiveness, abs=0.02)
    assert report.problems == ()


def test_the_default_ood_texts_have_their_tokens_in_random_order(report: AmortisedReport) -> None:
    assert report.ood_texts.title.endswith("tokens in random order") and report.ood_texts.texts == 40
    # A sum has no order: scores are as faithful on shuffled texts.
    held_out, shuffled = report.held_out.rows[0], report.ood_texts.rows[0]
    assert shuffled.faithfulness.comprehensiveness == pytest.approx(held_out.faithfulness.comprehensiveness, abs=0.02)


def test_if_nothing_can_be_planted_the_report_gives_the_reason(report: AmortisedReport) -> None:
    assert report.planted == {}
    assert "not measured: a shortcut needs three tokens that occur in no text" in str(report)


def test_ood_texts_of_a_user_are_flagged(explainer: AmortisedExplainer) -> None:
    usual = explainer.task.data["test"]
    unusual = Batch(**{**vars(usual), "tokens": torch.where(usual.maskable, 3, 0)})
    long = unusual[unusual.present.sum(dim=1) > 5]
    report = amortised_report(explainer, rows=20, ood_texts=long, planted=False)
    assert report.ood_texts.out_of_distribution == tuple(range(len(long)))
    assert f"{len(long)} of {len(long)} texts are out of distribution" in str(report)
    assert "not measured: planted=False" in str(report)


def test_explainer_and_teacher_are_measured_on_a_planted_shortcut() -> None:
    method = Amortised(teacher="leave-one-out", budget="600 texts", width=32, learning_rate=3e-3)
    explainer = cast(AmortisedExplainer, method.fit(with_spare_words(TransformerTask())))
    report = amortised_report(explainer, rows=20, planted={"steps": 120, "learning_rate": 5e-3})
    assert list(report.planted)[:2] == [method.label, LeaveOneOut().label]
    assert report.planted[LeaveOneOut().label] > 0.8 and report.planted[method.label] > 0.5
    assert f"{method.label[:36]:36} {report.planted[method.label]:8.1%}" in str(report)


def test_shuffling_keeps_every_token_and_the_special_tokens_in_place() -> None:
    batch = TransformerTask().data["test"]
    shuffled = shuffle_tokens(batch)
    assert (shuffled.tokens != batch.tokens).any()
    assert torch.equal(shuffled.tokens[~batch.maskable], batch.tokens[~batch.maskable])
    assert torch.equal(shuffled.tokens.sort(dim=1).values, batch.tokens.sort(dim=1).values)


def test_faithfulness_is_arithmetic() -> None:
    """Tokens 3 3: the mask is token 4. Without the first 5 % (one token) the logit falls from 8 to 3.5."""
    task = LinearTask([[3, 3]])
    result = score_faithfulness(task, task.data["train"], torch.tensor([[1.0, 0.0]]))
    p = torch.sigmoid(torch.tensor([8.0, 3.5]))
    assert result.comprehensiveness == pytest.approx(float(p[0] - p[1]), abs=1e-6)
    assert result.sufficiency == pytest.approx(float(p[0] - p[1]), abs=1e-6)
