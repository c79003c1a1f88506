"""Configs of tasks on texts: a trained model, or an encoder that is fine-tuned first."""

from abc import ABC
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from diffmask.core.batch import spread_indices
from diffmask.core.config import require_between
from diffmask.core.progress import stage
from diffmask.core.task import Task, TaskConfig
from diffmask.datasets.loading import load_data
from diffmask.datasets.tables import DataSet
from diffmask.errors import ConfigError, InputError, TaskError
from diffmask.tasks.classification import TextClassification
from diffmask.tasks.masked_word import MaskedWord
from diffmask.tasks.question_answering import QuestionAnswering, QuestionEncodingConfig
from diffmask.tasks.sentence_similarity import SentenceSimilarity
from diffmask.tasks.text.encoding import TextEncodingConfig
from diffmask.tasks.text.finetuning import FineTuning
from diffmask.tasks.text.pretrained import load_model
from diffmask.tasks.text.retraining import FineTuningSource
from diffmask.tasks.text.text_task import TextTask
from diffmask.tasks.token_classification import TokenClassification, TokenEncodingConfig


@dataclass(frozen=True, kw_only=True)
class TextTaskConfig(TextEncodingConfig, TaskConfig, ABC):
    """Model on a data set of texts."""

    model: str
    """Folder or hub id of the model."""
    data: str
    """Name of a data set, path of a table, or folder with one table per split."""
    rows: int | None = None
    """Number of training rows, evenly spaced over the data set; None uses all."""
    trust_remote_code: bool = False
    """Whether to run Python code of the model's repository. Never saved, never read from a file."""

    def __post_init__(self) -> None:
        require_between(self, "max_tokens", 3)  # a token between two special tokens
        require_between(self, "overlap", 0)
        require_between(self, "rows", 1)

    @classmethod
    def from_dict(cls, node: Mapping[str, Any], where: str = "config") -> Any:
        """Parse the config; `trust_remote_code` is refused because a file must not be able to run code."""
        if "trust_remote_code" in node:
            raise ConfigError(
                f"{where}: trust_remote_code is not read from files; pass --trust-remote-code on the command line, "
                f"or {cls.__name__}(..., trust_remote_code=True) in Python"
            )
        return super().from_dict(node, where)

    def to_dict(self) -> dict[str, Any]:
        """Return the config as plain values, without `trust_remote_code`."""
        return {name: value for name, value in super().to_dict().items() if name != "trust_remote_code"}

    @property
    def panel(self) -> tuple[str, str]:
        """Names of the data set and of the model."""
        return self.data, self.label_without("data")

    def dataset(self) -> DataSet:
        """Load the texts."""
        with stage("read the data"):
            data = load_data(self.data, self)
        if self.rows is None or self.rows >= len(data.train):
            return data
        return replace(data, train=[data.train[index] for index in spread_indices(len(data.train), self.rows)])


@dataclass(frozen=True, kw_only=True)
class TrainedTaskConfig(TextTaskConfig, ABC):
    """Trained model on a data set."""

    task_class: ClassVar[type[TextTask]]

    encoder: str | None = None
    """Encoder that it was fine-tuned from, for ROAR; a model that `diffmask train` saved states its own."""

    def build(self, seed: int) -> Task:
        """Return the task of the trained model."""
        trust, kind = self.trust_remote_code, self.task_class
        model, tokenizer = load_model(
            kind.spec.auto_class, self.model, wanted_by=kind.__name__, trust_remote_code=trust
        )
        stated = FineTuningSource.of(model.config)
        source = FineTuningSource(self.encoder or stated.encoder, stated.tuning, trust_remote_code=trust)
        return kind(model, tokenizer, **_splits(self.dataset()), encoding=self, source=source)


@dataclass(frozen=True, kw_only=True)
class FineTunedTaskConfig(FineTuning, TextTaskConfig, ABC):
    """Encoder that is fine-tuned on a data set."""

    task_class: ClassVar[type[TextTask]]

    model: str = "minilm"
    """Folder or hub id of the encoder; `minilm` is packaged."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_between(self, "epochs", 1)
        require_between(self, "batch_size", 1)
        require_between(self, "learning_rate", 0, open_low=True)
        require_between(self, "masked_fraction", 0, 1)

    def build(self, seed: int) -> TextTask:
        """Return the task of the encoder with an untrained head."""
        data = self.dataset()
        source = FineTuningSource(self.model, self.tuning, trust_remote_code=self.trust_remote_code)
        model = self.init_model(source, data, seed)
        return self.task_class(model, source.load_tokenizer(), **_splits(data), encoding=self, source=source)

    def init_model(self, source: FineTuningSource, data: DataSet, seed: int) -> Any:
        """Return the encoder with an untrained head for the data."""
        return source.init_model(self.task_class.spec.auto_class, seed, **self.task_class.spec.head_options)

    def train(self, task: Task, seed: int) -> None:
        """Fine-tune all weights."""
        if not isinstance(task, TextTask):
            raise TaskError(f"{type(task).__name__} is not a task on texts; build it with this config")
        self.fine_tune(task, seed)


@dataclass(frozen=True, kw_only=True)
class TextClassificationConfig(TrainedTaskConfig):
    """Trained classifier on a data set."""

    name: ClassVar[str] = "text-classification"
    task_class: ClassVar[type[TextTask]] = TextClassification

    model: str
    """Folder or hub id of the classifier."""
    encoder: str | None = None
    """Encoder that it was fine-tuned from, for ROAR; a classifier that `diffmask train` saved states its own."""


@dataclass(frozen=True, kw_only=True)
class FineTunedClassificationConfig(FineTunedTaskConfig):
    """Encoder that is fine-tuned on a data set."""

    name: ClassVar[str] = "fine-tuned-classification"
    task_class: ClassVar[type[TextTask]] = TextClassification

    data: str = "rotten-tomatoes"
    """Name of a data set, path of a table, or folder with one table per split."""

    def init_model(self, source: FineTuningSource, data: DataSet, seed: int) -> Any:
        """Return the encoder with an untrained head for the classes of the data."""
        unlabelled = sum(row.label is None for row in data.train)
        if unlabelled:
            raise InputError(
                f"{unlabelled} of {len(data.train)} training rows have no label; remove them or label them"
            )
        return source.init_classifier(self._output_names(data), self.problem_type, seed)

    def _output_names(self, data: DataSet) -> tuple[str, ...]:
        if self.problem_type == "regression":
            return ("number",)
        if len(data.classes) < 2:
            raise InputError(f"the training rows have {len(data.classes)} labels; a classifier needs two")
        return data.classes


@dataclass(frozen=True, kw_only=True)
class QuestionAnsweringConfig(QuestionEncodingConfig, TrainedTaskConfig):
    """Trained extractive question answering on a data set such as `squad:FOLDER`."""

    name: ClassVar[str] = "question-answering"
    task_class: ClassVar[type[TextTask]] = QuestionAnswering


@dataclass(frozen=True, kw_only=True)
class FineTunedQuestionAnsweringConfig(QuestionEncodingConfig, FineTunedTaskConfig):
    """Encoder that is fine-tuned to answer questions on passages."""

    name: ClassVar[str] = "fine-tuned-question-answering"
    task_class: ClassVar[type[TextTask]] = QuestionAnswering


@dataclass(frozen=True, kw_only=True)
class TokenClassificationConfig(TokenEncodingConfig, TrainedTaskConfig):
    """Trained token classifier on a data set such as `conll:FOLDER`."""

    name: ClassVar[str] = "token-classification"
    task_class: ClassVar[type[TextTask]] = TokenClassification


@dataclass(frozen=True, kw_only=True)
class FineTunedTokenClassificationConfig(TokenEncodingConfig, FineTunedTaskConfig):
    """Encoder that is fine-tuned to tag words; its rows are sentences."""

    name: ClassVar[str] = "fine-tuned-token-classification"
    task_class: ClassVar[type[TextTask]] = TokenClassification

    unit: Literal["entity", "word", "sentence"] = "sentence"
    """What a row is: a tagger is trained on whole sentences."""

    def init_model(self, source: FineTuningSource, data: DataSet, seed: int) -> Any:
        """Return the encoder with an untrained head for the tags of the data."""
        if len(data.names) < 2:
            raise InputError(f"the data has {len(data.names)} tags; a token classifier needs two, as in conll:FOLDER")
        return source.init_labelled(self.task_class.spec.auto_class, data.names, seed)


@dataclass(frozen=True, kw_only=True)
class MaskedWordConfig(TrainedTaskConfig):
    """Masked language model on texts with one blank."""

    name: ClassVar[str] = "fill-mask"
    task_class: ClassVar[type[TextTask]] = MaskedWord


@dataclass(frozen=True, kw_only=True)
class SentenceSimilarityConfig(TrainedTaskConfig):
    """Sentence encoder on pairs of texts."""

    name: ClassVar[str] = "sentence-similarity"
    task_class: ClassVar[type[TextTask]] = SentenceSimilarity


def _splits(data: DataSet) -> dict[str, Any]:
    return {"train": data.train, "valid": data.valid, "test": data.test}
