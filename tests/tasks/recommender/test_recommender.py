"""The task of a recommender: parity with the model, edits that address one title, explanations."""

from dataclasses import replace
from itertools import pairwise
from statistics import fmean

import pytest
import torch
from torch import Tensor
from torch.distributions import Bernoulli, Categorical, Normal

import diffmask as dm
from diffmask.core.answers import RankingAnswer
from diffmask.core.batch import delete_tokens, hide_tokens
from diffmask.core.coarse_answers import coarse_outcome, coarsen
from diffmask.core.distributions import class_probabilities, divergence, logits, predicted_outcome
from diffmask.datasets.mind import Impression
from diffmask.datasets.mind_generator import CLICK_WORDS
from diffmask.errors import InputError, InputWarning
from diffmask.metrics.ranks import rank_correlation
from diffmask.tasks.recommender.explain_impressions import RankingExplanation
from diffmask.tasks.recommender.news_recommender import NewsRecommender
from diffmask.tasks.recommender.titles import ExplainedCandidate, TitleGrid
from support.news import FILMS, bert_recommender, recommender

pytestmark = pytest.mark.filterwarnings("ignore::diffmask.errors.FitWarning")
MODES = ("candidate", "history", "both")


@pytest.mark.parametrize("explain", MODES)
@pytest.mark.parametrize("make", [recommender, bert_recommender])
def test_the_explained_score_is_the_models_own(make: object, explain: str) -> None:
    task = make(explain=explain)  # type: ignore[operator]  # one of the two functions
    for row, scores in zip(task.sources["valid"], task.scores(task.data["valid"]), strict=True):
        own = task.rank(row.impression)[row.order()]
        torch.testing.assert_close(scores[: len(own)], own, rtol=1e-4, atol=1e-4)
        assert scores[len(own) :].isinf().all()


@pytest.mark.parametrize("explain", MODES)
@pytest.mark.parametrize("make", [recommender, bert_recommender])
def test_edits_see_the_tokens_of_the_explained_titles_and_no_others(make: object, explain: str) -> None:
    task: NewsRecommender = make(explain=explain)  # type: ignore[operator]  # one of the two functions
    batch = task.data["valid"][:4].trim()
    answer, states = task.trace(batch)
    assert set(states) == set(task.sites) and "match" in states
    embedded = task.model.embedding(batch.tokens)
    torch.testing.assert_close(states["embedding"], embedded * batch.present[..., None])
    same = task.predict(batch, {site: lambda state: state for site in task.sites})
    torch.testing.assert_close(logits(same), logits(answer))
    # Erasing a word of row 0 changes its answer, and no other row's.
    column = int(batch.maskable[0].nonzero()[0])
    gone = torch.zeros_like(batch.maskable)
    gone[0, column] = True
    changed = task.predict(batch, {"embedding": lambda state: state.masked_fill(gone[..., None], 0.0)})
    moved = divergence(answer, changed)
    assert moved[0] > 0
    torch.testing.assert_close(logits(changed)[1:], logits(answer)[1:])


def test_a_grid_survives_deleted_and_hidden_tokens() -> None:
    task = recommender(explain="both")
    batch = task.data["valid"][:3].trim()
    gone = torch.zeros_like(batch.maskable)
    gone[:, [1, 4]] = True
    shorter = delete_tokens(batch, gone)
    grid = TitleGrid.of(shorter)
    ids = grid.to_grid(shorter.tokens, -1)
    assert torch.equal(grid.to_rows(ids)[grid.belongs], shorter.tokens[grid.belongs])
    first = [token for token, keep in zip(batch.tokens[0].tolist(), (~gone[0]).tolist(), strict=True) if keep]
    length = int(((batch.token_inputs["title"][0] == 1) & ~gone[0]).sum())
    assert ids[0, :length].tolist() == first[:length]
    assert logits(task.predict(hide_tokens(batch, gone))).isfinite().all()


def test_answers_are_a_ranking_a_score_or_a_click() -> None:
    ranking, score, click = (recommender(answer=answer) for answer in ("ranking", "score", "click"))
    batch = ranking.data["test"][:5]
    scores = ranking.scores(batch)
    answer = ranking.predict(batch)
    assert isinstance(answer, Categorical)
    torch.testing.assert_close(answer.probs, scores.softmax(dim=1))
    number = score.predict(batch)
    assert isinstance(number, Normal)
    torch.testing.assert_close(number.loc, scores[:, 0])
    assert float(number.scale[0]) == float(ranking.model.score_deviation) != 1.0
    clicked = click.predict(batch)
    assert isinstance(clicked, Bernoulli)
    torch.testing.assert_close(clicked.probs, answer.probs[:, 0])


def test_context_vectors_are_computed_again_when_the_weights_change() -> None:
    task = bert_recommender(explain="candidate")
    before = task.scores(task.data["valid"])
    with torch.no_grad():
        task.model.word_mixer.qkv.weight.mul_(-3)
    after = task.scores(task.data["valid"])
    assert not torch.allclose(before, after)
    own = task.rank(FILMS)
    torch.testing.assert_close(after[0, : len(own)], own, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("explain", MODES)
def test_padding_and_the_rest_of_a_batch_change_nothing(explain: str) -> None:
    task = recommender(explain=explain)
    batch = task.data["test"][:6]
    together = logits(task.predict(batch.pad(batch.tokens.shape[1] + 3)))
    alone = torch.cat([logits(task.predict(batch[row : row + 1].trim())) for row in range(6)])
    torch.testing.assert_close(together, alone, rtol=1e-5, atol=1e-5)


def click_words() -> set[str]:
    return {word for words in CLICK_WORDS.values() for word in words}


def test_leave_one_out_finds_the_click_word() -> None:
    task = recommender(explain="candidate")
    explainer = dm.LeaveOneOut().fit(task)
    found = 0
    for row in task.impressions["test"][:20]:
        explanation = explainer(row, candidate=row.clicked[0])
        assert isinstance(explanation, RankingExplanation) and explanation.verified is not None
        found += explanation.words[int(explanation.scores.argmax())] in click_words()
    assert found >= 18


def test_the_read_article_of_the_topic_matters_most() -> None:
    task = recommender(explain="history")
    explainer = dm.LeaveOneOut().fit(task)
    rows = [row for row in task.impressions["test"] if sum(name != "general" for name in row.history_categories) == 1]
    first = []
    for row in rows[:15]:
        titles = explainer(row, candidate=row.clicked[0], verify=False).at("title")
        assert titles.words == row.history
        first.append(row.history_categories[int(titles.scores.argmax())] != "general")
    assert sum(first) >= 0.9 * len(first)


def test_an_impression_is_given_by_its_fields() -> None:
    task = recommender()
    explainer = dm.LeaveOneOut().fit(task)
    row = task.impressions["test"][0]
    titles = [one.title for one in row.candidates]
    explanation = explainer(history=list(row.history), candidates=titles, explain="candidate")
    assert explanation.rank == 1 and explanation.candidate == titles[int(task.rank(row).argmax())]
    assert explanation.text == explanation.candidate
    assert sum(explanation.probabilities) == pytest.approx(1)
    both = explainer({"history": list(row.history), "candidates": titles})
    assert both.text.split("\n") == [explanation.candidate, *row.history]
    assert [each.text for each in both.at("title").units] == both.text.split("\n")
    last = explainer(history=list(row.history), candidates=titles, candidate=1, explain="history", verify=False)
    assert last.text.split("\n") == list(row.history) and last.candidate == titles[1]
    assert len(explainer([row, row], verify=False)) == 2


def test_a_picture_names_the_candidate_and_the_titles_read(capsys: pytest.CaptureFixture[str]) -> None:
    task = recommender()
    row = task.impressions["test"][0]
    explainer = dm.LeaveOneOut().fit(task)
    explainer(row, explain="candidate").show()
    shown = capsys.readouterr().out
    assert "Candidate:" in shown and "rank 1 of 3" in shown and f"Read 1: {row.history[0][:20]}" in shown
    assert "Read 1: " in explainer(row, explain="history", verify=False).to_html()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"candidates": ["one"]}, "at least two candidates"),
        ({"candidates": ["one", " "]}, r"candidates\[1\] is an empty title"),
        ({"candidates": "one title"}, "candidates is a list of titles"),
        ({"candidates": ["a", "b"], "explain": "history"}, "history is empty"),
        ({"candidates": ["a", "b"], "candidate": 2}, "candidate=2 is not an index"),
        ({"candidates": ["a", "b"], "explain": "words"}, "explain='words' is unknown"),
        ({"candidats": ["a", "b"]}, "nearest: 'candidates'"),
        ({"candidates": ["a", "b"], "target": 1}, "candidate=INDEX"),
    ],
)
def test_a_bad_impression_is_refused(fields: dict[str, object], message: str) -> None:
    explainer = dm.Random().fit(recommender())
    with pytest.raises(InputError, match=message):
        explainer(**fields)
    with pytest.raises(InputError, match="not a str"):
        explainer("a title")


def test_a_task_for_candidates_does_not_explain_histories() -> None:
    task = recommender(explain="candidate")
    with pytest.raises(InputError, match="also explains history"):
        dm.Random().fit(task)(task.impressions["test"][0], explain="history")
    with pytest.raises(InputError, match="no impression of 'test'"):
        task.add_split("test", [replace(task.impressions["test"][0], candidates=())])


def test_very_long_titles_and_long_histories_are_cut() -> None:
    task = recommender(explain="both")
    row = task.impressions["test"][0]
    long = Impression(candidates=row.candidates, history=tuple(f"striker {number}" for number in range(300)))
    assert len(task.encode([ExplainedCandidate(long, 0)]).inputs["history"][0]) == task.max_history
    with pytest.warns(InputWarning, match="tokens"):
        task.encode([ExplainedCandidate(replace(row, history=("word " * 10_000,)), 0)])


def test_attention_is_that_of_the_words_and_of_the_titles() -> None:
    task = recommender(explain="both")
    batch = task.data["test"][:4].trim()
    weights = task.attentions(batch)[:, 0, 0, 0]

    def mass(chosen: Tensor) -> Tensor:
        return (weights * chosen).sum(dim=1)

    candidate = batch.token_inputs["title"] == 1
    torch.testing.assert_close(mass(candidate), torch.ones(4))
    torch.testing.assert_close(mass(~candidate), torch.ones(4))


def test_training_rows_have_as_many_unclicked_candidates_as_clicked_ones() -> None:
    task = recommender(explain="candidate")
    marks = [row.impression.candidates[row.candidate].clicked for row in task.sources["train"]]
    assert marks.count(True) == marks.count(False) == 500
    half = marks[: len(marks) // 2]  # whatever part is used has both
    assert 200 < half.count(True) < 300
    assert all(row.impression.candidates[row.candidate].clicked for row in task.sources["test"])
    assert len(recommender(explain="candidate", negatives=0).sources["train"]) == 500
    assert len(recommender(explain="candidate", rows="all").sources["train"]) == 1500
    with pytest.raises(InputError, match="negatives=-1"):
        recommender(negatives=-1)


def test_the_explanation_of_a_title_follows_its_user() -> None:
    task = recommender(explain="candidate")
    explainer = dm.SurrogateMask(steps=64).fit(task)
    rows = task.sources["test"][:40]
    topics = [next(name for name in row.impression.history_categories if name != "general") for row in rows]
    alike: list[float] = []
    different: list[float] = []
    for (row, own), (other, topic) in pairwise(zip(rows, topics, strict=True)):
        swapped = replace(row, impression=replace(row.impression, history=other.impression.history))
        batch = task.encode([row, swapped])
        scores = explainer(batch, 0).scores
        rho = float(rank_correlation(scores[:1], scores[1:], batch.maskable[:1]))
        chosen, other_chosen = predicted_outcome(task.predict(batch)).flatten().tolist()
        if own != topic:
            different.append(rho)
        elif chosen == other_chosen:  # scores explain the choice: for another choice their signs are reversed
            alike.append(rho)
    assert len(alike) > 8 and fmean(alike) > 0.9 and fmean(different) < 0.5


def test_surrogates_read_impressions_with_any_number_of_candidates() -> None:
    task = recommender(explain="candidate")
    explainer = dm.SurrogateMask(steps=4, batch_size=16).fit(task)
    row = task.impressions["test"][0]
    for candidates in (row.candidates[:2], row.candidates * 4):
        found = explainer(replace(row, candidates=candidates), candidate=0, explain="candidate")
        assert len(found.scores) == len(found.words) and found.verified is not None


def test_a_ranking_is_coarsened_to_the_candidate_its_rival_and_the_rest() -> None:
    answer = RankingAnswer(logits=torch.tensor([[0.1, 0.2, 0.4, 0.3], [0.7, 0.3, 0.0, 0.0]]).log())
    coarse = class_probabilities(coarsen(answer, answer))
    torch.testing.assert_close(coarse, torch.tensor([[0.1, 0.4, 0.5], [0.7, 0.3, 0.0]]), atol=1e-6, rtol=0)
    assert coarse_outcome(torch.tensor([0, 0]), answer).tolist() == [0, 0]
    assert coarse_outcome(torch.tensor([2, 3]), answer).tolist() == [1, 2]
