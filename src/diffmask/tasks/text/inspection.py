"""Finding a model's sites by watching it run: the token embedding, the input of every block, the output of the last.

On which side a model wants its padding, found by trying; batches themselves are always padded on the right.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import cast

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor, nn

from diffmask.core.hooks import Edit, ModuleCall, Site, edit_sites, frozen, record_calls
from diffmask.errors import InputError, SiteError

ROWS, TOKENS = 2, 7
"""Shape of the probing pass: two different numbers, so that the axes can be told apart."""

ForwardPass = Callable[[Int[Tensor, "row token"]], Tensor]


def find_sites(model: nn.Module, embedding: nn.Module, run: ForwardPass, depth: int | None = None) -> dict[str, Site]:
    """Sites `embedding`, `block1` .. `blockN` (the input of each block) and `output` (of the last).

    Blocks are the members of the module list whose members are called most often on states with a row and a token
    axis; of two such lists, one inside the other, the outer. A block that is called N times counts N times. `depth` is
    the number of blocks that the model's configuration states; another number found is an error, and so are blocks
    that the tokens can go around.
    """
    path = _path_of(model, embedding)
    lists = _block_lists(model)
    members = {member for found in lists.values() for member in found}
    with frozen(model), torch.no_grad():
        with record_calls(model, {path, *members}) as calls:
            probe(run, embedding)
        first = _embedding_site([call for call in calls if call.module == path], path)
        blocks = _longest_chain(calls, lists, depth)
        if not blocks:
            raise SiteError(
                f"no blocks found in {type(model).__name__}: it has no nn.ModuleList of modules of one class called on "
                "states [row, token, width]; name its sites yourself (docs/howto/own_task.md)"
            )
        sites = _block_sites(blocks)
        if depth not in (None, len(sites) - 1):
            raise SiteError(f"{len(sites) - 1} blocks found where the model's configuration states {depth}")
        for name in ("block1", "output"):
            _require_no_way_around(model, sites[name], lambda turn: probe(run, embedding, turn))
    return {"embedding": first, **sites}


def probe(run: ForwardPass, embedding: nn.Module, turn: int = 0) -> Tensor:
    """One small pass; other tokens at every turn."""
    weight = cast(Tensor, embedding.weight)
    tokens = (torch.arange(ROWS * TOKENS, device=weight.device) + 5 * turn) % len(weight)
    try:
        return run(tokens.view(ROWS, TOKENS))
    except SiteError:
        raise
    except Exception as error:
        raise SiteError(f"a probing pass over {ROWS} rows of {TOKENS} tokens fails in the model: {error}") from error


def _require_no_way_around(model: nn.Module, site: Site, probe: Callable[[int], Tensor]) -> None:
    """With its state set to a constant, a site must let nothing of the tokens through."""
    answers = []
    for turn in (0, 1):
        with edit_sites(model, {site: lambda state: torch.linspace(-1, 1, state.shape[-1]).to(state).expand_as(state)}):
            answers.append(probe(turn))
    if not torch.allclose(answers[0], answers[1], rtol=1e-3, atol=1e-4):
        raise SiteError(
            f"the {site.side} of '{site.module}' is not all that the model knows of the tokens there: something goes "
            "around it, and a mask would be no mask; name the sites yourself (docs/howto/own_task.md)"
        )


def _path_of(model: nn.Module, wanted: nn.Module) -> str:
    paths = [path for path, module in model.named_modules() if module is wanted]
    if not paths:
        raise SiteError(f"the input embedding of {type(model).__name__} is not one of its modules")
    return paths[0]


def _block_lists(model: nn.Module) -> dict[str, list[str]]:
    """Paths of the members of every module list whose members share a class, outer lists first."""
    found = {}
    for path, module in model.named_modules():
        if isinstance(module, nn.ModuleList) and len({type(member) for member in module}) == 1:
            found[path] = [f"{path}.{index}" for index in range(len(module))]
    return found


def _longest_chain(calls: list[ModuleCall], lists: Mapping[str, list[str]], depth: int | None) -> list[ModuleCall]:
    """The calls of the list that has as many as stated; else of the one that has most, the outer of two that tie."""
    chains = [
        [call for call in calls if call.module in members and _is_state(call.input) and _is_state(call.output)]
        for members in lists.values()
    ]
    return max(chains, key=lambda chain: (len(chain) == depth, len(chain)), default=[])


def _is_state(state: Tensor | None) -> bool:
    """[row, token, width] or [token, row, width]; models that pad inside have more tokens than they were given."""
    return state is not None and state.ndim == 3 and (_row_first(state) or _token_first(state))


def _row_first(state: Tensor) -> bool:
    return state.shape[0] == ROWS and state.shape[1] >= TOKENS


def _token_first(state: Tensor) -> bool:
    return state.shape[1] == ROWS and state.shape[0] >= TOKENS


def _embedding_site(calls: list[ModuleCall], path: str) -> Site:
    states = [call.output for call in calls if call.output is not None and _is_state(call.output)]
    if len(calls) != 1 or len(states) != 1:
        raise SiteError(
            f"the token embedding '{path}' is called {len(calls)} times in one pass, {len(states)} times on whole "
            "rows; one call on whole rows is needed (an encoder and a decoder that share it make two)"
        )
    return Site(path, "output", token_first=not _row_first(states[0]))


def _block_sites(blocks: list[ModuleCall]) -> dict[str, Site]:
    """One site a call, numbered where a module is called more than once."""
    often, seen = Counter(call.module for call in blocks), Counter[str]()
    sites = {}
    for number, call in enumerate(blocks, start=1):
        assert call.input is not None
        index = seen[call.module] if often[call.module] > 1 else None
        seen[call.module] += 1
        sites[f"block{number}"] = Site(call.module, "input", index, not _row_first(call.input))
    last = sites[f"block{len(blocks)}"]
    sites["output"] = Site(last.module, "output", last.call, last.token_first)
    return sites


Logits = Callable[[Int[Tensor, "row token"], Bool[Tensor, "row token"]], Float[Tensor, "row output"]]


@dataclass(frozen=True)
class Padding:
    """Carries rows from a batch's own order of tokens to the model's, and states back."""

    left: bool = False

    def to_model(
        self, value: Shaped[Tensor, "row token *rest"], present: Bool[Tensor, "row token"]
    ) -> Shaped[Tensor, "row token *rest"]:
        """Rows as the model wants them."""
        return _take(value, self._places(present)) if self.left else value

    def from_model(
        self, weights: Float[Tensor, "row layer head query key"], present: Bool[Tensor, "row token"]
    ) -> Float[Tensor, "row layer head query key"]:
        """Attention between the model's places as attention between the batch's."""
        if not self.left:
            return weights
        back = self._places(present).argsort(dim=1)
        row = torch.arange(len(weights), device=weights.device)[:, None, None]
        return weights.permute(0, 3, 4, 1, 2)[row, back[:, :, None], back[:, None, :]].permute(0, 3, 4, 1, 2)

    def around(self, edit: Edit, present: Bool[Tensor, "row token"]) -> Edit:
        """The edit for states in the model's order; tokens that the model added at the end are left alone."""
        tokens = present.shape[1]

        def changed(state: Tensor) -> Tensor:
            if self.left:
                there = self._places(present)
                return _take(edit(_take(state, there.argsort(dim=1))), there)
            if state.shape[1] == tokens:
                return edit(state)
            return torch.cat([edit(state[:, :tokens]), state[:, tokens:]], dim=1)

        return changed

    def _places(self, present: Bool[Tensor, "row token"]) -> Int[Tensor, "row token"]:
        """For each of the model's places, the batch's: padding in front, then the row."""
        return present.int().sort(dim=1, stable=True).indices


def _take(value: Tensor, places: Int[Tensor, "row token"]) -> Tensor:
    index = places.view(*places.shape, *[1] * (value.ndim - 2)).expand(-1, -1, *value.shape[2:])
    return value.gather(1, index)


@torch.no_grad()
def find_padding(logits: Logits, pad: int, vocabulary: int, device: torch.device) -> Padding:
    """The side on which padding changes nothing: a short row beside a longer one answers as it does alone."""
    # With a padding token that the model does not know as such, some decoders answer for it.
    known = [token for token in range(vocabulary) if token != pad][-7:]
    long = torch.tensor([known, [*known[:4], pad, pad, pad]], device=device)
    present = torch.arange(7, device=device)[None] < torch.tensor([[7], [4]], device=device)
    alone = logits(long[1:, :4], present[1:, :4])
    for padding in (Padding(), Padding(left=True)):
        beside = logits(padding.to_model(long, present), padding.to_model(present, present))[1:]
        if torch.allclose(beside, alone, rtol=1e-2, atol=1e-3 + 1e-2 * float(alone.abs().max())):
            return padding
    raise InputError(
        f"padding changes the model's answer, on the right and on the left; is {pad} its padding token? "
        "model.config.pad_token_id and tokenizer.pad_token_id must be the same (a model that mixes tokens without an "
        "attention mask, such as FNet, cannot be explained in batches)"
    )
