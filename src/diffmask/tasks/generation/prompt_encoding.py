"""Prompts and responses as batches: one row is a prompt with a response, and explains the scored response tokens.

A row has the prompt's tokens and all response tokens but the last, so that one teacher-forced pass scores every
response token. Three more values per token travel with it when other tokens are erased:

* `part`: number of its part, from 1; 0 for the template, the question and the response.
* `position_ids`: its position, which erasing other tokens does not change.
* `event`: number of the response token that is predicted from it, from 1; 0 for none.

Two ways of erasing need more than a batch: new positions (`close_gaps`) and keys hidden in some blocks (`hide_keys`).
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import torch
from jaxtyping import Bool
from torch import Tensor, nn

from diffmask.core.batch import Batch
from diffmask.core.hooks import edit_argument
from diffmask.errors import ConfigError, InputError, nearest
from diffmask.explanation.response import PromptPart
from diffmask.tasks.generation.prompt import PartUnit, RenderedPrompt

PART, POSITION, EVENT, SCORED, EVIDENCE = "part", "position_ids", "event", "scored", "evidence"

Erasing = Literal["hide", "remove", "replace"]
"""Hide a part from attention and keep all positions, remove it from the text, or replace its tokens."""


@dataclass(frozen=True, kw_only=True)
class PromptEncodingConfig:
    """How prompts are split into parts, how parts are erased, and how long responses may be."""

    unit: PartUnit = "sentence"
    """Parts of documents and turns: `document`, `turn`, `sentence` or `word`."""
    erasing: Erasing = "hide"
    """How a part is erased: hidden from attention, removed from the text, or replaced token by token."""
    replacement: str = " "
    """Text whose last token replaces each erased token, if `erasing` is `replace`."""
    max_new_tokens: int = 32
    """Largest number of tokens of a generated response."""

    def __post_init__(self) -> None:
        for name, kind in (("unit", PartUnit), ("erasing", Erasing)):
            if getattr(self, name) not in get_args(kind):
                raise ConfigError(
                    f"{name} '{getattr(self, name)}': {nearest(str(getattr(self, name)), get_args(kind))}"
                )
        if self.max_new_tokens < 1:
            raise ConfigError(f"max_new_tokens is at least 1; found {self.max_new_tokens}")


@dataclass(frozen=True)
class EncodedPrompt:
    """The tokens of one rendered prompt and the part of each of them."""

    text: str
    ids: tuple[int, ...]
    part_numbers: tuple[int, ...]
    parts: tuple[PromptPart, ...]


@dataclass(frozen=True)
class ResponseRow:
    """A prompt with a response and the span of response tokens that is explained."""

    prompt: EncodedPrompt
    response: tuple[int, ...]
    span: tuple[int, int] | None = None
    """First and last scored response token, the last exclusive; None scores the whole response."""
    evidence: tuple[bool, ...] = ()
    """Whether each part is known to decide the response."""


def encode_prompt(rendered: RenderedPrompt, tokenizer: Any) -> EncodedPrompt:
    """Tokenize a prompt; a token belongs to the first part that it shares a character with."""
    if not getattr(tokenizer, "is_fast", False):
        raise InputError(f"{type(tokenizer).__name__} gives no character offsets; use a fast tokenizer")
    # A chat template writes the special tokens itself.
    templated = getattr(tokenizer, "chat_template", None) is not None
    encoding = tokenizer(rendered.text, add_special_tokens=not templated, return_offsets_mapping=True)
    numbers = [_part_of(span, rendered.parts) for span in encoding["offset_mapping"]]
    used = sorted(set(numbers) - {0})
    renumbered = {0: 0, **{number: index for index, number in enumerate(used, start=1)}}
    parts = tuple(rendered.parts[number - 1] for number in used)
    return EncodedPrompt(rendered.text, tuple(encoding["input_ids"]), tuple(renumbered[n] for n in numbers), parts)


def _part_of(span: tuple[int, int], parts: Sequence[PromptPart]) -> int:
    low, high = 0, len(parts)
    while low < high:  # The first part that ends after the token begins.
        middle = (low + high) // 2
        low, high = (low, middle) if parts[middle].span[1] > span[0] else (middle + 1, high)
    return low + 1 if low < len(parts) and parts[low].span[0] < span[1] else 0


def build_batch(
    rows: Sequence[ResponseRow], pad_token: int, device: torch.device, *, with_response: bool = True
) -> Batch:
    """Return the rows as one batch, padded on the right; without the response if a decoder of its own reads it."""
    if not rows:
        raise InputError("there are no prompts")
    width = max(len(row.prompt.ids) + (len(row.response) - 1) * with_response for row in rows)
    events = max(len(row.response) for row in rows)
    tokens = torch.full((len(rows), width), pad_token)
    present, maskable = (torch.zeros(len(rows), width, dtype=torch.bool) for _ in range(2))
    part, position, event = (torch.zeros(len(rows), width, dtype=torch.long) for _ in range(3))
    target, scored = torch.zeros(len(rows), events, dtype=torch.long), torch.zeros(len(rows), events, dtype=torch.bool)
    evidence = torch.zeros(len(rows), width)
    for index, row in enumerate(rows):
        prompt, response = len(row.prompt.ids), len(row.response)
        length = prompt + (response - 1) * with_response
        tokens[index, :length] = torch.tensor((*row.prompt.ids, *row.response[:-1])[:length])
        present[index, :length] = True
        part[index, :prompt] = torch.tensor(row.prompt.part_numbers)
        position[index] = torch.arange(width)
        if with_response:
            event[index, prompt - 1 : length] = torch.arange(1, response + 1)
        target[index, :response] = torch.tensor(row.response)
        scored[index, slice(*(row.span or (0, response)))] = True
        decisive = torch.tensor((False, *row.evidence), dtype=torch.float32)
        if row.evidence:
            evidence[index] = decisive[part[index]]
    maskable = part > 0
    extra = {EVIDENCE: evidence} if any(row.evidence for row in rows) else {}
    return Batch(
        tokens=tokens,
        present=present,
        maskable=maskable,
        target=target,
        inputs={SCORED: scored},
        token_inputs={PART: part, POSITION: position, EVENT: event, **extra},
    ).to(device)


def event_columns(batch: Batch) -> Tensor:
    """Return the column that each response token is predicted from, 0 where a row has no such token."""
    events = batch.target.shape[1]
    columns = batch.tokens.new_zeros(len(batch), events + 1)
    places = torch.arange(batch.tokens.shape[1], device=batch.tokens.device).expand(len(batch), -1)
    return columns.scatter(1, batch.token_inputs[EVENT], places)[:, 1:]


def close_gaps(batch: Batch) -> Batch:
    """Number the present tokens of each row from 0, as if the erased ones had never been in the text."""
    position = (batch.present.long().cumsum(dim=1) - 1).clamp(min=0)
    return replace(batch, token_inputs={**batch.token_inputs, POSITION: position})


def hide_keys(
    model: nn.Module, blocks: Sequence[str], hidden: Bool[Tensor, "row token"]
) -> AbstractContextManager[None]:
    """Hide the keys and values of some tokens from all queries in the named blocks."""

    return edit_argument(model, blocks, "attention_mask", lambda mask: _hide(mask, hidden))


def _hide(mask: Tensor | None, hidden: Bool[Tensor, "row token"]) -> Tensor:
    """Return the mask of a block, boolean or additive, without the hidden keys."""
    rows, tokens = hidden.shape
    keys = hidden[:, None, None, :]
    if mask is None:  # The kernel's own causal mask.
        causal = torch.ones(tokens, tokens, dtype=torch.bool, device=hidden.device).tril()
        return causal & ~keys
    if mask.dtype == torch.bool:
        return mask & ~keys
    return mask.expand(rows, -1, -1, -1).masked_fill(keys, torch.finfo(mask.dtype).min)
