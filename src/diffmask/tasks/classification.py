"""Task of a Hugging Face sequence classifier on texts or pairs of texts."""

import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, cast

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor, nn
from torch.distributions import Distribution

from diffmask.core.batch import Batch, map_by_length
from diffmask.core.capabilities import Retrainable, RowText, require_labels
from diffmask.core.distributions import logits as distribution_logits
from diffmask.core.hooks import Edit, Site, frozen, remove_added_hooks
from diffmask.core.task import Task
from diffmask.datasets.tables import Example, Source, read_examples
from diffmask.errors import InputWarning, TaskError
from diffmask.explanation.explanation import Explanation
from diffmask.explanation.text_units import ReadRow
from diffmask.tasks.text.encoding import EVIDENCE, EncodedBatch, TextEncoder, TextEncodingConfig, add_evidence
from diffmask.tasks.text.explain import explain_examples, row_words
from diffmask.tasks.text.heads import head_of
from diffmask.tasks.text.inspection import find_padding, find_sites
from diffmask.tasks.text.partial_forward import find_partial_forward
from diffmask.tasks.text.pretrained import (
    FineTuningSource,
    eager_attention,
    load_classifier,
    max_input_tokens,
    quiet_transformers,
    token_embedding,
)

DEFAULT_ENCODING = TextEncodingConfig()


class TextClassification(Task, RowText, Retrainable):
    """Classifier with its tokenizer and its texts; the sites are found by running the model.

    The model is in eval mode and requires no gradients while it runs here. After each pass the mode of every module
    and `requires_grad` of every parameter are restored. The weights never change.

    Args:
        model: The classifier, or its folder or hub id. A model whose repository contains Python code of its own is
            loaded with `load_classifier(name, trust_remote_code=True)` and passed as a module.
        tokenizer: The model's fast tokenizer; needed only if `model` is a module.
        train, valid, test: Texts of each split: a path, columns or rows.
        encoding: Columns of the tables and the tokenization of the texts.
        source: Encoder and hyperparameters from which ROAR retrains the classifier; a classifier that
            `diffmask train` saved states its own.
    """

    model: Any

    def __init__(
        self,
        model: str | Path | nn.Module,
        tokenizer: Any = None,
        *,
        train: Source | None = None,
        valid: Source | None = None,
        test: Source | None = None,
        encoding: TextEncodingConfig = DEFAULT_ENCODING,
        source: FineTuningSource | None = None,
    ) -> None:
        classifier, self.tokenizer = load_classifier(model, tokenizer)
        stated = FineTuningSource.of(classifier.config)
        self.source = source or stated
        # `diffmask train` states how it fine-tuned the model; a source that is given is for retraining only.
        self.trained_with_masks = stated.tuning.masked_fraction > 0
        self.text_encoder = TextEncoder(self.tokenizer, encoding, max_input_tokens(classifier, self.tokenizer))
        self.head = head_of(classifier.config)
        self.mask_token = self.tokenizer.mask_token_id
        self.pad_token = self.tokenizer.pad_token_id
        self.device = token_embedding(classifier).weight.device
        with frozen(classifier):
            super().__init__(classifier, self._inspect(classifier), {})
        # Left padding is a sort of the tokens by presence: a token hidden inside a row would move to its front.
        self.attention_masked = not self.padding.left
        self.texts: dict[str, list[Example]] = {}
        """Text of each row by split."""
        for split, rows in (("train", train), ("valid", valid), ("test", test)):
            if rows is not None:
                examples = list(read_examples(rows, encoding))
                encoded = self.encode_examples(examples)
                self.data[split] = encoded.batch
                self.texts[split] = [examples[index] for index in encoded.sources]

    def _inspect(self, model: Any) -> dict[str, Site]:
        """Return the sites; set the padding side and the partial forward passes."""
        embedding = token_embedding(model)

        def logits(ids: Tensor, present: Tensor) -> Tensor:
            return model(input_ids=ids, attention_mask=present.long()).logits

        def unpadded(ids: Tensor) -> Tensor:
            return logits(ids, torch.ones_like(ids))

        sites = find_sites(model, embedding, unpadded, getattr(model.config, "num_hidden_layers", None))
        self.partial_forward = find_partial_forward(model, sites, embedding, unpadded)
        self.padding = find_padding(logits, self.pad_token, len(embedding.weight), self.device)
        return sites

    def load(self, source: Source) -> Batch:
        """Return the texts and labels of a path, columns or rows as a batch."""
        return self.encode_examples(read_examples(source, self.text_encoder.config)).batch

    def encode(self, texts: Iterable[str | tuple[str, str]]) -> Batch:
        """Return texts, or pairs of texts, as a batch without labels."""
        return self.encode_examples(_unlabelled(text) for text in texts).batch

    def encode_examples(self, rows: Iterable[Example]) -> EncodedBatch:
        """Return examples as a batch with the mapping from its rows back to the texts."""
        examples = list(rows)
        sources, encodings = self.text_encoder.encode(examples)
        target = self.head.targets([examples[index].label for index in sources])
        batch = self.text_encoder.batch(encodings, target, self.device)
        return EncodedBatch(add_evidence(batch, examples, sources, encodings), sources, encodings)

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
        """Run the frozen classifier."""
        with frozen(self.model):
            return self.forward_train(batch)

    def forward_train(self, batch: Batch) -> Distribution:
        """Run the classifier in its current mode."""
        return self.head.distribution(self.model(**self._inputs(batch)).logits.float())

    def _inputs(self, batch: Batch) -> dict[str, Tensor]:
        token_inputs = {name: value for name, value in batch.token_inputs.items() if name != EVIDENCE}
        inputs = {"input_ids": batch.tokens, "attention_mask": batch.present.long(), **token_inputs}
        return {name: self.padding.to_model(value, batch.present) for name, value in inputs.items()}

    @torch.no_grad()
    def attentions(self, batch: Batch) -> Float[Tensor, "row layer head query key"]:
        """Return the attention weights of every block, computed by the eager kernel."""
        with frozen(self.model), remove_added_hooks(self.model), eager_attention(self.model):
            attentions = getattr(self.model(**self._inputs(batch), output_attentions=True), "attentions", None)
        if not attentions or any(weights is None for weights in attentions):
            raise TaskError(
                f"{type(self.model).__name__} gave no attention weights; load it with "
                'from_pretrained(..., attn_implementation="eager"): the faster kernels never hold them'
            )
        return self.padding.from_model(torch.stack(attentions, dim=1), batch.present)

    def roar_maskable(self, batch: Batch) -> Bool[Tensor, "row token"]:
        """Return the maskable tokens of the first text: those before the first gap between maskable tokens."""
        starts = batch.maskable & ~batch.maskable.roll(1, dims=1)
        return batch.maskable & (starts.cumsum(dim=1) == 1)

    @torch.no_grad()
    def logits(self, batch: Batch, rows_at_once: int = 128) -> Float[Tensor, "row output"]:
        """Return the logits of all rows, computed on rows of similar length."""
        return map_by_length(lambda rows: distribution_logits(self.predict(rows)), batch, rows_at_once)

    def score(self, batch: Batch) -> float:
        """Score the labelled rows: accuracy, the fraction of correct labels, or R squared."""
        return self.head.score(self.head.distribution(self.logits(batch)), batch.target)

    def per_example_score(self, batch: Batch) -> Float[Tensor, " row"] | None:
        """Return 1 for each correct row; None for a regression, whose score is not a mean over rows."""
        return self.head.per_example_score(self.head.distribution(self.logits(batch)), batch.target)

    def ground_truth(self, batch: Batch) -> Float[Tensor, "row token"]:
        """Return the human rationales of a data set that has them."""
        if EVIDENCE not in batch.token_inputs:
            raise TaskError("these texts have no known truth; use a data set with rationales, such as ERASER's")
        return batch.token_inputs[EVIDENCE]

    def explain(self, explainer: Any, inputs: Any, *, verify: bool = True) -> Explanation | list[Explanation]:
        """Return the explanation of a text or a pair `(first, second)`; of a list of them, a list.

        By default the words that are enough are searched for and verified on the model; `verify=False` takes one
        forward pass and predicts them.
        """
        if isinstance(inputs, str | tuple):
            return explain_examples(self, explainer, [_unlabelled(inputs)], verify=verify)[0]
        return explain_examples(self, explainer, [_unlabelled(text) for text in inputs], verify=verify)

    @property
    def training_choices(self) -> Mapping[str, Any]:
        """Encoder and hyperparameters of the fine-tuning."""
        return self.source.to_dict()

    def retrain(self, data: Mapping[str, Batch], seed: int) -> "TextClassification":
        """Fine-tune the encoder with a new head on other rows; without an encoder, the classifier's own body."""
        require_labels(self, data)
        model = self.source.untrained_copy(self.model, self.tokenizer, self.head.names, seed)
        task = TextClassification(model, self.tokenizer, encoding=self.text_encoder.config, source=self.source)
        task.data = data
        self.source.tuning.fine_tune(task, seed)
        return task

    def save_pretrained(self, folder: str | Path) -> None:
        """Save the classifier and its tokenizer in the format of `transformers`."""
        with quiet_transformers():
            self.model.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)

    def subset(self, split: str, rows: Int[Tensor, " row"]) -> "TextClassification":
        """Return the task with only the given rows of a split, and their texts."""
        task = cast(TextClassification, super().subset(split, rows))
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

    def outcomes(self, target: Shaped[Tensor, "row *event"]) -> list[str | None]:
        """Return the names of the outcomes in the model's configuration."""
        return self.head.outcomes(target)

    def describe(self, batch: Batch) -> list[list[str]]:
        """Return the word pieces of each row."""
        return [
            self.tokenizer.convert_ids_to_tokens(row[real].tolist())
            for row, real in zip(batch.tokens, batch.present, strict=True)
        ]


def _unlabelled(text: str | tuple[str, str]) -> Example:
    return Example(text) if isinstance(text, str) else Example(*text)
