"""Base of every task on a Hugging Face model that reads whole texts: model, tokenizer, sites and texts by split."""

import warnings
from abc import ABC
from collections.abc import Mapping
from functools import cached_property, partial
from typing import Any, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.distributions import Distribution

from diffmask.core.batch import Batch, map_by_length
from diffmask.core.capabilities import RowText
from diffmask.core.distributions import logits as distribution_logits
from diffmask.core.hooks import Edit, Site, frozen, remove_added_hooks
from diffmask.datasets.tables import Example, Source
from diffmask.errors import InputError, InputWarning, TaskError
from diffmask.explanation.text_units import ReadRow
from diffmask.tasks.text.encoding import EVIDENCE, TextEncoder, TextEncodingConfig, token_strings
from diffmask.tasks.text.explain_texts import ExplainsTexts, row_words
from diffmask.tasks.text.inspection import (
    PartialForward,
    find_padding,
    find_partial_forward,
    find_sites,
    token_embedding,
)
from diffmask.tasks.text.pretrained import eager_attention, load_model, max_input_tokens
from diffmask.tasks.text.retraining import FineTuningSource, RetrainsEncoder
from diffmask.tasks.text.unwrap import prepare


class TextTask(ExplainsTexts, RetrainsEncoder, RowText, ABC):
    """Model with its tokenizer and its texts; the arguments are those of `TextClassification`.

    A subclass says which head it loads (`spec`), what its logits mean (`read_config`, `distribution`,
    `prediction`), what its labels are (`targets`) and how it is scored.
    """

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
            self.spec.auto_class, model, tokenizer, wanted_by=type(self).__name__, device=device
        )
        stated = FineTuningSource.of(loaded.config)
        self.source = source or stated
        # `diffmask train` states how it fine-tuned the model; a source that is given is for retraining only.
        self.trained_with_masks = stated.tuning.masked_fraction > 0
        reading = encoding or self.spec.encoding_class()
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
        """Return the sites; set the padding side."""
        embedding = token_embedding(model)

        def logits(ids: Tensor, present: Tensor) -> Tensor:
            return self.probe(model, {"input_ids": ids, "attention_mask": present.long()})

        run = partial(self._unpadded_logits, model)
        sites = find_sites(model, embedding, run, getattr(model.config, "num_hidden_layers", None))
        self.padding = find_padding(logits, self.pad_token, len(embedding.weight), self.device)
        return sites

    def _unpadded_logits(self, model: Any, ids: Int[Tensor, "row token"]) -> Tensor:
        return self.probe(model, {"input_ids": ids, "attention_mask": torch.ones_like(ids)})

    @cached_property
    def partial_forward(self) -> PartialForward:
        """Blocks that a pass may skip below an edited site, found at first use by a few small passes."""
        sites = {name: self.site(name) for name in self.sites}
        run = partial(self._unpadded_logits, self.model)
        return find_partial_forward(self.model, sites, token_embedding(self.model), run)

    def prepare_resume(self) -> None:
        """Find the blocks that `resume` may skip."""
        self.partial_forward  # noqa: B018  # found once, then kept

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
        hidden = {EVIDENCE, *self.spec.hidden_inputs}
        token_inputs = {name: value for name, value in batch.token_inputs.items() if name not in hidden}
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
        return token_strings(self.tokenizer, batch)
