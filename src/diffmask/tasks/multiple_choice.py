"""Task of multiple choice: which words of a question, or of a story, make the model choose this ending?

The words of the shared text may be masked, in the sequences of all choices at once; the choices may not.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor
from torch.distributions import Categorical, Distribution

from diffmask.core.batch import Batch
from diffmask.core.distributions import logits
from diffmask.core.hooks import Edit
from diffmask.core.task import Task
from diffmask.datasets.tables import Example, Source
from diffmask.errors import InputError, TaskError
from diffmask.explanation.verified_set import Prediction
from diffmask.tasks.text.encoding import EncodedBatch, TextEncodingConfig, TextTaskSpec, pad_rows
from diffmask.tasks.text.heads import NO_LABEL, correct_classes
from diffmask.tasks.text.text_task import TextTask

CHOICES, CHOICE_TYPES = "choices", "choice types"
"""Keys in `Batch.inputs` of the tokens and segments after the shared text, [row, choice, token]; -1 is padding."""
IMPOSSIBLE = -50.0
"""Logit of a choice that a row does not have."""


@dataclass(frozen=True, kw_only=True)
class ChoiceEncodingConfig(TextEncodingConfig):
    """Columns and tokenization of questions with choices."""

    text_column: str = "question"
    """Column of the shared text."""
    choices_column: str = "choices"
    """Column of the list of choices."""
    label_column: str = "answer"
    """Column of the right choice, by its number from 0 or its text."""
    most_choices: int = 5
    """Largest number of choices of a row."""


@dataclass(frozen=True)
class ChoiceExample(Example):
    """Shared text with its choices; `label` is the number of the right one."""

    choices: tuple[str, ...] = ()


class MultipleChoice(TextTask):
    """Model that chooses one of several continuations of a text; the answer is a distribution over the choices.

    Rows are mappings with a question, choices and an answer, or `((question, choices), answer)`.
    """

    spec: ClassVar[TextTaskSpec] = TextTaskSpec(
        name="multiple-choice",
        auto_class="AutoModelForMultipleChoice",
        encoding_class=ChoiceEncodingConfig,
        input_fields=("question", "choices"),
        placeholder={"question": ".", "choices": (".", "?")},
    )

    def read_config(self, config: Any) -> None:
        """Set the number of choices that an answer has room for."""
        self.most_choices = int(getattr(self.text_encoder.config, "most_choices", 5))

    def read(self, source: Source) -> Iterable[Example]:
        """Yield the questions of rows or of columns."""
        if isinstance(source, str) or not isinstance(source, Iterable):
            raise InputError("multiple choice reads rows or columns; load the file first, for example with `datasets`")
        if isinstance(source, Mapping):
            source = [dict(zip(source, values, strict=True)) for values in zip(*source.values(), strict=True)]
        return (self.to_example(row) for row in source)

    def to_example(self, given: Any) -> Example:
        """Return a question with its choices."""
        if isinstance(given, ChoiceExample):
            return given
        names = [
            getattr(self.text_encoder.config, name, name) for name in ("text_column", "choices_column", "label_column")
        ]
        if isinstance(given, Mapping):
            missing = [name for name in names[:2] if name not in given]
            if missing:
                raise InputError(f"the field '{missing[0]}' is missing; give question=... and choices=[...]")
            question, choices, label = given[names[0]], given[names[1]], given.get(names[2])
        else:
            (question, choices), label = given if not isinstance(given[0], str) else (given, None)
        return self._example(question, tuple(choices), label)

    def _example(self, question: str, choices: tuple[str, ...], label: Any) -> ChoiceExample:
        if not 2 <= len(choices) <= self.most_choices:
            raise InputError(f"{len(choices)} choices; give 2 to {self.most_choices}, or raise most_choices")
        if isinstance(label, str) and label in choices:
            label = choices.index(label)
        if label is not None and not (isinstance(label, int) and 0 <= label < len(choices)):
            raise InputError(f"{label!r} is none of the {len(choices)} choices; give its number from 0, or its text")
        return ChoiceExample(question, None, label, choices)

    def encode_examples(self, rows: Iterable[Example]) -> EncodedBatch:
        """Return the shared texts as a batch; the choices are inputs of the rows."""
        examples = [self.to_example(row) for row in rows]
        flat = [(Example(row.text, choice)) for row in examples for choice in getattr(row, "choices", ())]
        _, encodings = self.text_encoder.encode(flat)
        if any(encoding.overflowing for encoding in encodings):
            raise InputError(f"a question with its choice has more than {self.text_encoder.limit} tokens; shorten it")
        remaining = iter(encodings)
        groups = [[next(remaining) for _ in getattr(row, "choices", ())] for row in examples]
        first = [group[0] for group in groups]
        lengths = [1 + max(at for at, place in enumerate(encoding.sequence_ids) if place == 0) for encoding in first]
        target = self.targets(examples, range(len(examples)), first)
        batch = self.text_encoder.batch(first, target, self.device)
        ends = torch.tensor(lengths, device=self.device)[:, None]
        shared = torch.arange(batch.tokens.shape[1], device=self.device) < ends
        batch = replace(batch, present=batch.present & shared, maskable=batch.maskable & shared)
        inputs = {
            CHOICES: self._endings([[encoding.ids for encoding in group] for group in groups], lengths),
            CHOICE_TYPES: self._endings([[encoding.type_ids for encoding in group] for group in groups], lengths),
        }
        for encoding, length in zip(first, lengths, strict=True):
            encoding.truncate(length)  # the rows of the batch are the shared texts alone
        return EncodedBatch(replace(batch, inputs=inputs).trim(), list(range(len(examples))), first)

    def _endings(self, values: list[list[list[int]]], lengths: list[int]) -> Int[Tensor, "row choice token"]:
        """Return what follows the shared text in the sequence of each choice; absent choices are all padding."""
        rows = [
            [sequence[length:] for sequence in group] + [[-1]] * (self.most_choices - len(group))
            for group, length in zip(values, lengths, strict=True)
        ]
        padded = pad_rows([ending for row in rows for ending in row], -1)
        return padded.view(len(rows), self.most_choices, -1).to(self.device)

    def targets(
        self, examples: Sequence[Example], sources: Sequence[int], encodings: Sequence[Any]
    ) -> Shaped[Tensor, " row"]:
        """Return the numbers of the right choices; -1 where it is not known."""
        labels = [examples[source].label for source in sources]
        return torch.tensor([NO_LABEL if label is None else int(label) for label in labels])

    def probe(self, model: Any, inputs: Mapping[str, Tensor]) -> Float[Tensor, "row output"]:
        """Return the logit of one choice per row."""
        return model(**{name: value[:, None] for name, value in inputs.items()}).logits

    def predict(self, batch: Batch, edits: Mapping[str, Edit] | None = None) -> Distribution:
        """Run the model with some sites edited; an edit of the shared text applies to the sequences of all choices."""
        layout = _Layout.of(batch)
        # The edits of `TextTask` are for rows of one sequence; these have several.
        return Task.predict(self, batch, {name: layout.adapt(edit) for name, edit in (edits or {}).items()})

    def resume(
        self, batch: Batch, states: Mapping[str, Float[Tensor, "row token width"]], edits: Mapping[str, Edit]
    ) -> Distribution:
        """Run the whole model: the states of the shared text differ between the choices."""
        return self.predict(batch, edits)

    @torch.no_grad()
    def trace(self, batch: Batch) -> tuple[Distribution, dict[str, Float[Tensor, "row token width"]]]:
        """Return the answer and the states of the shared text at every site, the mean over the choices."""
        seen: dict[str, list[Tensor]] = {name: [] for name in self.sites}

        def capture(name: str) -> Edit:
            def edit(state: Tensor) -> Tensor:
                seen[name].append(state)
                return state

            return edit

        answer = self.predict(batch, {name: capture(name) for name in self.sites})
        return answer, {name: torch.stack(states).mean(dim=0) for name, states in seen.items()}

    def forward_train(self, batch: Batch) -> Distribution:
        """Run the model in its current mode on every choice."""
        layout = _Layout.of(batch)
        count = self.most_choices
        inputs = {
            "input_ids": layout.compact(batch.tokens, batch.inputs[CHOICES].clamp(min=0)),
            "attention_mask": layout.there.gather(2, layout.order).long(),
        }
        if "token_type_ids" in batch.token_inputs:
            types = batch.token_inputs["token_type_ids"]
            inputs["token_type_ids"] = layout.compact(types, batch.inputs[CHOICE_TYPES].clamp(min=0))
        # An absent choice has no token at all, which some models cannot read: it is shown the shared text alone.
        values = self.model(**inputs).logits.float().view(-1, count)
        absent = (batch.inputs[CHOICES] < 0).all(dim=2)
        return self.distribution(values.masked_fill(absent, IMPOSSIBLE))

    def distribution(self, values: Float[Tensor, "row choice"]) -> Distribution:
        """Return a categorical distribution over the choices."""
        return Categorical(logits=values, validate_args=False)

    def prediction(self, answer: Distribution, example: Example, encodings: Sequence[Any]) -> Prediction:
        """Return the text of the chosen ending."""
        best = logits(answer)[0].softmax(dim=-1).max(dim=-1)
        choices = getattr(example, "choices", ())
        return Prediction(choices[int(best.indices)], float(best.values))

    def score(self, batch: Batch) -> float:
        """Return the accuracy."""
        return float(self.per_example_score(batch).mean())

    def per_example_score(self, batch: Batch) -> Float[Tensor, " row"]:
        """Return 1 for each labelled row whose right choice is chosen."""
        return correct_classes(self.logits, batch)

    def attentions(self, batch: Batch) -> Float[Tensor, "row layer head query key"]:
        """Raise a TaskError: a row has one sequence of attention weights per choice."""
        raise TaskError("a multiple choice has attention weights for every choice, and no single map of its text")

    def outcomes(self, target: Shaped[Tensor, " row"]) -> list[str | None]:
        """Return the numbers of the choices."""
        return [None if index == NO_LABEL else f"choice {index}" for index in target.tolist()]


@dataclass(frozen=True)
class _Layout:
    """Where the tokens of the shared text and of every choice are in the model's sequences, which have no gaps."""

    there: Bool[Tensor, "row choice token"]
    """Whether a token exists, in the order shared text, ending."""
    order: Int[Tensor, "row choice token"]
    """Column of each of the model's columns: existing tokens first."""
    shared: int
    """Columns of the shared text."""

    @staticmethod
    def of(batch: Batch) -> "_Layout":
        """Return the layout of a batch."""
        endings = batch.inputs[CHOICES] >= 0
        prefix = batch.present[:, None].expand(-1, endings.shape[1], -1)
        present = torch.cat([prefix, endings], dim=2)
        order = (~present).int().sort(dim=2, stable=True).indices
        return _Layout(present, order, batch.tokens.shape[1])

    def compact(self, shared: Tensor, endings: Tensor) -> Tensor:
        """Return the values of all sequences in the model's order."""
        prefix = shared[:, None].expand(-1, endings.shape[1], -1)
        return torch.cat([prefix, endings], dim=2).gather(2, self.order)

    def adapt(self, edit: Edit) -> Edit:
        """Return the edit for the states of all choices; it sees and changes the shared text only."""
        rows, count, width = self.order.shape
        flat = self.order.flatten(0, 1)

        def adapted(state: Tensor) -> Tensor:
            index = flat[..., None].expand(-1, -1, state.shape[-1])
            sequences = state[:, :width]
            ordered = torch.zeros_like(sequences).scatter(1, index, sequences).view(rows, count, width, -1)
            shared, endings = ordered[:, :, : self.shared], ordered[:, :, self.shared :]
            if torch.equal(shared, shared[:, :1].expand_as(shared)):
                edited = edit(shared[:, 0])[:, None].expand_as(shared)  # embeddings are the same for all choices
            else:
                edited = torch.stack([edit(choice) for choice in shared.unbind(1)], dim=1)
            back = torch.cat([edited, endings], dim=2).flatten(0, 1).gather(1, index)
            return torch.cat([back, state[:, width:]], dim=1)

        return adapted
