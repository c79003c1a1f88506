"""A Hugging Face sequence classifier on texts or pairs of texts: the reader's own model, left as it was found."""

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
from diffmask.core.distributions import logits as numbers_of
from diffmask.core.hooks import Edit, frozen, remove_added_hooks
from diffmask.core.task import Task
from diffmask.datasets.tables import Example, Source, read_examples
from diffmask.errors import InputWarning, TaskError
from diffmask.explanation.explanation import Explanation, Prediction
from diffmask.explanation.text_units import ReadRow
from diffmask.tasks.text.encoding import EVIDENCE, EncodedBatch, TextEncoder, TextEncodingConfig, add_evidence
from diffmask.tasks.text.explain import explain_examples, row_words
from diffmask.tasks.text.finetuning import FineTuning
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
    """A classifier, its tokenizer and its texts; the sites are found by watching the model run.

    While the model runs here it is in eval mode and asks for no gradients; after each pass every module's mode and
    every parameter's `requires_grad` are as they were. Its weights are never changed.

    ROAR trains models like it: `encoder` names what it was fine-tuned from, and `tuning` how; a classifier made by
    `diffmask train` knows both.
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
        encoder: str | Path | None = None,
        tuning: FineTuning | None = None,
    ) -> None:
        found, self.tokenizer = load_classifier(model, tokenizer)
        noted = FineTuningSource.of(found.config)
        self.source = FineTuningSource(str(encoder) if encoder else noted.encoder, tuning or noted.tuning)
        self.text_encoder = TextEncoder(self.tokenizer, encoding, max_input_tokens(found, self.tokenizer))
        self.head = head_of(found.config)
        self.mask_token = self.tokenizer.mask_token_id
        # The model's own config says how `diffmask train` fine-tuned it; options for retraining do not count.
        self.trained_with_masks = noted.tuning.masked > 0
        self.pad_token = self.tokenizer.pad_token_id
        embedding = token_embedding(found)
        self.device = embedding.weight.device
        with frozen(found):
            depth = getattr(found.config, "num_hidden_layers", None)
            places = find_sites(found, embedding, lambda ids: _bare_logits(found, ids, torch.ones_like(ids)), depth)
            self.partial_forward = find_partial_forward(
                found, places, embedding, lambda ids: _bare_logits(found, ids, torch.ones_like(ids))
            )
            self.padding = find_padding(
                lambda ids, present: _bare_logits(found, ids, present.long()),
                self.pad_token,
                len(embedding.weight),
                self.device,
            )
            super().__init__(found, places, {})
        # Padding on the left is found by sorting tokens: a hole in a row would move to its front.
        self.attention_masked = not self.padding.left
        self.texts: dict[str, list[Example]] = {}
        """The text that each row of a split was read from."""
        for split, source in (("train", train), ("valid", valid), ("test", test)):
            if source is not None:
                listed = list(read_examples(source, encoding))
                encoded = self.read(listed)
                self.data[split] = encoded.batch
                self.texts[split] = [listed[number] for number in encoded.sources]

    def load(self, source: Source) -> Batch:
        """A data set as a batch."""
        return self.read(read_examples(source, self.text_encoder.config)).batch

    def encode(self, texts: Iterable[str | tuple[str, str]]) -> Batch:
        """Texts, or pairs of texts, as a batch without labels."""
        return self.read(_unlabelled(text) for text in texts).batch

    def read(self, rows: Iterable[Example]) -> EncodedBatch:
        """Examples as a batch, with what leads back to the texts."""
        listed = list(rows)
        sources, encodings = self.text_encoder.encode(listed)
        target = self.head.targets([listed[number].label for number in sources])
        batch = self.text_encoder.batch(encodings, target, self.device)
        return EncodedBatch(add_evidence(batch, listed, sources, encodings), sources, encodings)

    def predict(self, batch: Batch, edits: Mapping[str, Edit] | None = None) -> Distribution:
        """The answer with some sites edited; edits see rows padded on the right, wherever the model pads."""
        around = {name: self.padding.around(edit, batch.present) for name, edit in (edits or {}).items()}
        return super().predict(batch, around)

    def resume(
        self, batch: Batch, states: Mapping[str, Float[Tensor, "row token width"]], edits: Mapping[str, Edit]
    ) -> Distribution:
        """The answer with some sites edited, given the clean states: blocks below the first of them are skipped."""
        first = min(edits, key=self.sites.index)
        edit = edits[first]
        with self.partial_forward.to(self.model, first):
            return self.predict(batch, {**edits, first: lambda _: edit(states[first])})

    def forward(self, batch: Batch) -> Distribution:
        """One pass of the classifier, frozen."""
        with frozen(self.model):
            return self.forward_train(batch)

    def forward_train(self, batch: Batch) -> Distribution:
        """One pass of the classifier in whatever mode it is."""
        return self.head.answer(self.model(**self._inputs(batch)).logits.float())

    def _inputs(self, batch: Batch) -> dict[str, Tensor]:
        known = {name: value for name, value in batch.token_inputs.items() if name != EVIDENCE}
        named = {"input_ids": batch.tokens, "attention_mask": batch.present.long(), **known}
        return {name: self.padding.to_model(value, batch.present) for name, value in named.items()}

    @torch.no_grad()
    def attentions(self, batch: Batch) -> Float[Tensor, "row layer head query key"]:
        """The weights of every block, by the kernel that keeps them."""
        with frozen(self.model), remove_added_hooks(self.model), eager_attention(self.model):
            found = getattr(self.model(**self._inputs(batch), output_attentions=True), "attentions", None)
        if not found or any(weights is None for weights in found):
            raise TaskError(
                f"{type(self.model).__name__} gave no attention weights; load it with "
                'from_pretrained(..., attn_implementation="eager"): the faster kernels never hold them'
            )
        return self.padding.from_model(torch.stack(found, dim=1), batch.present)

    def roar_maskable(self, batch: Batch) -> Bool[Tensor, "row token"]:
        """The first text of a pair: words up to the first gap between them."""
        starts = batch.maskable & ~batch.maskable.roll(1, dims=1)
        return batch.maskable & (starts.cumsum(dim=1) == 1)

    @torch.no_grad()
    def logits(self, batch: Batch, rows_at_once: int = 128) -> Float[Tensor, "row output"]:
        """The classifier's own numbers, computed in order of length."""
        return map_by_length(lambda part: numbers_of(self.predict(part)), batch, rows_at_once)

    def score(self, batch: Batch) -> float:
        """Accuracy; for labels the share of right decisions, for numbers R squared."""
        return self.head.score(self.head.answer(self.logits(batch)), batch.target)

    def per_example_score(self, batch: Batch) -> Float[Tensor, " row"] | None:
        """Whether each decision is right; numbers have no such parts."""
        return self.head.per_example_score(self.head.answer(self.logits(batch)), batch.target)

    def ground_truth(self, batch: Batch) -> Float[Tensor, "row token"]:
        """What people marked, in data that has such marks."""
        if EVIDENCE not in batch.token_inputs:
            raise TaskError("these texts have no known truth; use a data set with rationales, such as ERASER's")
        return batch.token_inputs[EVIDENCE]

    def predictions(self, answer: Distribution) -> list[Prediction]:
        """Each row's answer for people."""
        return self.head.predictions(answer)

    def explain(self, explainer: Any, inputs: Any, *, verify: bool = True) -> Explanation | list[Explanation]:
        """Explain a text or a pair `(first, second)`; a list of them gives a list.

        By default the words that are enough are searched for and verified on the model; `verify=False` takes one
        forward pass and predicts them.
        """
        if isinstance(inputs, str | tuple):
            return explain_examples(self, explainer, [_unlabelled(inputs)], verify=verify)[0]
        return explain_examples(self, explainer, [_unlabelled(text) for text in inputs], verify=verify)

    @property
    def training_choices(self) -> Mapping[str, Any]:
        """The encoder, and how it is fine-tuned."""
        return self.source.to_dict()

    def retrain(self, data: Mapping[str, Batch], seed: int) -> "TextClassification":
        """A new head on the encoder, or on its own body where none is known, fine-tuned on other rows."""
        require_labels(self, data)
        model = self.source.untrained(self.model, self.tokenizer, self.head.names, seed)
        task = TextClassification(model, self.tokenizer, encoding=self.text_encoder.config)
        task.source, task.data = self.source, data
        self.source.tuning.fine_tune(task, seed)
        return task

    def save_pretrained(self, folder: str | Path) -> None:
        """Write the classifier and its tokenizer as `transformers` loads them."""
        with quiet_transformers():
            self.model.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)

    def subset(self, split: str, rows: Int[Tensor, " row"]) -> "TextClassification":
        """The same task with only some rows of a split, and their texts."""
        found = cast(TextClassification, super().subset(split, rows))
        if split in self.texts:
            found.texts = {**self.texts, split: [self.texts[split][row] for row in rows.tolist()]}
        return found

    def read_row(self, split: str, row: int) -> ReadRow:
        """The words of the text; of rows that were given without their texts, the word pieces."""
        if split not in self.texts:
            return super().read_row(split, row)
        tokens = self.data[split].tokens[row][self.data[split].present[row]].tolist()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", InputWarning)
            encoded = self.read([self.texts[split][row]])
        # A long text may have become several rows: this is the one with these tokens.
        number = next((place for place, found in enumerate(encoded.encodings) if found.ids == tokens), None)
        return super().read_row(split, row) if number is None else row_words(self.texts[split][row], encoded, number)

    def outcomes(self, target: Shaped[Tensor, "row *event"]) -> list[str | None]:
        """The names that the model's configuration gives them."""
        return self.head.outcomes(target)

    def describe(self, batch: Batch) -> list[list[str]]:
        """Word pieces as the tokenizer spells them."""
        return [
            self.tokenizer.convert_ids_to_tokens(row[real].tolist())
            for row, real in zip(batch.tokens, batch.present, strict=True)
        ]


def _bare_logits(model: nn.Module, ids: Tensor, attended: Tensor) -> Tensor:
    return model(input_ids=ids, attention_mask=attended).logits


def _unlabelled(text: str | tuple[str, str]) -> Example:
    return Example(text) if isinstance(text, str) else Example(*text)
