"""One call from a model and a text to a verified explanation, without training data."""

from typing import Any

from diffmask.core.config import parse
from diffmask.core.explainer import Method
from diffmask.datasets.tables import Example, read_inputs
from diffmask.errors import InputError
from diffmask.explanation.text_units import word_spans
from diffmask.tasks.classification import TextClassification
from diffmask.tasks.text.task import TextTask

SHORT_TEXT = 100
"""Longest text, in words, that is explained by leaving out one token at a time unless a method is chosen."""


def explain(
    model: Any,
    inputs: Any,
    method: str | Method | None = None,
    *,
    target: Any = None,
    verify: bool = True,
    tokenizer: Any = None,
    **options: Any,
) -> Any:
    """Explain a text, or several, by a method that needs no training data.

    The result is the same as that of a fitted explainer: an `Explanation`, or a list of them. Loading a model by name
    takes seconds; for several calls build `TextClassification` once and pass it as `model`.

    Args:
        model: A folder, a hub id, a `transformers` pipeline, a tuple `(model, tokenizer)`, a model with `tokenizer=`,
            or a text task.
        inputs: A text, a pair of texts, a list, a column or a data frame of them.
        method: Name or config of a method. By default leave-one-out, and for texts of more than 100 words integrated
            gradients from the mask token, whose cost does not grow with the square of the length.
        target: Class to explain, by name or index; one per text; or several classes of one text.
        verify: Whether to search for the words that are enough and to verify them on the model.
        tokenizer: The tokenizer, if `model` is a model alone.
        options: Options of a method that is given by name, such as `baseline="pad"` or `n_steps=20`.
    """
    task = model if isinstance(model, TextTask) else TextClassification(model, tokenizer)
    examples, single = read_inputs(inputs, task.to_example)
    config = _method(examples, method, options)
    if type(config).train is not Method.train and "train" not in task.data:
        raise InputError(
            f"{config.label} learns from texts: {type(config).__name__}(...).fit(TextClassification(model, "
            "train=texts)); methods that need none are leave-one-out, greedy-search, gradient and integrated-gradients"
        )
    return config.fit(task)(examples[0] if single else examples, target=target, verify=verify)


def _method(examples: list[Example], method: str | Method | None, options: dict[str, Any]) -> Method:
    if isinstance(method, Method):
        if options:
            raise InputError(f"give {', '.join(options)} to {type(method).__name__}(...), not to explain")
        return method
    if method is not None:
        return parse("method", {"name": method, **options}, "explain")
    words = max((len(word_spans(f"{example.text} {example.pair or ''}")) for example in examples), default=0)
    node = {"name": "integrated-gradients", "baseline": "auto"} if words > SHORT_TEXT else {"name": "leave-one-out"}
    return parse("method", {**node, **options}, "explain")
