"""Which task a Hugging Face model is for: by the name of the task, or by the head in the model's configuration."""

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from diffmask.errors import ConfigError, nearest
from diffmask.tasks.text.pretrained import load_config

if TYPE_CHECKING:
    from diffmask.tasks.text.task import TextTask

TEXT_TASKS: Mapping[str, tuple[str, str]] = {
    "text-classification": ("diffmask.tasks.classification:TextClassification", "ForSequenceClassification"),
}
"""Class of each task by its name, and how the names of its models end."""


def text_task_class(name: str) -> "type[TextTask]":
    """Return the task of that name."""
    if name not in TEXT_TASKS:
        raise ConfigError(f"there is no task '{name}' for texts; {nearest(name, TEXT_TASKS)}")
    module, _, attribute = TEXT_TASKS[name][0].partition(":")
    found: type[TextTask] = getattr(import_module(module), attribute)
    return found


def recognise_task(model: str | Path, *, trust_remote_code: bool = False) -> str:
    """Return the name of the task that a saved model was trained for; a classifier if its configuration is silent."""
    return task_of_config(load_config(model, trust_remote_code=trust_remote_code))


def task_of_config(config: Any) -> str:
    """Return the name of the task whose head the configuration names."""
    for architecture in getattr(config, "architectures", None) or ():
        for name, (_, ending) in TEXT_TASKS.items():
            if architecture.endswith(ending):
                return name
    return "text-classification"
