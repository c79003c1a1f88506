"""Config of a language model on prompts."""

from dataclasses import dataclass
from typing import Any, ClassVar

from diffmask.core.config import require_between
from diffmask.core.task import TaskConfig
from diffmask.datasets.contexts import load_prompts
from diffmask.tasks.generation.language_models import load_language_model
from diffmask.tasks.generation.prompt import FIELDS
from diffmask.tasks.generation.prompt_encoding import PromptEncodingConfig
from diffmask.tasks.generation.text_generation import TextGeneration


@dataclass(frozen=True, kw_only=True)
class TextGenerationConfig(PromptEncodingConfig, TaskConfig):
    """Decoder language model on prompts with contexts."""

    name: ClassVar[str] = "text-generation"

    model: str = "smollm2"
    """Folder or hub id of the model; `smollm2` is packaged."""
    data: str = "planted-facts"
    """Prompts: `planted-facts:COUNT`, `nq-gold:`, `kv-retrieval:`, `hotpotqa:` or `poisoned-nq:FILE`, or a table."""
    rows: int | None = None
    """Prompts per split, at most."""
    answered_only: bool = True
    """Whether to leave out prompts whose response lacks the known answer; prompts without one stay."""
    trust_remote_code: bool = False
    """Whether to run Python code of the model's repository. Never saved, never read from a file."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_between(self, "rows", 1)

    def to_dict(self) -> dict[str, Any]:
        """Return the config as plain values, without `trust_remote_code`."""
        return {name: value for name, value in super().to_dict().items() if name != "trust_remote_code"}

    def build(self, seed: int) -> TextGeneration:
        """Return the task of the model, with the prompts that it answers."""
        loaded = load_language_model(self.model, trust_remote_code=self.trust_remote_code)
        task = TextGeneration(*loaded, encoding=self)
        for split, rows in load_prompts(self.data).items():
            chosen = rows[: self.rows]
            known = [{name: row[name] for name in FIELDS if row.get(name) is not None} for row in chosen]
            answers = [row.get("answer") if self.answered_only else None for row in chosen]
            task.add_split(split, known, answers)
        return task
