"""`diffmask.compare`: explain the same texts to two models and find the words whose importance changed."""

from collections.abc import Iterable, Sequence
from typing import Any

from diffmask.core.capabilities import ExplainsInputs, HasComparisonFields, require
from diffmask.core.explainer import Explainer, Method
from diffmask.core.task import Task
from diffmask.errors import InputError, TaskError
from diffmask.explanation.explanation import Explanation
from diffmask.results.word_shift import MIN_TEXTS, SMALLEST_CHANGE, ExplainedText, ModelComparison, compare_words
from diffmask.tasks.recommender.news_recommender import NewsRecommender
from diffmask.tasks.text.text_task import TextTask


def compare(
    first: Task,
    second: Task,
    *,
    explainer: Method | tuple[Explainer, Explainer],
    data: Iterable[Any],
    names: tuple[str, str] = ("first model", "second model"),
    smallest_change: float = SMALLEST_CHANGE,
    min_texts: int = MIN_TEXTS,
    examples: int = 5,
    seed: int = 0,
    **fields: Any,
) -> ModelComparison:
    """Explain the same inputs to both models and compare the importance of every word.

    Args:
        first, second: Tasks of the two models, which explain the same kind of input.
        explainer: A method, which is fitted to both tasks, or an explainer of each.
        data: Inputs to explain, as the tasks take them: texts, pairs, impressions.
        names: Names of the models in tables and pages.
        smallest_change: Change of a mean importance that is not worth a report. Two good models with other seeds
            differ a little in every word, which enough texts would show.
        min_texts: Texts that a word must occur in.
        examples: Number of texts to show.
        seed: Seed of the fits.
        fields: Further fields of every input, such as `explain="history"` for a recommender.
    """
    inputs = list(data)
    if not inputs:
        raise InputError("there are no texts to compare the models on")
    pair = (explainer.fit(first, seed), explainer.fit(second, seed)) if isinstance(explainer, Method) else explainer
    explained = [_explanations(fitted_explainer, inputs, fields) for fitted_explainer in pair]
    texts = [_explained_text(*both) for both in zip(*map(_scaled, explained), *explained, strict=True)]
    chosen = sorted(texts, key=_largest_change, reverse=True)[:examples]
    return ModelComparison(
        names=names,
        method=pair[0].config.label if pair[0].config else type(pair[0]).__name__,
        texts=len(texts),
        smallest_change=smallest_change,
        words=compare_words(texts, smallest_change=smallest_change, min_texts=min_texts),
        examples=tuple(chosen),
    )


def comparison_inputs(task: Task, count: int) -> list[Any]:
    """Return up to `count` test inputs of a task that holds them: impressions, or texts."""
    if isinstance(task, NewsRecommender):
        return task.impressions["test"][:count]
    if isinstance(task, TextTask):
        examples = task.texts["test"][:count]
        return [example.text if example.pair is None else (example.text, example.pair) for example in examples]
    raise TaskError(f"{type(task).__name__} holds no inputs to compare models on; give them to diffmask.compare")


def _explanations(explainer: Explainer, inputs: list[Any], fields: dict[str, Any]) -> list[Explanation]:
    task = require(explainer.task, ExplainsInputs, "comparing models")
    usual = task.comparison_fields if isinstance(task, HasComparisonFields) else {}
    explanations = task.explain(explainer, inputs, verify=False, **{**usual, **fields})
    return list(explanations)


def _scaled(explanations: Sequence[Explanation]) -> list[list[float]]:
    """Return importances on a common scale: keep probabilities, or scores over the mean of the texts' largest.

    The scale is one per model: divided by its own largest score, a text in which nothing matters would look like one in
    which something does.
    """
    values = []
    for explanation in explanations:
        layers = explanation.by_layer
        values.append((explanation.scores if layers is None else layers[-1]).tolist())
    if explanations[0].by_layer is not None:
        return values
    largest = [max(map(abs, scores)) for scores in values if scores]
    scale = sum(largest) / len(largest) if largest and sum(largest) else 1.0
    return [[score / scale for score in scores] for scores in values]


def _explained_text(
    first: list[float], second: list[float], explanation: Explanation, other: Explanation
) -> ExplainedText:
    if explanation.words != other.words:
        raise InputError(
            f"the two models read other words of '{explanation.text[:60]}': {len(explanation.words)} and "
            f"{len(other.words)}; give both the same max_tokens, and explain the same candidates"
        )
    return ExplainedText(
        text=explanation.text,
        words=explanation.words,
        first=tuple(first),
        second=tuple(second),
        predictions=(str(explanation.prediction), str(other.prediction)),
    )


def _largest_change(text: ExplainedText) -> float:
    return max((abs(second - first) for first, second in zip(text.first, text.second, strict=True)), default=0.0)
