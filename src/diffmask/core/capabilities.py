"""Optional abilities of a task, each a small protocol or mixin, and `require`, which asks a task for one of them.

A `Task` is a model, its data and a score. Metrics and methods that need more say so before any work begins:

    truth = require(task, HasGroundTruth, "divergence-to-truth").ground_truth(batch)
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar, runtime_checkable

from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor
from torch.distributions import Distribution

from diffmask.core.batch import Batch
from diffmask.core.distributions import predicted_outcome
from diffmask.core.task import Splits, Task
from diffmask.errors import InputError, TaskError
from diffmask.explanation.text_units import ReadRow


@runtime_checkable
class HasGroundTruth(Protocol):
    """A task whose relevant tokens are known: planted, annotated by people, or listed by the data set."""

    def ground_truth(self, batch: Batch) -> Float[Tensor, "row token"]:
        """Return the relevance of each token; a row of zeros is a row without known evidence."""


@runtime_checkable
class HasSmallestEvidence(Protocol):
    """A task that knows the smallest set of tokens that decides each row."""

    def smallest_evidence(self, batch: Batch) -> Float[Tensor, "row token"]:
        """Return 1 for every token of the smallest sufficient set, 0 elsewhere."""


@runtime_checkable
class HasAttention(Protocol):
    """A task whose model computes attention weights."""

    def attentions(self, batch: Batch) -> Float[Tensor, "row layer head query key"]:
        """Return the attention of each query to each key; a model with one attention pooling has one query."""


@runtime_checkable
class HasAnswerTokens(Protocol):
    """A task whose answer is read at some of the tokens: the ends of a span, the words of an entity, a blank."""

    answer_tokens_given: ClassVar[bool]
    """Whether these tokens are given with the input; otherwise the model predicts them."""

    def answer_tokens(self, batch: Batch, answer: Distribution) -> Float[Tensor, "row token"]:
        """Return the weight of each token in the answer; the weights of a row sum to 1."""


@runtime_checkable
class ErasesUnits(Protocol):
    """A task whose tokens are erased in groups, in the task's own way, such as the passages of a prompt."""

    def unit_numbers(self, batch: Batch) -> Int[Tensor, "row token"]:
        """Return the number of each token's unit, from 1; 0 for a token that cannot be erased."""

    def erase(self, batch: Batch, erased: Bool[Tensor, "row token"]) -> Batch:
        """Return the rows without the erased tokens."""


@runtime_checkable
class CachedRow(Protocol):
    """The states of a single row before its end, from which the answers to copies of the row are computed."""

    def predict_hidden(self, hidden: Bool[Tensor, "copy token"]) -> Distribution:
        """Return the answers to copies of the row, some tokens of which are hidden from the end."""

    def attentions(self) -> Float[Tensor, "1 layer head query key"]:
        """Return the attention of the whole row, as `HasAttention` does."""


@runtime_checkable
class HidesFromEnd(Protocol):
    """A task that can hide units from the end of a row alone, such as parts of a prompt from its question and response.

    The states before the end are those of the whole row, so that copies of a row cost little.
    """

    def cache_row(self, row: Batch) -> CachedRow:
        """Compute the states of a single row before its end, once for all copies."""


@runtime_checkable
class StatesOutcome(Protocol):
    """A task whose rows state the outcome to explain, such as a given response, which need not be the predicted one."""

    def explained_outcome(self, batch: Batch) -> Shaped[Tensor, "row *event"]:
        """Return the outcome of each row that is explained."""


def explained_outcome(task: Task, batch: Batch, answer: Distribution | None = None) -> Shaped[Tensor, "row *event"]:
    """Return the outcome that is explained by default: the stated one, else the predicted one.

    `answer` is the model's answer to the batch, if it is known; without it a forward pass may be needed.
    """
    if isinstance(task, StatesOutcome):
        return task.explained_outcome(batch)
    return predicted_outcome(task.predict(batch) if answer is None else answer)


@runtime_checkable
class ExplainsInputs(Protocol):
    """A task that encodes raw inputs, such as texts, and explains them one by one."""

    def explain(
        self, explainer: Any, inputs: Any = None, *, target: Any = None, verify: bool = True, **named: Any
    ) -> Any:
        """Return the explanation of one input, or a list of explanations for a list of inputs."""


@runtime_checkable
class HasContext(Protocol):
    """A task whose rows have informative inputs that are never masked, such as other candidates of an impression."""

    has_context: ClassVar[bool]
    """Always True."""


@runtime_checkable
class HasComparisonFields(Protocol):
    """A task that explains inputs in another way when two models are compared on them."""

    comparison_fields: ClassVar[Mapping[str, Any]]
    """Fields of `explain` for a comparison."""


@runtime_checkable
class HasPlaceholder(Protocol):
    """A task that can make a small batch without data, by which states of special tokens are read."""

    def placeholder_batch(self) -> Batch:
        """Return one short row with at least one maskable token."""


@runtime_checkable
class PreparesResume(Protocol):
    """A task that finds out by a few passes what `resume` may skip."""

    def prepare_resume(self) -> None:
        """Measure it now; explainers that use `resume` call this before their cost is counted."""


def prepare_resume(task: Task) -> None:
    """Measure what `resume` may skip, for tasks that have to."""
    if isinstance(task, PreparesResume):
        task.prepare_resume()


class Retrainable(ABC):
    """A task that can train a fresh model of the same kind on other data, as ROAR does."""

    @abstractmethod
    def retrain(self, data: Mapping[str, Batch], seed: int) -> Task:
        """Return the task with a fresh model trained on `data`."""

    @property
    def training_choices(self) -> Mapping[str, Any]:
        """Hyperparameters of `retrain` as plain values; they are part of the cache key of a retrained model."""
        return {}

    def roar_maskable(self, batch: Batch) -> Bool[Tensor, "row token"]:
        """Return the tokens that ROAR may mask; of a text and a question, only those of the text."""
        return batch.maskable

    def per_example_score(self, batch: Batch) -> Float[Tensor, " row"] | None:
        """Return the score of each row if `Task.score` is their mean (accuracy is), else None (F1 is not)."""
        return None


class RowText:
    """Mixin of a `Task` that renders rows and outcomes as text. By default each token is shown as its id."""

    if TYPE_CHECKING:

        @property
        def data(self) -> Splits:
            """The task's rows by split."""

    def describe(self, batch: Batch) -> list[list[str]]:
        """Return the tokens of each row as strings, without padding."""
        return [
            [str(token) for token in row[real].tolist()] for row, real in zip(batch.tokens, batch.present, strict=True)
        ]

    def read_row(self, split: str, row: int) -> ReadRow:
        """Return the words of one row and the columns of their tokens; by default each token is a word."""
        words = self.describe(self.data[split][row : row + 1])[0]
        columns = self.data[split].present[row].nonzero().flatten().tolist()
        return ReadRow(tuple(words), ("", *[" "] * (len(words) - 1), ""), tuple((column,) for column in columns))

    def outcomes(self, target: Shaped[Tensor, "row *event"]) -> list[str | None]:
        """Return the name of each outcome, None for an unknown one."""
        return [str(value) for value in target.tolist()]

    def example(self, batch: Batch) -> int:
        """Return the index of a row that illustrates the task."""
        return 0

    def title(self, batch: Batch) -> str:
        """Return the question of the first row and the model's answer as a sentence."""
        return ""


class _TokenIds(RowText):
    """Default rendering of a task without the `RowText` mixin."""

    def __init__(self, task: Task) -> None:
        self._task = task

    @property
    def data(self) -> Splits:
        """The task's rows by split."""
        return self._task.data


def row_text(task: Task) -> RowText:
    """Return the task's own rendering of rows, or token ids if it has none."""
    return task if isinstance(task, RowText) else _TokenIds(task)


_REMEDIES: dict[type, str] = {
    HasGroundTruth: "has no known truth; use a task that plants one, such as 'toy', or give it a ground_truth(batch)",
    HasSmallestEvidence: "does not know its smallest evidence; use a task that does, such as 'toy'",
    HasAttention: "gives no attention weights; write its attentions(batch), and load a Hugging Face transformer with "
    'attn_implementation="eager": the faster kernels never hold the weights',
    ErasesUnits: "has no units that are erased as a whole; use a task that has, such as 'text-generation'",
    ExplainsInputs: "reads batches only; encode the inputs as a diffmask.Batch",
    Retrainable: "cannot be trained again; add the mixin diffmask.Retrainable and a retrain(data, seed)",
}

Ability = TypeVar("Ability")


def require(task: Task, ability: type[Ability], purpose: str) -> Ability:
    """Return the task as one with this ability.

    Raises:
        TaskError: The task lacks the ability. The message names the task, the purpose and the remedy.
    """
    if not isinstance(task, ability):
        raise TaskError(f"{purpose}: {type(task).__name__} {_REMEDIES[ability]}")
    return task


def training_choices(task: Task) -> dict[str, Any]:
    """Return the hyperparameters of `retrain`; none for a task that cannot be retrained."""
    return dict(task.training_choices) if isinstance(task, Retrainable) else {}


def require_labels(task: Task, data: Mapping[str, Batch]) -> None:
    """Raise an InputError if a row of any split has no label to train on."""
    for split, batch in data.items():
        missing = row_text(task).outcomes(batch.target).count(None)
        if missing:
            raise InputError(f"{missing} of {len(batch)} rows of '{split}' have no label, which ROAR trains by")
