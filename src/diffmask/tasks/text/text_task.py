"""Base of every task on a Hugging Face model that reads whole texts: model, tokenizer, sites and texts by split."""

import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, ClassVar, cast

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor
from torch.distributions import Distribution

from diffmask.core.batch import Batch, map_by_length
from diffmask.core.capabilities import Retrainable, RowText, require_labels
from diffmask.core.distributions import logits as distribution_logits
from diffmask.core.hooks import Edit, Site, frozen, remove_added_hooks
from diffmask.core.task import Task
from diffmask.datasets.tables import Example, Source, pair_of_texts, read_examples, read_inputs, require_text
from diffmask.errors import InputError, InputWarning, TaskError, nearest
from diffmask.explanation.collection import ExplanationList
from diffmask.explanation.explanation import Explanation, Prediction
from diffmask.explanation.text_units import ReadRow
from diffmask.tasks.text.encoding import EVIDENCE, EncodedBatch, TextEncoder, TextEncodingConfig, add_evidence
from diffmask.tasks.text.explain_texts import explain_examples, row_words
from diffmask.tasks.text.inspection import find_padding, find_partial_forward, find_sites, token_embedding
from diffmask.tasks.text.pretrained import (
    FineTuningSource,
    eager_attention,
    load_model,
    max_input_tokens,
    quiet_transformers,
)
from diffmask.tasks.text.unwrap import prepare


class TextTask(Task, RowText, Retrainable, ABC):
    """Model with its tokenizer and its texts; the sites are found by running the model.

    The model is in eval mode and requires no gradients while it runs here. After each pass the mode of every module
    and `requires_grad` of every parameter are restored. The weights never change.

    A subclass says which head it loads (`auto_class`), what its logits mean (`read_config`, `distribution`,
    `prediction`), what its labels are (`targets`) and how it is scored.

    Args:
        model: A folder, a hub id, a `transformers` pipeline, a tuple `(model, tokenizer)` or a module. A model whose
            repository contains Python code of its own is loaded with `load_classifier(name, trust_remote_code=True)`
            and passed as a module. A model in half precision is explained in single precision.
        tokenizer: The model's fast tokenizer; needed only if `model` is a module.
        train, valid, test: Texts of each split: a path, columns or rows.
        encoding: Columns of the tables and the tokenization of the texts.
        source: Encoder and hyperparameters from which ROAR retrains the model; a model that `diffmask train` saved
            states its own.
        device: Device to move the model to, such as `cuda`; by default it stays where it is.
    """

    name: ClassVar[str]
    """Name of the task on the command line and in saved explainers."""
    auto_class: ClassVar[str]
    """Class of `transformers` that loads the model with its head."""
    head_options: ClassVar[Mapping[str, Any]] = {}
    """Options of the configuration that a new head needs."""
    encoding_class: ClassVar[type[TextEncodingConfig]] = TextEncodingConfig
    """Config of the columns and of the tokenization; a subclass may add fields."""
    input_fields: ClassVar[tuple[str, ...]] = ("text", "pair")
    """Names of the text and of the second text of a pair, as a caller gives them."""
    own_inputs: ClassVar[frozenset[str]] = frozenset({EVIDENCE})
    """Keys of `Batch.token_inputs` that the model does not receive."""
    placeholder: ClassVar[Any] = "."
    """Smallest input that can be encoded."""

    model: Any

    def __init__(
        self,
        model: Any,
        tokenizer: Any = None,
        *,
        train: Source | None = None,
        valid: Source | None = None,
        test: Source | None = None,
        encoding: TextEncodingConfig | None = None,
        source: FineTuningSource | None = None,
        device: str | torch.device | None = None,
    ) -> None:
        loaded, self.tokenizer = load_model(
            self.auto_class, model, tokenizer, wanted_by=type(self).__name__, device=device
        )
        stated = FineTuningSource.of(loaded.config)
        self.source = source or stated
        # `diffmask train` states how it fine-tuned the model; a source that is given is for retraining only.
        self.trained_with_masks = stated.tuning.masked_fraction > 0
        reading = encoding or self.encoding_class()
        self.text_encoder = TextEncoder(self.tokenizer, reading, max_input_tokens(loaded, self.tokenizer))
        self.mask_token = self.tokenizer.mask_token_id
        self.pad_token = self.tokenizer.pad_token_id
        self.device = token_embedding(loaded).weight.device
        self.read_config(loaded.config)
        with frozen(loaded):
            super().__init__(loaded, self._inspect(loaded), {})
        # Left padding is a sort of the tokens by presence: a token hidden inside a row would move to its front.
        self.attention_masked = not self.padding.left
        self.texts: dict[str, list[Example]] = {}
        """Text of each row by split."""
        for split, rows in (("train", train), ("valid", valid), ("test", test)):
            if rows is not None:
                self._read_split(split, rows)

    def _read_split(self, split: str, rows: Source) -> None:
        examples = list(self.read(rows))
        encoded = self.encode_examples(examples)
        self.data[split] = encoded.batch
        self.texts[split] = [examples[index] for index in encoded.sources]

    def _inspect(self, model: Any) -> dict[str, Site]:
        """Return the sites; set the padding side and the partial forward passes."""
        embedding = token_embedding(model)

        def logits(ids: Tensor, present: Tensor) -> Tensor:
            return self.probe(model, {"input_ids": ids, "attention_mask": present.long()})

        def unpadded(ids: Tensor) -> Tensor:
            return logits(ids, torch.ones_like(ids))

        sites = find_sites(model, embedding, unpadded, getattr(model.config, "num_hidden_layers", None))
        self.partial_forward = find_partial_forward(model, sites, embedding, unpadded)
        self.padding = find_padding(logits, self.pad_token, len(embedding.weight), self.device)
        return sites

    def to(self, device: str | torch.device) -> "TextTask":
        """Move the model and all rows to a device, and return this task."""
        self.model = prepare(self.model, device, own=True)
        self.device = token_embedding(self.model).weight.device
        for split, rows in list(self.data.items()):
            self.data[split] = rows.to(self.device)
        return self

    def read_config(self, config: Any) -> None:
        """Read what the head means from the model's configuration; called once, before any text is encoded."""

    def probe(self, model: Any, inputs: Mapping[str, Tensor]) -> Float[Tensor, "row output"]:
        """Return outputs of the model that depend on every token and not on padding; sites are found by them."""
        return model(**inputs).logits

    @abstractmethod
    def distribution(self, values: Float[Tensor, "row *feature"]) -> Distribution:
        """Return the answer with these logits."""

    @abstractmethod
    def prediction(self, answer: Distribution, example: Example, encodings: Sequence[Any]) -> Prediction:
        """Return the prediction of one text, given the answers and the encodings of its rows."""

    @abstractmethod
    def targets(
        self, examples: Sequence[Example], sources: Sequence[int], encodings: Sequence[Any]
    ) -> Shaped[Tensor, "row *event"]:
        """Return the labels of the rows as outcomes of the answer."""

    @abstractmethod
    def untrained(self, seed: int) -> Any:
        """Return the model before its fine-tuning: its encoder with a new head."""

    def read(self, source: Source) -> Iterable[Example]:
        """Yield the examples of a path, columns or rows."""
        return read_examples(source, self.text_encoder.config)

    def load(self, source: Source) -> Batch:
        """Return the texts and labels of a path, columns or rows as a batch."""
        return self.encode_examples(self.read(source)).batch

    def encode(self, texts: Iterable[Any]) -> Batch:
        """Return texts, or pairs of texts, as a batch without labels."""
        return self.encode_examples(self.to_example(text) for text in texts).batch

    def placeholder_batch(self) -> Batch:
        """Return the smallest input as a batch."""
        return self.encode([self.placeholder])

    def to_example(self, given: Any) -> Example:
        """Return one input as an example: a text, a pair `(first, second)`, or a mapping such as a row of a table.

        A mapping has the names of `input_fields` or the columns of the encoding; other columns are ignored.
        """
        if isinstance(given, Example):
            return given
        if isinstance(given, Mapping):
            return self._example_of_fields(given)
        return pair_of_texts(given) if isinstance(given, tuple | list) else Example(require_text(given))

    def _example_of_fields(self, given: Mapping[str, Any]) -> Example:
        columns = self.text_encoder.config
        first, second = (
            next((name for name in names if name in given), None)
            for names in (
                (self.input_fields[0], columns.text_column),
                (*self.input_fields[1:2], columns.pair_column, "text_pair"),
            )
        )
        if first is None:
            wanted = columns.text_column if self.input_fields[0] == "text" else self.input_fields[0]
            raise InputError(f"there is no column '{wanted}'; {nearest(wanted, map(str, given))}")
        return Example(require_text(given[first]), None if second is None else require_text(given[second]))

    def _require_fields(self, named: Mapping[str, Any]) -> None:
        for name in named:
            if name not in self.input_fields:
                raise InputError(f"{type(self).__name__} has no field '{name}'; {nearest(name, self.input_fields)}")
        if named and self.input_fields[0] not in named:
            raise InputError(
                f"the field '{self.input_fields[0]}' is missing; {type(self).__name__} reads {self._fields()}"
            )

    def _fields(self) -> str:
        return " and ".join(f"'{name}'" for name in self.input_fields)

    def encode_examples(self, rows: Iterable[Example]) -> EncodedBatch:
        """Return examples as a batch with the mapping from its rows back to the texts."""
        examples = list(rows)
        sources, encodings = self.text_encoder.encode(examples)
        batch = self.text_encoder.batch(encodings, self.targets(examples, sources, encodings), self.device)
        batch = self.add_inputs(batch, examples, sources, encodings)
        return EncodedBatch(add_evidence(batch, examples, sources, encodings), sources, encodings)

    def add_inputs(
        self, batch: Batch, examples: Sequence[Example], sources: Sequence[int], encodings: Sequence[Any]
    ) -> Batch:
        """Return the batch with inputs of this task, such as the tokens that may be an answer."""
        return batch

    def predict(self, batch: Batch, edits: Mapping[str, Edit] | None = None) -> Distribution:
        """Run the model with some sites edited; edits always receive rows padded on the right."""
        adapted = {name: self.padding.adapt_edit(edit, batch.present) for name, edit in (edits or {}).items()}
        return super().predict(batch, adapted)

    def resume(
        self, batch: Batch, states: Mapping[str, Float[Tensor, "row token width"]], edits: Mapping[str, Edit]
    ) -> Distribution:
        """Return what `predict` returns, given the unmodified states; blocks below the first edit are skipped."""
        first = min(edits, key=self.sites.index)
        edit = edits[first]
        with self.partial_forward.to(self.model, first):
            return self.predict(batch, {**edits, first: lambda _: edit(states[first])})

    def forward(self, batch: Batch) -> Distribution:
        """Run the frozen model."""
        with frozen(self.model):
            return self.forward_train(batch)

    def model_inputs(self, batch: Batch) -> dict[str, Tensor]:
        """Return the arguments of the model, padded on its own side."""
        self._require_vocabulary(batch)
        token_inputs = {name: value for name, value in batch.token_inputs.items() if name not in self.own_inputs}
        inputs = {"input_ids": batch.tokens, "attention_mask": batch.present.long(), **token_inputs}
        return {name: self.padding.to_model(value, batch.present) for name, value in inputs.items()}

    def _require_vocabulary(self, batch: Batch) -> None:
        """Refuse tokens that the model does not know and rows that it cannot hold, on which it could only crash."""
        words, limit = len(token_embedding(self.model).weight), self.text_encoder.model_limit
        if not 0 <= int(batch.tokens.min()) <= int(batch.tokens.max()) < words:
            raise InputError(
                f"the batch has tokens outside 0 to {words - 1}, which {type(self).__name__} does not know"
            )
        if limit is not None and batch.tokens.shape[1] > limit:
            raise InputError(f"rows of {batch.tokens.shape[1]} tokens; the model reads at most {limit}")

    @torch.no_grad()
    def attentions(self, batch: Batch) -> Float[Tensor, "row layer head query key"]:
        """Return the attention weights of every block, computed by the eager kernel."""
        with frozen(self.model), remove_added_hooks(self.model), eager_attention(self.model):
            attentions = getattr(self.model(**self.model_inputs(batch), output_attentions=True), "attentions", None)
        if not attentions or any(weights is None for weights in attentions):
            raise TaskError(
                f"{type(self.model).__name__} gave no attention weights; load it with "
                'from_pretrained(..., attn_implementation="eager"): the faster kernels never hold them'
            )
        return self.padding.from_model(torch.stack(attentions, dim=1), batch.present)

    @torch.no_grad()
    def logits(self, batch: Batch, rows_at_once: int = 128) -> Float[Tensor, "row *feature"]:
        """Return the logits of all rows, computed on rows of similar length."""
        return map_by_length(lambda rows: distribution_logits(self.predict(rows)), batch, rows_at_once)

    def ground_truth(self, batch: Batch) -> Float[Tensor, "row token"]:
        """Return the evidence of a data set that marks it, such as human rationales."""
        if EVIDENCE not in batch.token_inputs:
            raise TaskError("these texts have no known truth; use a data set with rationales, such as ERASER's")
        return batch.token_inputs[EVIDENCE]

    def explain(
        self, explainer: Any, inputs: Any = None, target: Any = None, *, verify: bool = True, **named: Any
    ) -> Any:
        """Return the explanation of one input; of several inputs, a list that is also a table (`ExplanationList`).

        An input is a text, a pair `(first, second)` or a mapping with `input_fields`; a single one may be given by
        these names. Several are a list, a generator, a column, a data frame or a data set. `target` is a class by
        name or index, one per input, or several classes of one input; by default the predicted one is explained. The
        words that are enough for the prediction are searched for and verified on the model; `verify=False` takes one
        forward pass and predicts them.
        """
        if (inputs is None) == (not named):
            raise InputError(f"give one input, a list of inputs, or the fields {self._fields()} by name")
        self._require_fields(named)
        examples, single = read_inputs(named if inputs is None else inputs, self.to_example)
        if single and isinstance(target, list | tuple):
            examples, single = examples * len(target), False
        targets = self._outcomes_of(target, len(examples))
        explanations = self.explain_examples(explainer, examples, verify=verify, targets=targets)
        return explanations[0] if single else ExplanationList(explanations)

    def _outcomes_of(self, target: Any, count: int) -> list[Tensor] | None:
        """Return one outcome per input."""
        if target is None:
            return None
        each = [target] * count if isinstance(target, str) or not isinstance(target, Iterable) else list(target)
        if len(each) != count:
            raise InputError(f"{len(each)} targets for {count} inputs; give one class, or one per input")
        return [self.outcome_of(one) for one in each]

    def outcome_of(self, target: Any) -> Shaped[Tensor, "*event"]:
        """Return the outcome that a target names; a subclass whose answers are classes overrides it."""
        raise InputError(f"{type(self).__name__} explains its own answer; leave target out")

    def target_prediction(self, answer: Distribution, target: Shaped[Tensor, "*event"]) -> Prediction:
        """Return the name and probability of an explained outcome, given the answers of one text's rows."""
        raise InputError(f"{type(self).__name__} explains its own answer; leave target out")

    def explain_examples(
        self, explainer: Any, examples: Sequence[Example], *, verify: bool, targets: Sequence[Tensor] | None = None
    ) -> list[Explanation]:
        """Return one explanation per example."""
        return explain_examples(self, explainer, examples, verify=verify, targets=targets)

    @property
    def training_choices(self) -> Mapping[str, Any]:
        """Encoder and hyperparameters of the fine-tuning."""
        return self.source.to_dict()

    def retrain(self, data: Mapping[str, Batch], seed: int) -> "TextTask":
        """Fine-tune the encoder with a new head on other rows; without an encoder, the model's own body."""
        self.require_trainable(data)
        task = type(self)(self.untrained(seed), self.tokenizer, encoding=self.text_encoder.config, source=self.source)
        self.share_with(task)
        task.data = data
        self.source.tuning.fine_tune(task, seed)
        return task

    def share_with(self, task: Any) -> None:
        """Give a task of the same kind what it needs to know of these rows; nothing by default."""

    def require_trainable(self, data: Mapping[str, Batch]) -> None:
        """Raise an InputError if a row has no label to train on."""
        require_labels(self, data)

    def save_pretrained(self, folder: str | Path) -> None:
        """Save the model and its tokenizer in the format of `transformers`."""
        with quiet_transformers():
            self.model.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)

    def reading_choices(self) -> dict[str, Any]:
        """Return the fields of `encoding_class` as plain values, for a saved explainer."""
        return {field.name: getattr(self.text_encoder.config, field.name) for field in fields(self.encoding_class)}

    def subset(self, split: str, rows: Int[Tensor, " row"]) -> "TextTask":
        """Return the task with only the given rows of a split, and their texts."""
        task = cast(TextTask, super().subset(split, rows))
        if split in self.texts:
            task.texts = {**self.texts, split: [self.texts[split][row] for row in rows.tolist()]}
        return task

    def read_row(self, split: str, row: int) -> ReadRow:
        """Return the words of a row's text; the word pieces if the rows were given without texts."""
        if split not in self.texts:
            return super().read_row(split, row)
        tokens = self.data[split].tokens[row][self.data[split].present[row]].tolist()
        text = self.texts[split][row]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", InputWarning)
            encoded = self.encode_examples([text])
        # A long text may be several rows: choose the one with these tokens.
        index = next((index for index, encoding in enumerate(encoded.encodings) if encoding.ids == tokens), None)
        return super().read_row(split, row) if index is None else row_words(text, encoded, index)

    def describe(self, batch: Batch) -> list[list[str]]:
        """Return the word pieces of each row."""
        return [
            self.tokenizer.convert_ids_to_tokens(row[real].tolist())
            for row, real in zip(batch.tokens, batch.present, strict=True)
        ]
