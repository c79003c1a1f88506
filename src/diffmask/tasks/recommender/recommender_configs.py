"""Configs of news recommenders: a trained one, or one that is trained first."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal

from diffmask.core.config import require_between
from diffmask.core.task import Task, TaskConfig
from diffmask.datasets.mind import Impression, load_mind
from diffmask.errors import ConfigError, InputError, TaskError
from diffmask.tasks.recommender.news_recommender import NewsRecommender
from diffmask.tasks.recommender.nrms import NRMSConfig
from diffmask.tasks.recommender.nrms_files import WORDS, init_nrms
from diffmask.tasks.recommender.nrms_training import NRMSHyperparameters, NRMSTraining, evaluate

logger = logging.getLogger(__name__)

PREFIX = "mind:"
MAX_ROWS = 2000
"""Rows per split that are encoded for scoring; all impressions are trained on."""


def load_impressions(name: str) -> dict[str, list[Impression]]:
    """Load the splits of `mind:FOLDER`."""
    if not name.startswith(PREFIX):
        raise InputError(f"'{name}' holds no impressions; a recommender reads mind:FOLDER")
    return load_mind(name.removeprefix(PREFIX))


@dataclass(frozen=True, kw_only=True)
class NewsRecommenderConfig(TaskConfig):
    """Trained recommender on impressions."""

    name: ClassVar[str] = "news-recommender"

    model: str
    """Folder of the recommender."""
    data: str
    """Impressions: `mind:FOLDER`, in MIND's format or as pairwise tables."""
    explain: Literal["candidate", "history", "both"] = "both"
    """Titles whose words are explained."""
    answer: Literal["ranking", "score", "click"] = "ranking"
    """Explained answer: distribution over the candidates, score of one, or its probability of a click."""
    explained_rows: Literal["clicked", "all"] = "clicked"
    """Candidates that are explained in each impression."""
    negatives: int = 1
    """Unclicked candidates per click among the training rows, if clicked ones are explained."""
    rows: int | None = MAX_ROWS
    """Largest number of rows per split, evenly spaced."""
    trust_remote_code: bool = False
    """Not used: a saved recommender runs no code of its own."""

    def __post_init__(self) -> None:
        require_between(self, "rows", 1)
        require_between(self, "negatives", 0)

    @property
    def panel(self) -> tuple[str, str]:
        """Names of the data set and of the model."""
        return self.data, self.label_without("data")

    def to_dict(self) -> dict[str, Any]:
        """Return the config as plain values, without `trust_remote_code`."""
        return {name: value for name, value in super().to_dict().items() if name != "trust_remote_code"}

    def build(self, seed: int) -> Task:
        """Return the task of the recommender."""
        return NewsRecommender(
            self.model,
            **load_impressions(self.data),
            explain=self.explain,
            answer=self.answer,
            rows=self.explained_rows,
            negatives=self.negatives,
            max_rows=self.rows,
        )


@dataclass(frozen=True, kw_only=True)
class TrainedNewsRecommenderConfig(NRMSHyperparameters, NRMSConfig, TaskConfig):
    """NRMS that is trained on impressions."""

    name: ClassVar[str] = "trained-news-recommender"

    model: str = WORDS
    """Title encoder: `words` (vectors of words, from scratch), `minilm`, a folder or a hub id."""
    data: str
    """Impressions: `mind:FOLDER`."""
    checkpoints: str | None = None
    """Folder for a checkpoint per epoch, from which a killed training resumes."""
    trust_remote_code: bool = False
    """Whether to run Python code of the encoder's repository. Never saved, never read from a file."""

    def __post_init__(self) -> None:
        NRMSHyperparameters.__post_init__(self)
        NRMSConfig.__post_init__(self)

    @classmethod
    def from_dict(cls, node: Mapping[str, Any], where: str = "config") -> Any:
        """Parse the config; `trust_remote_code` is refused because a file must not be able to run code."""
        if "trust_remote_code" in node:
            raise ConfigError(f"{where}: trust_remote_code is not read from files; pass --trust-remote-code")
        return super().from_dict(node, where)

    def to_dict(self) -> dict[str, Any]:
        """Return the config as plain values, without `trust_remote_code`."""
        return {name: value for name, value in super().to_dict().items() if name != "trust_remote_code"}

    def build(self, seed: int) -> NewsRecommender:
        """Return the task of an untrained recommender."""
        data = load_impressions(self.data)
        titles = [
            title
            for row in data["train"]
            for title in (*row.history, *(candidate.title for candidate in row.candidates))
        ]
        size = NRMSConfig(**self._values_of(NRMSConfig))
        model, tokenizer = init_nrms(self.model, titles, size, seed, trust_remote_code=self.trust_remote_code)
        task = NewsRecommender(model, tokenizer, explain="candidate", negatives=0)
        for split, impressions in data.items():
            task.add_split(split, impressions, MAX_ROWS)
        return task

    def train(self, task: Task, seed: int) -> None:
        """Train with early stopping."""
        if not isinstance(task, NewsRecommender):
            raise TaskError(f"{type(task).__name__} is not a recommender; build it with this config")
        NRMSTraining(**self._values_of(NRMSTraining)).train(task, seed, self.checkpoints)
        logger.info("on the test split: %s", evaluate(task, task.impressions["test"]))

    def _values_of(self, kind: Any) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(kind)}
