"""A report puts a student beside its teachers: on held-out texts, on strangers, and where the truth was planted."""

from typing import cast

import pytest
import torch

from diffmask.core.batch import Batch
from diffmask.methods.amortised.amortised import Amortised, AmortisedExplainer
from diffmask.methods.leave_one_out import LeaveOneOut
from diffmask.metrics.amortised_report import Report, faithfulness, in_no_order
from support.linear import LinearTask
from support.small_words import WordsTask
from support.transformer import TransformerTask, with_spare_words

pytestmark = [pytest.mark.filterwarnings("ignore::diffmask.errors.FitWarning"), pytest.mark.usefixtures("cache")]


@pytest.fixture(scope="module")
def words() -> AmortisedExplainer:
    method = Amortised(budget="2400 texts", width=32, batch_size=32, updates=4, learning_rate=5e-3)
    return method.fit(WordsTask(), seed=0)  # type: ignore[return-value]


@pytest.fixture(scope="module")
def report(words: AmortisedExplainer) -> Report:
    return words.report(rows=40)


def test_the_student_stands_beside_the_others(report: Report) -> None:
    student, gradients, erasure = report.held_out.lines
    assert (gradients.method.split()[0], erasure.method) == ("integrated-gradients", "leave-one-out")
    assert student.correlation == pytest.approx(1) and student.overlap == 1
    # In a model that adds up all three are right, up to ties.
    assert student.quality.comprehensiveness == pytest.approx(erasure.quality.comprehensiveness, abs=0.02)
    assert report.problems == ()


def test_words_in_random_order_are_the_default_strangers(report: Report) -> None:
    assert report.strangers.title.endswith("words in random order") and report.strangers.texts == 40
    # A sum has no order: what is faithful of the texts is as faithful of these.
    held_out, strangers = report.held_out.lines[0], report.strangers.lines[0]
    assert strangers.quality.comprehensiveness == pytest.approx(held_out.quality.comprehensiveness, abs=0.02)


def test_where_nothing_can_be_planted_the_report_says_why(report: Report) -> None:
    assert report.planted == {}
    assert "not measured: a shortcut needs three tokens that occur in no text" in str(report)


def test_a_user_s_own_strangers_are_flagged(words: AmortisedExplainer) -> None:
    usual = words.task.data["test"]
    strange = Batch(**{**vars(usual), "tokens": torch.where(usual.maskable, 3, 0)})
    long = strange[strange.present.sum(dim=1) > 5]
    found = words.report(rows=20, strangers=long, planted=False)
    assert found.strangers.unlike == tuple(range(len(long)))
    assert f"{len(long)} of {len(long)} are unlike the texts of the fit" in str(found)
    assert "not measured: it was not asked for" in str(found)


def test_student_and_teacher_are_asked_for_a_planted_shortcut() -> None:
    method = Amortised(teacher="leave-one-out", budget="600 texts", width=32, learning_rate=3e-3)
    student = cast(AmortisedExplainer, method.fit(with_spare_words(TransformerTask())))
    found = student.report(rows=20, planted={"steps": 120, "learning_rate": 5e-3})
    assert list(found.planted)[:2] == [method.label, LeaveOneOut().label]
    assert found.planted[LeaveOneOut().label] > 0.8 and found.planted[method.label] > 0.5
    assert f"{method.label[:36]:36} {found.planted[method.label]:8.1%}" in str(found)


def test_no_order_keeps_every_token_and_what_frames_them() -> None:
    batch = TransformerTask().data["test"]
    found = in_no_order(batch)
    assert (found.tokens != batch.tokens).any()
    assert torch.equal(found.tokens[~batch.maskable], batch.tokens[~batch.maskable])
    assert torch.equal(found.tokens.sort(dim=1).values, batch.tokens.sort(dim=1).values)


def test_faithfulness_is_arithmetic() -> None:
    """Tokens 3 3: the mask is token 4. Without the first 5 % (one token) the logit falls from 8 to 3.5."""
    task = LinearTask([[3, 3]])
    found = faithfulness(task, task.data["train"], torch.tensor([[1.0, 0.0]]))
    p = torch.sigmoid(torch.tensor([8.0, 3.5]))
    assert found.comprehensiveness == pytest.approx(float(p[0] - p[1]), abs=1e-6)
    assert found.sufficiency == pytest.approx(float(p[0] - p[1]), abs=1e-6)
