"""Task of an encoder-decoder language model, such as T5: the parts are in the encoder, the response in the decoder."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.distributions import Distribution

from diffmask.core.answers import TokenCategoricals
from diffmask.core.batch import Batch
from diffmask.core.capabilities import CachedRow
from diffmask.core.hooks import Edit, Site, edit_argument, frozen, remove_added_hooks
from diffmask.core.task import Task
from diffmask.errors import InputError, TaskError
from diffmask.tasks.generation.decoding import Ids, decode_encoded
from diffmask.tasks.generation.prompt_encoding import SCORED
from diffmask.tasks.generation.text_generation import TextGeneration
from diffmask.tasks.text.inspection import find_sites, token_embedding
from diffmask.tasks.text.pretrained import eager_attention


class SequenceToSequence(TextGeneration):
    """Encoder-decoder with its tokenizer and its prompts.

    The sites are those of the encoder. Relative positions count tokens, so a hidden part stays in its place and is
    hidden by the attention mask. The arguments are those of `TextGeneration`.
    """

    responds_in_prompt = False

    def _inspect(self, model: Any) -> dict[str, Site]:
        """Return the sites of the encoder; an embedding that the decoder shares is called there first."""
        if not model.config.is_encoder_decoder:
            raise InputError(f"{type(model).__name__} has no encoder; use TextGeneration")
        if model.config.decoder_start_token_id is None:
            raise InputError(f"{type(model).__name__} states no decoder_start_token_id in its configuration")
        encoder = model.get_encoder()
        embedding = token_embedding(encoder)
        self.head = None
        path = next(name for name, module in model.named_modules() if module is encoder)
        shared = next(name for name, module in model.named_modules() if module is embedding)
        # The encoder runs first.
        call = 0 if token_embedding(model.get_decoder()) is embedding else None

        def states(ids: Tensor) -> Tensor:
            return encoder(input_ids=ids).last_hidden_state

        encoder_sites = find_sites(encoder, embedding, states, None)
        blocks = {
            name: Site(f"{path}.{site.module}", site.side, site.call, site.token_first)
            for name, site in encoder_sites.items()
            if name != "embedding"
        }
        return {"embedding": Site(shared, "output", call), **blocks}

    @property
    def depth(self) -> int:
        """Number of decoder blocks from which on a part can be hidden."""
        return len(self.model.get_decoder().block)

    @property
    def takes_positions(self) -> bool:
        """Whether a hidden token can be left out: never, distances between tokens would change."""
        return False

    def _decode(self, prompts: Sequence[Ids], positions: Sequence[Ids], visible: Sequence[Ids]) -> list[Ids]:
        return decode_encoded(
            self.model,
            prompts,
            visible,
            ends=self.ends,
            pad_token=self.pad_token,
            max_new_tokens=self.encoding.max_new_tokens,
        )

    def predict(self, batch: Batch, edits: Mapping[str, Edit] | None = None) -> Distribution:
        """Run the model with some sites of the encoder edited."""
        return Task.predict(self, batch, edits)

    def _inputs(self, batch: Batch, start: int = 0) -> dict[str, Any]:
        first = torch.full_like(batch.target[:, :1], self.model.config.decoder_start_token_id)
        return {
            "input_ids": batch.tokens,
            "attention_mask": batch.present.long(),
            "decoder_input_ids": torch.cat([first, batch.target[:, :-1]], dim=1),
            "use_cache": False,
        }

    def _answer(self, batch: Batch, inputs: Mapping[str, Any], start: int) -> TokenCategoricals:
        return TokenCategoricals(self.model(**inputs).logits.float(), batch.inputs[SCORED])

    @torch.no_grad()
    def predict_hidden_from(self, batch: Batch, hidden: Bool[Tensor, "row token"], layer: int) -> Distribution:
        """Run the model with some encoder states hidden from block `layer` of the decoder on, counted from 0."""
        decoder = self.model.get_decoder()
        path = next(name for name, module in self.model.named_modules() if module is decoder)
        blocks = [f"{path}.block.{index}" for index in range(len(decoder.block))][layer:]

        def hide(mask: Tensor | None) -> Tensor:
            keys = hidden[:, None, None, :]
            if mask is None or mask.dtype == torch.bool:
                return ~keys if mask is None else mask & ~keys
            return mask.masked_fill(keys, torch.finfo(mask.dtype).min)

        with frozen(self.model), edit_argument(self.model, blocks, "encoder_attention_mask", hide):
            return self.forward(batch)

    @torch.no_grad()
    def cache_row(self, row: Batch) -> CachedRow:
        """Compute the encoder's states of one prompt; the decoder is the end."""
        with frozen(self.model):
            encoder = self.model.get_encoder()
            states = encoder(input_ids=row.tokens, attention_mask=row.present.long()).last_hidden_state
        return EncoderStates(self, row, states)

    @torch.no_grad()
    def attentions(self, batch: Batch) -> Float[Tensor, "row layer head query key"]:
        """Return the cross-attention from each response token to every token of the prompt."""
        with frozen(self.model), remove_added_hooks(self.model), eager_attention(self.model):
            output = self.model(**self._inputs(batch), output_attentions=True)
        weights = getattr(output, "cross_attentions", None)
        if not weights or any(layer is None for layer in weights):
            raise TaskError(f"{type(self.model).__name__} gave no cross-attention with the eager kernel")
        return torch.stack(weights, dim=1) * batch.inputs[SCORED][:, None, None, :, None]


@dataclass(frozen=True)
class EncoderStates:
    """The encoder's states of one prompt."""

    task: SequenceToSequence
    row: Batch
    states: Float[Tensor, "1 token width"]

    @torch.no_grad()
    def predict_hidden(self, hidden: Bool[Tensor, "copy token"]) -> Distribution:
        """Return the answers to copies of the prompt, some states of which are hidden from the decoder."""
        copies = self.row.repeat(len(hidden))
        decoded = {
            "encoder_outputs": (self.states.expand(len(hidden), -1, -1),),
            "attention_mask": (copies.present & ~hidden).long(),
            "decoder_input_ids": self.task._inputs(copies)["decoder_input_ids"],
            "use_cache": False,
        }
        with frozen(self.task.model):
            return self.task._answer(copies, decoded, 0)

    def attentions(self) -> Float[Tensor, "1 layer head query key"]:
        """Return the cross-attention from each response token to every token of the prompt."""
        return self.task.attentions(self.row)
