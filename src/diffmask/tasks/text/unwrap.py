"""The model and tokenizer inside what people have at hand: pipelines, tuples, compiled, wrapped and half models.

A model that cannot be explained as it is gets one sentence that says what to do.
"""

from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from torch import nn

from diffmask.errors import InputError
from diffmask.tasks.text.embedding_classifier import EmbeddingClassifier

TASK_OF_HEAD = {
    "ForSequenceClassification": "TextClassification",
    "ForQuestionAnswering": "QuestionAnswering",
    "ForTokenClassification": "TokenClassification",
    "ForCausalLM": "TextGeneration",
}
"""Class of this package by the ending of a model's class in `transformers`."""


def unwrap(model: Any, tokenizer: Any = None) -> tuple[Any, Any]:
    """Return the model, or its name, and the tokenizer, of a pipeline, a tuple, or a compiled or parallel model."""
    if isinstance(model, tuple | list) and len(model) == 2 and tokenizer is None:
        model, tokenizer = model
    elif not isinstance(model, nn.Module | str | Path) and isinstance(getattr(model, "model", None), nn.Module):
        # A transformers pipeline has both.
        model, tokenizer = model.model, tokenizer or getattr(model, "tokenizer", None)
    elif type(model).__name__ == "CrossEncoder":  # of sentence-transformers
        model, tokenizer = model.model, tokenizer or model.tokenizer
    elif type(model).__name__ == "SetFitModel":
        model, tokenizer = EmbeddingClassifier.of_setfit(model), tokenizer or model.model_body.tokenizer
    # torch.compile and nn.DataParallel keep the original module, whose hooks work.
    for attribute in ("_orig_mod", "module"):
        inner = getattr(model, attribute, None)
        if isinstance(model, nn.Module) and isinstance(inner, nn.Module):
            model = inner
    kind = type(model).__name__
    if not isinstance(model, nn.Module | str | Path):
        raise InputError(
            f"{kind} is not a model; give a folder, a hub id, a transformers pipeline, (model, tokenizer), or a model "
            "with its tokenizer"
        )
    if kind == "SentenceTransformer":
        raise InputError(
            "SentenceTransformer has no classifier, it embeds texts; fine-tune one from its folder with `diffmask "
            "train --model FOLDER --data ... --out ...`, or explain a similarity by dm.SentenceSimilarity"
        )
    return model, tokenizer


def require_explainable(model: Any, auto_class: str) -> None:
    """Refuse a model with another head, or one whose answers depend on padding or on several devices."""
    kind = type(model).__name__
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    require_head(type(base).__name__, auto_class)
    if auto_class != "AutoModel" and _has_no_head(base):
        raise InputError(
            f"found {type(base).__name__}, which has no head; load the model by {auto_class}, or train one with "
            "`diffmask train --model FOLDER --data ... --out ...`"
        )
    if any(type(module).__module__.startswith("torch.ao.nn.quantized") for module in model.modules()):
        raise InputError(
            f"{kind} is quantised to int8 with scales that depend on the batch, so padding changes its answers; "
            "explain the model before quantisation"
        )
    devices = set(map(str, getattr(model, "hf_device_map", {}).values()))
    if len(devices) > 1:
        raise InputError(f"{kind} is spread over {', '.join(sorted(devices))}; load it on one device: device_map=None")


def _has_no_head(model: Any) -> bool:
    """Return whether a model of `transformers` only returns hidden states, as `BertModel` does."""
    kind = type(model)
    return kind.__module__.startswith("transformers.") and kind.__name__.endswith("Model")


def require_head(architecture: str, auto_class: str) -> None:
    """Refuse a model whose class in `transformers` ends in another head than the wanted one."""
    wanted = auto_class.removeprefix("AutoModel")
    model_head = next((head for head in TASK_OF_HEAD if architecture.endswith(head)), None)
    if model_head is None or model_head == wanted:
        return
    from diffmask import __all__ as public

    task = TASK_OF_HEAD[model_head]
    remedy = f"use dm.{task}" if task in public else "this head is not supported yet"
    raise InputError(f"found {architecture}; {remedy}")


def prepare(model: Any, device: str | torch.device | None, *, own: bool) -> Any:
    """Return the model in single precision and on a device.

    A half-precision model has the same weights in single precision, but answers that can be compared to the third
    digit. `own` models, which were loaded here, are converted in place; those of the caller are copied first.
    """
    half = any(parameter.dtype in (torch.float16, torch.bfloat16) for parameter in model.parameters())
    if half:
        model = (model if own else deepcopy(model)).float()
    if device is None:
        return model
    try:
        return model.to(torch.device(device))
    except (RuntimeError, AssertionError) as error:
        first = str(error).splitlines()[0]
        raise InputError(f"device '{device}' cannot be used: {first}; use device='cpu' or leave it out") from None
