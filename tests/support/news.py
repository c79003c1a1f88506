"""A small recommender that was trained on generated impressions, for several tests."""

from functools import cache
from typing import Any

from diffmask.core.training import seeded
from diffmask.datasets.mind import Candidate, Impression
from diffmask.datasets.mind_generator import MindGenerator
from diffmask.tasks.recommender.news_recommender import NewsRecommender
from diffmask.tasks.recommender.nrms import NRMS, NRMSConfig
from diffmask.tasks.recommender.nrms_files import init_nrms
from diffmask.tasks.recommender.nrms_training import NRMSTraining
from support.tiny_models import tiny_model, word_pieces

SMALL = NRMSConfig(width=24, heads=2, query_width=24, dropout=0.0)


@cache
def impressions(poisoned: bool = False) -> dict[str, list[Impression]]:
    return MindGenerator(impressions=500, topics=3, candidates=3, history=3, poisoned=poisoned).splits(0)


def titles(rows: list[Impression]) -> list[str]:
    return [title for row in rows for title in (*row.history, *(one.title for one in row.candidates))]


@cache
def trained(seed: int = 0, poisoned: bool = False) -> tuple[NRMS, Any]:
    data = impressions(poisoned)
    model, tokenizer = init_nrms("words", titles(impressions()["train"]), SMALL, seed)
    task = NewsRecommender(model, tokenizer, train=data["train"], valid=data["valid"])
    NRMSTraining(epochs=14, learning_rate=1e-2, batch_size=50, patience=14).train(task, seed)
    return model, tokenizer


def recommender(seed: int = 0, poisoned: bool = False, **choices: Any) -> NewsRecommender:
    """The trained model on clean impressions, with the given choices of the task."""
    model, tokenizer = trained(seed, poisoned)
    data = impressions()
    return NewsRecommender(model, tokenizer, train=data["train"], valid=data["valid"], test=data["test"], **choices)


FILMS = Impression(
    candidates=(
        Candidate(title="a great film", clicked=True),
        Candidate(title="the plot was dull"),
        Candidate(title="it"),
    ),
    history=("i loved acting", "fun movie !"),
)


def bert_recommender(**choices: Any) -> NewsRecommender:
    """A random BERT as the title encoder, on impressions of the words of its tokenizer."""
    other = Impression(candidates=(Candidate(title="very bad"), Candidate(title="a mess , not fun", clicked=True)))
    with seeded(0, "bert"):
        model = NRMS(NRMSConfig(heads=2, query_width=24), tiny_model("bert").bert)
    return NewsRecommender(model, word_pieces(), train=[FILMS, other, FILMS], valid=[FILMS, FILMS], **choices)
