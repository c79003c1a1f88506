"""Greedy decoding from token ids at given positions, several prompts at once, padded on the left."""

from collections.abc import Iterable, Sequence, Set
from typing import Any, ClassVar

import torch

from diffmask.core.batch import Batch
from diffmask.core.hooks import frozen
from diffmask.core.progress import stage
from diffmask.tasks.generation.prompt_encoding import EVENT, POSITION, PromptEncodingConfig

Ids = tuple[int, ...]
TOKENS_AT_ONCE = 4096
"""Tokens per forward pass of prompts, padding included."""


@torch.no_grad()
def decode_greedily(
    model: Any,
    prompts: Sequence[Ids],
    positions: Sequence[Ids],
    visible: Sequence[Ids],
    accepts: Set[str],
    *,
    ends: Set[int],
    pad_token: int,
    max_new_tokens: int,
) -> list[Ids]:
    """Return the most probable continuation of each prompt, with the token that ends it.

    Positions may have gaps where parts are left out, and `visible` is 0 for hidden tokens; new tokens continue after
    the last position.
    """
    device = model.get_input_embeddings().weight.device
    width = max(map(len, prompts))
    tokens = torch.tensor([[pad_token] * (width - len(ids)) + list(ids) for ids in prompts], device=device)
    mask = torch.tensor([[0] * (width - len(seen)) + list(seen) for seen in visible], device=device)
    places = torch.tensor([[0] * (width - len(ids)) + list(ids) for ids in positions], device=device)
    responses: list[list[int]] = [[] for _ in prompts]
    running, cache = set(range(len(prompts))), None
    with frozen(model):
        for _ in range(max_new_tokens):
            inputs = {"input_ids": tokens, "attention_mask": mask, "position_ids": places, "logits_to_keep": 1}
            chosen = {name: value for name, value in inputs.items() if name in accepts}
            output = model(**chosen, past_key_values=cache, use_cache=True)
            cache, last = output.past_key_values, output.logits[:, -1].argmax(dim=-1)
            for row in list(running):
                responses[row].append(int(last[row]))
                if responses[row][-1] in ends:
                    running.discard(row)
            if not running:
                break
            tokens, places = last[:, None], places[:, -1:] + 1
            mask = torch.cat([mask, mask.new_ones(len(prompts), 1)], dim=1)
    return [tuple(response) for response in responses]


@torch.no_grad()
def decode_encoded(
    model: Any,
    prompts: Sequence[Ids],
    visible: Sequence[Ids],
    *,
    ends: Set[int],
    pad_token: int,
    max_new_tokens: int,
) -> list[Ids]:
    """Return the greedy response of a sequence-to-sequence model to each prompt."""
    device = model.get_input_embeddings().weight.device
    width = max(map(len, prompts))
    tokens = torch.tensor([[*ids, *[pad_token] * (width - len(ids))] for ids in prompts], device=device)
    mask = torch.tensor([[*seen, *[0] * (width - len(seen))] for seen in visible], device=device)
    start = model.config.decoder_start_token_id
    responses = torch.full((len(prompts), 1), start, device=device)
    with frozen(model):
        encoded = model.get_encoder()(input_ids=tokens, attention_mask=mask)
        for _ in range(max_new_tokens):
            output = model(
                encoder_outputs=encoded, attention_mask=mask, decoder_input_ids=responses, use_cache=False
            ).logits[:, -1]
            responses = torch.cat([responses, output.argmax(dim=-1, keepdim=True)], dim=1)
            if all(set(row) & ends for row in responses[:, 1:].tolist()):
                break
    return [_until_end(row, ends) for row in responses[:, 1:].tolist()]


def _until_end(tokens: list[int], ends: Set[int]) -> Ids:
    last = next((index for index, token in enumerate(tokens) if token in ends), len(tokens) - 1)
    return tuple(tokens[: last + 1])


class GeneratesResponses:
    """A task that generates the greedy responses to its prompts."""

    model: Any
    tokenizer: Any
    encoding: PromptEncodingConfig
    ends: Set[int]
    """Tokens that end a response."""
    pad_token: int
    accepts: Set[str]
    """Names of the arguments of the model."""
    responds_in_prompt: ClassVar[bool] = True
    """Whether the response follows the prompt in the same row, as in a decoder."""

    def generate(
        self, prompts: Sequence[Ids], positions: Sequence[Ids] | None = None, visible: Sequence[Ids] | None = None
    ) -> list[Ids]:
        """Return the greedy response to each prompt, given as token ids; prompts of similar length share a pass.

        `visible` is 0 for tokens that are hidden from attention.
        """
        places = [tuple(range(len(ids))) for ids in prompts] if positions is None else positions
        seen = [(1,) * len(ids) for ids in prompts] if visible is None else visible
        order = sorted(range(len(prompts)), key=lambda index: len(prompts[index]))
        responses: dict[int, Ids] = {}
        while order:
            size = max(1, TOKENS_AT_ONCE // (len(prompts[order[0]]) + self.encoding.max_new_tokens))
            indices, order = order[:size], order[size:]
            chosen = [[values[index] for index in indices] for values in (prompts, places, seen)]
            with stage("generate responses"):
                responses.update(zip(indices, self._decode(*chosen), strict=True))
        return [responses[index] for index in range(len(prompts))]

    def _decode(self, prompts: Sequence[Ids], positions: Sequence[Ids], visible: Sequence[Ids]) -> list[Ids]:
        return decode_greedily(
            self.model,
            prompts,
            positions,
            visible,
            self.accepts,
            ends=self.ends,
            pad_token=self.pad_token,
            max_new_tokens=self.encoding.max_new_tokens,
        )

    def generate_again(self, batch: Batch) -> Ids:
        """Return the greedy response to the prompt of a single row, some of whose parts may be erased."""
        first = (batch.token_inputs[EVENT] == 1).int()
        stop = int(first.argmax(dim=1)) + 1 if self.responds_in_prompt else batch.tokens.shape[1]
        values = (batch.tokens, batch.token_inputs[POSITION], batch.present.long())
        return self.generate(*([tuple(value[0, :stop].tolist())] for value in values))[0]

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of response tokens, without special tokens."""
        text: str = self.tokenizer.decode(list(ids), skip_special_tokens=True)
        return text.strip()
