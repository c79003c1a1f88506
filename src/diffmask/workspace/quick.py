"""One call from a model and a text to a verified explanation, without training data."""

from pathlib import Path
from typing import Any

from diffmask.core.config import parse
from diffmask.core.explainer import Explainer, Method
from diffmask.core.task import Task
from diffmask.datasets.tables import Example, read_inputs
from diffmask.errors import InputError
from diffmask.explanation.text_units import word_spans
from diffmask.tasks.text.known_tasks import TEXT_TASKS, is_recommender, recognise_task, text_task_class
from diffmask.tasks.text.pretrained import ADAPTER_FILE, load_model
from diffmask.tasks.text.text_task import TextTask
from diffmask.tasks.text.unwrap import unwrap

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
    task = _task_of(model, tokenizer)
    examples, single = read_inputs(inputs, task.to_example)
    config = _method(examples, method, options)
    return fit_without_data(config, task)(examples[0] if single else examples, target=target, verify=verify)


def is_model_folder(name: str) -> bool:
    """Return whether a path is the folder of a model or of a recommender, rather than of a saved explainer."""
    if (Path(name) / "artefact.json").is_file():
        return False
    return any((Path(name) / file).is_file() for file in ("config.json", ADAPTER_FILE)) or is_recommender(name)


def quick_explainer(model: str, method: str | None = None, *, trust_remote_code: bool = False) -> Explainer:
    """Return an explainer that needs no training data for a model's folder or hub id; by default leave-one-out."""
    config = parse("method", method or "leave-one-out", "explain")
    if is_recommender(model):
        from diffmask.tasks.recommender.news_recommender import NewsRecommender  # most models are none

        return fit_without_data(config, NewsRecommender(model))
    task_class = text_task_class(recognise_task(model, trust_remote_code=trust_remote_code))
    loaded = load_model(
        task_class.spec.auto_class, model, wanted_by=task_class.__name__, trust_remote_code=trust_remote_code
    )
    return fit_without_data(config, task_class(*loaded))


def fit_without_data(config: Method, task: Task) -> Explainer:
    """Return the explainer of a method that learns from no texts; other methods are refused."""
    _require_no_fit(config, task)
    return config.fit(task)


def move_explainer(explainer: Explainer, device: str) -> Explainer:
    """Move an explainer of texts, its model and its data to a device."""
    if not isinstance(explainer.task, TextTask):
        raise InputError(f"{type(explainer.task).__name__} stays on its device; leave device out")
    explainer.task.to(device)
    return explainer.to(device)


def _task_of(model: Any, tokenizer: Any) -> TextTask:
    """Return the task of a model, recognised by its head."""
    if isinstance(model, TextTask):
        return model
    inner, inner_tokenizer = unwrap(model, tokenizer)
    if isinstance(inner, str | Path):
        return text_task_class(recognise_task(inner))(inner, inner_tokenizer)
    base = inner.get_base_model() if hasattr(inner, "get_base_model") else inner
    name = next(
        (name for name, kind in TEXT_TASKS.items() if kind.ending and type(base).__name__.endswith(kind.ending)), None
    )
    return text_task_class(name or "text-classification")(inner, inner_tokenizer)


def _require_no_fit(config: Method, task: Task) -> None:
    if type(config).train is not Method.train and "train" not in task.data:
        raise InputError(
            f"{config.label} learns from texts: {type(config).__name__}(...).fit({type(task).__name__}(model, "
            "train=texts)); methods that need none are leave-one-out, greedy-search, gradient and integrated-gradients"
        )


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
