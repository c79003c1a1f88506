"""Greedy decoding from token ids at given positions, several prompts at once, padded on the left."""

from collections.abc import Sequence, Set
from typing import Any

import torch

from diffmask.core.hooks import frozen

Ids = tuple[int, ...]


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
