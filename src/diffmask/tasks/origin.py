"""Where a classifier came from: the encoder and the choices with which it is trained again from the start."""

import warnings
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, fields
from typing import Any

from torch import nn

from diffmask.data.packaged import packaged_encoder
from diffmask.errors import InputError, TrainingWarning
from diffmask.tasks.finetuning import FineTuning
from diffmask.tasks.pretrained import load_tokenizer, quietly
from diffmask.training import seeded

NOTED = "diffmask_origin"
"""Where a classifier's configuration, and so every saved classifier, names its origin."""
AS_A_RULE = FineTuning()


@dataclass(frozen=True)
class Origin:
    """An encoder, where it is known, and how it becomes a classifier."""

    encoder: str | None = None
    """Folder, hub id or short name; where there is none, training begins with the classifier's own body."""
    tuning: FineTuning = AS_A_RULE

    @staticmethod
    def of(config: Any) -> "Origin":
        """What a configuration says of it."""
        noted = getattr(config, NOTED, None)
        if not isinstance(noted, Mapping):
            return Origin()
        chosen = {field.name: noted[field.name] for field in fields(FineTuning) if field.name in noted}
        return Origin(noted.get("encoder"), FineTuning(**chosen))

    def to_dict(self) -> dict[str, Any]:
        """Plain values only."""
        return {"encoder": self.encoder, **asdict(self.tuning)}

    def classifier(self, names: Sequence[str], problem: str | None, seed: int) -> Any:
        """The encoder with an untrained head for outcomes of these names; it knows where it came from."""
        from transformers import AutoModelForSequenceClassification

        with seeded(seed, "classifier"), quietly():
            model = AutoModelForSequenceClassification.from_pretrained(
                packaged_encoder(str(self.encoder)),
                num_labels=len(names),
                id2label=dict(enumerate(names)),
                label2id={name: place for place, name in enumerate(names)},
                problem_type=problem,
            )
        setattr(model.config, NOTED, self.to_dict())
        return model

    def untrained(self, model: Any, tokenizer: Any, names: Sequence[str], seed: int) -> Any:
        """A classifier like this one as it was before it learned anything of its task, as far as that is known."""
        if self.encoder is None:
            return with_new_head(model, seed)
        if load_tokenizer(packaged_encoder(self.encoder)).get_vocab() != tokenizer.get_vocab():
            raise InputError(
                f"the encoder '{self.encoder}' has another vocabulary than the classifier; give the one that it was "
                "fine-tuned from"
            )
        return self.classifier(names, model.config.problem_type, seed).to(next(model.parameters()).device)


def with_new_head(model: nn.Module, seed: int) -> nn.Module:
    """A copy whose modules outside its body have random weights; all of them, where no body is told from the head."""
    fresh = deepcopy(model)
    body = getattr(fresh, "base_model", fresh)
    kept = set() if body is fresh else set(body.modules())
    if kept:
        warnings.warn(
            f"it is not known from which encoder {type(model).__name__} was fine-tuned: trained again, it begins with "
            "its present body and a new head; name the encoder (encoder=...) to begin where it began",
            TrainingWarning,
            stacklevel=2,
        )
    with seeded(seed, "classifier"):
        for module in fresh.modules():
            reset = getattr(module, "reset_parameters", None)
            if module not in kept and callable(reset):
                reset()
    return fresh
