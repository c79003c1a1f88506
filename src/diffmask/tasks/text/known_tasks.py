"""Which task a Hugging Face model is for: by the name of the task, or by the head in the model's configuration."""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from diffmask.errors import ConfigError, nearest
from diffmask.registry import find
from diffmask.tasks.generation.language_models import PACKAGED_MODELS
from diffmask.tasks.text.pretrained import load_config

if TYPE_CHECKING:
    from diffmask.tasks.text.text_task import TextTask


@dataclass(frozen=True)
class KnownTask:
    """A kind of task on texts: its class, the models that it is for, and the names of its configs."""

    target: str
    """Module and class of the task."""
    ending: str | None
    """How the class names of its models end in `transformers`; None if a model does not tell."""
    trained: str | None = None
    """Name of the config of a trained model; None if its data cannot be read from tables."""
    fine_tuned: str | None = None
    """Name of the config that fine-tunes an encoder; None if there is none."""


TEXT_TASKS: Mapping[str, KnownTask] = {
    "text-classification": KnownTask(
        "diffmask.tasks.classification:TextClassification",
        "ForSequenceClassification",
        "text-classification",
        "fine-tuned-classification",
    ),
    "question-answering": KnownTask(
        "diffmask.tasks.question_answering:QuestionAnswering",
        "ForQuestionAnswering",
        "question-answering",
        "fine-tuned-question-answering",
    ),
    "token-classification": KnownTask(
        "diffmask.tasks.token_classification:TokenClassification",
        "ForTokenClassification",
        "token-classification",
        "fine-tuned-token-classification",
    ),
    "multiple-choice": KnownTask("diffmask.tasks.multiple_choice:MultipleChoice", "ForMultipleChoice"),
    "fill-mask": KnownTask("diffmask.tasks.masked_word:MaskedWord", "ForMaskedLM", "fill-mask"),
    "sentence-similarity": KnownTask(
        "diffmask.tasks.sentence_similarity:SentenceSimilarity", None, "sentence-similarity"
    ),
}
"""Kinds of tasks by name."""


def known_task(name: str) -> KnownTask:
    """Return the kind of task of that name."""
    if name not in TEXT_TASKS:
        raise ConfigError(f"there is no task '{name}' for texts; {nearest(name, TEXT_TASKS)}")
    return TEXT_TASKS[name]


def text_task_class(name: str) -> "type[TextTask]":
    """Return the class of the task of that name."""
    module, _, attribute = known_task(name).target.partition(":")
    task_class: type[TextTask] = getattr(import_module(module), attribute)
    return task_class


def recognise_task(model: str | Path, *, trust_remote_code: bool = False) -> str:
    """Return the name of the task that a saved model was trained for; a classifier if its configuration is silent."""
    architectures = getattr(load_config(model, trust_remote_code=trust_remote_code), "architectures", None) or ()
    for architecture in architectures:
        for name, known in TEXT_TASKS.items():
            if known.ending is not None and architecture.endswith(known.ending):
                return name
    return "text-classification"


def trained_config_class(task: str | None, model: str, *, trust_remote_code: bool = False) -> Any:
    """Return the config class of a trained model; without the name of its task, the task is recognised."""
    if task == RECOMMENDER or (task is None and is_recommender(model)):
        return find("task", "news-recommender").load()
    if task == GENERATION or (task is None and _generates(model, trust_remote_code)):
        return find("task", GENERATION).load()
    name = task or recognise_task(model, trust_remote_code=trust_remote_code)
    trained = known_task(name).trained
    if trained is None:
        raise ConfigError(f"'{name}' is not read from tables; use its class in Python")
    return find("task", trained).load()


GENERATION = "text-generation"
RECOMMENDER = "recommender"
RECOMMENDER_FILE = "nrms.json"
"""File by which the folder of a recommender is known."""


def _generates(model: str, trust_remote_code: bool) -> bool:
    """Return whether a model is a language model, packaged or by its configuration."""
    if model in PACKAGED_MODELS:
        return True
    architectures = getattr(load_config(model, trust_remote_code=trust_remote_code), "architectures", None) or ()
    return any(name.endswith(("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")) for name in architectures)


def is_recommender(folder: str | Path) -> bool:
    """Return whether a folder holds a recommender."""
    return (Path(folder) / RECOMMENDER_FILE).is_file()


def fine_tuned_config_class(task: str) -> Any:
    """Return the config class that fine-tunes an encoder for a task."""
    if task == RECOMMENDER:
        return find("task", "trained-news-recommender").load()
    name = known_task(task).fine_tuned
    if name is None:
        can = [other for other, known in TEXT_TASKS.items() if known.fine_tuned]
        raise ConfigError(f"models for '{task}' are not fine-tuned here; give --task {', '.join(can)}")
    return find("task", name).load()
