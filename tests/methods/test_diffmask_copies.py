"""DiffMask from masked copies: what speaks for the answer is kept, the margin holds, what is dropped stays dropped."""

import pytest
import torch
from torch.distributions import Bernoulli, Categorical, Normal

from diffmask.answer import decision, divergence
from diffmask.clean import CleanPass
from diffmask.methods.amortised_answer import need
from diffmask.methods.diffmask import DiffMask
from diffmask.methods.diffmask_copies import CopiesExplainer
from diffmask.tasks.text import TextClassification
from diffmask.tasks.toy import CountingTask
from support.linear import VALUES
from support.small_words import WordsTask
from support.tiny_models import tiny_model, word_pieces

pytestmark = pytest.mark.filterwarnings("ignore::diffmask.errors.FitWarning")


@pytest.fixture(scope="module")
def explainer() -> CopiesExplainer:
    found = DiffMask(margin=0.1, steps=100, batch_size=32).fit(WordsTask(), seed=0)
    assert isinstance(found, CopiesExplainer)
    return found


def test_hard_masks_of_other_rows_hold_the_margin_and_mask_much(explainer: CopiesExplainer) -> None:
    clean = CleanPass.over(explainer.task, explainer.task.data["test"])
    hard = explainer.hard(clean, "embedding")
    masked = explainer.task.predict(clean.rows, explainer.edits("embedding", hard, clean.rows.maskable))
    assert divergence(clean.answer, masked).mean() <= 0.12
    assert hard[clean.rows.maskable].mean() < 0.8


def test_what_speaks_against_the_answer_is_dropped_first(explainer: CopiesExplainer) -> None:
    batch = explainer.task.data["test"]
    clean = CleanPass.over(explainer.task, batch)
    sign = 2 * decision(clean.answer) - 1
    for_it = (torch.tensor(VALUES)[batch.tokens] - VALUES[4]) * sign[:, None]
    scores = explainer(batch).scores
    against = scores.masked_fill(~batch.maskable | (for_it > 0), -torch.inf).amax(dim=1)
    speaks = scores.masked_fill(~batch.maskable | (for_it < 0), torch.inf).amin(dim=1)
    both = against.isfinite() & speaks.isfinite()
    assert both.sum() > 100
    assert (against[both] <= speaks[both]).float().mean() > 0.95


def test_what_a_layer_drops_is_dropped_for_good() -> None:
    task = TextClassification(tiny_model("bert"), word_pieces(), train=["the film is good", "a dull mess"] * 4)
    by_layer = DiffMask(steps=3, batch_size=4, settle_rows=4).fit(task)(task.data["train"]).by_layer
    assert by_layer is not None
    assert (by_layer[:, 1:] <= by_layer[:, :-1]).all()


def test_states_are_masked_each_at_its_own_site(toy_task: CountingTask) -> None:
    explainer = DiffMask(mask="states", margin=0.05, steps=60, settle_rows=128).fit(toy_task, seed=0)
    assert isinstance(explainer, CopiesExplainer)
    clean = CleanPass.over(toy_task, toy_task.data["test"])
    for site in explainer.sites:
        hard = explainer.hard(clean, site)
        edits = explainer.edits(site, hard, clean.rows.maskable)
        assert tuple(edits) == (site,)
        assert divergence(clean.answer, toy_task.predict(clean.rows, edits)).mean() <= 0.07


def test_the_same_seed_gives_the_same_bits(toy_task: CountingTask) -> None:
    method = DiffMask(steps=2, batch_size=16, settle_rows=16)
    batch = toy_task.data["test"][:20]
    first, second, other = (method.fit(toy_task, seed)(batch).scores for seed in (1, 1, 2))
    assert torch.equal(first, second) and not torch.equal(first, other)


def test_a_token_is_needed_as_far_as_it_speaks_for_what_may_be_answered() -> None:
    added = torch.tensor([[[2.0, 0.0], [0.0, 1.0], [3.0, 3.0]]])
    two = Categorical(logits=torch.zeros(1, 2))
    sure, unsure = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.5, 0.5]])
    assert need(two, added, sure) == pytest.approx(torch.tensor([[2.0, 0.0, 0.0]]), abs=1e-3)
    assert need(two, added, unsure) == pytest.approx(torch.tensor([[1.0, 0.5, 0.0]]))
    # Of three classes, the others are weighed by how likely they are: 2 - (0.2 * 4 + 0.2 * 0) / 0.4.
    three, likely = Categorical(logits=torch.zeros(1, 3)), torch.tensor([[0.6, 0.2, 0.2]])
    expected = 0.6 * 0 + 0.2 * (4 - (0.6 * 2) / 0.8) + 0.2 * 0
    assert need(three, torch.tensor([[[2.0, 4.0, 0.0]]]), likely).item() == pytest.approx(expected)
    label = Bernoulli(logits=torch.zeros(1))
    assert need(label, torch.tensor([[[2.0], [-1.0]]]), torch.tensor([[0.75]])).tolist() == [[1.5, 0.25]]
    number = Normal(torch.zeros(1), torch.ones(1))
    assert need(number, torch.tensor([[[2.0], [-1.0]]]), torch.tensor([[0.0]])).tolist() == [[2.0, 1.0]]
