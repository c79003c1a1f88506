"""Inspection of a model by running it: its sites, the side on which it expects padding, and blocks it can skip.

Sites are the token embedding, the input of every block and the output of the last block. Batches are always padded on
the right; `Padding` converts them for a model that expects padding on the left. `PartialForward` skips the blocks below
an edited site whose unmodified state is known.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, cast

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor, nn

from diffmask.core.hooks import Edit, ModuleCall, Site, edit_sites, frozen, record_calls, skip_modules
from diffmask.errors import InputError, SiteError

ROWS, TOKENS = 2, 7
"""Shape of the probing pass: two different numbers identify the axes."""

ForwardPass = Callable[[Int[Tensor, "row token"]], Tensor]
"""Function from token ids to logits."""


def token_embedding(model: Any) -> Any:
    """Return the module that maps token ids to vectors."""
    try:
        return model.get_input_embeddings()
    except (AttributeError, NotImplementedError) as error:
        raise SiteError(f"{type(model).__name__} has no token embedding: {error}") from error


def find_sites(model: nn.Module, embedding: nn.Module, run: ForwardPass, depth: int | None = None) -> dict[str, Site]:
    """Find the sites `embedding`, `block1` .. `blockN` (the input of each block) and `output` (of the last block).

    Blocks are the members of the module list whose members are called most often on states with a row and a token
    axis; of two nested lists, the outer. A block that is called N times counts N times.

    Raises:
        SiteError: The number of blocks is not `depth`, the number in the model's configuration; or information about
            the tokens bypasses the blocks.
    """
    path = _path_of(model, embedding)
    lists = _block_lists(model)
    members = {member for paths in lists.values() for member in paths}
    with frozen(model), torch.no_grad():
        with record_calls(model, {path, *members}) as calls:
            run_probe(run, embedding)
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
            _require_no_bypass(model, sites[name], lambda variant: run_probe(run, embedding, variant))
    return {"embedding": first, **sites}


def run_probe(run: ForwardPass, embedding: nn.Module, variant: int = 0) -> Tensor:
    """Run a small forward pass; every variant has other tokens."""
    weight = cast(Tensor, embedding.weight)
    tokens = (torch.arange(ROWS * TOKENS, device=weight.device) + 5 * variant) % len(weight)
    try:
        return run(tokens.view(ROWS, TOKENS))
    except SiteError:
        raise
    except Exception as error:
        raise SiteError(f"a probing pass over {ROWS} rows of {TOKENS} tokens fails in the model: {error}") from error


def _require_no_bypass(model: nn.Module, site: Site, probe: Callable[[int], Tensor]) -> None:
    """Check that the logits do not depend on the tokens when the site's state is a constant."""
    logits = []
    for variant in (0, 1):
        with edit_sites(model, {site: lambda state: torch.linspace(-1, 1, state.shape[-1]).to(state).expand_as(state)}):
            logits.append(probe(variant))
    if not torch.allclose(logits[0], logits[1], rtol=1e-3, atol=1e-4):
        raise SiteError(
            f"the {site.side} of '{site.module}' is not all that the model knows of the tokens there: information "
            "bypasses it, so that a mask would have no effect; name the sites yourself (docs/howto/own_task.md)"
        )


def _path_of(model: nn.Module, embedding: nn.Module) -> str:
    paths = [path for path, module in model.named_modules() if module is embedding]
    if not paths:
        raise SiteError(f"the input embedding of {type(model).__name__} is not one of its modules")
    return paths[0]


def _block_lists(model: nn.Module) -> dict[str, list[str]]:
    """Return the paths of the members of every module list whose members share a class, outer lists first."""
    lists = {}
    for path, module in model.named_modules():
        if isinstance(module, nn.ModuleList) and len({type(member) for member in module}) == 1:
            lists[path] = [f"{path}.{index}" for index in range(len(module))]
    return lists


def _longest_chain(calls: list[ModuleCall], lists: Mapping[str, list[str]], depth: int | None) -> list[ModuleCall]:
    """Return the calls of the list with `depth` calls, or else with the most calls; of equal lists, the outer."""
    chains = [
        [call for call in calls if call.module in members and _is_state(call.input) and _is_state(call.output)]
        for members in lists.values()
    ]
    return max(chains, key=lambda chain: (len(chain) == depth, len(chain)), default=[])


def _is_state(state: Tensor | None) -> bool:
    """Return whether the shape is [row, token, width] or [token, row, width]; some models pad their own input."""
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
    """Return one site per call; the calls of a module that is called several times are numbered."""
    total, seen = Counter(call.module for call in blocks), Counter[str]()
    sites = {}
    for number, call in enumerate(blocks, start=1):
        assert call.input is not None
        index = seen[call.module] if total[call.module] > 1 else None
        seen[call.module] += 1
        sites[f"block{number}"] = Site(call.module, "input", index, not _row_first(call.input))
    last = sites[f"block{len(blocks)}"]
    sites["output"] = Site(last.module, "output", last.call, last.token_first)
    return sites


Logits = Callable[[Int[Tensor, "row token"], Bool[Tensor, "row token"]], Float[Tensor, "row output"]]


@dataclass(frozen=True)
class Padding:
    """Conversion of rows from right padding, the order of a batch, to the model's order, and of states back."""

    left: bool = False
    """Whether the model expects padding on the left."""

    def to_model(
        self, value: Shaped[Tensor, "row token *rest"], present: Bool[Tensor, "row token"]
    ) -> Shaped[Tensor, "row token *rest"]:
        """Return rows in the model's order."""
        return _take(value, self._permutation(present)) if self.left else value

    def from_model(
        self, weights: Float[Tensor, "row layer head query key"], present: Bool[Tensor, "row token"]
    ) -> Float[Tensor, "row layer head query key"]:
        """Return attention weights in the batch's order of tokens."""
        if not self.left:
            return weights
        inverse = self._permutation(present).argsort(dim=1)
        row = torch.arange(len(weights), device=weights.device)[:, None, None]
        return weights.permute(0, 3, 4, 1, 2)[row, inverse[:, :, None], inverse[:, None, :]].permute(0, 3, 4, 1, 2)

    def tokens_from_model(
        self, values: Float[Tensor, "row token *rest"], present: Bool[Tensor, "row token"]
    ) -> Float[Tensor, "row token *rest"]:
        """Return outputs of each token in the batch's order, without those of tokens that the model appended."""
        values = values[:, : present.shape[1]]
        return _take(values, self._permutation(present).argsort(dim=1)) if self.left else values

    def adapt_edit(self, edit: Edit, present: Bool[Tensor, "row token"]) -> Edit:
        """Return the edit for states in the model's order; tokens that the model itself appended stay unchanged."""
        tokens = present.shape[1]

        def adapted(state: Tensor) -> Tensor:
            if self.left:
                order = self._permutation(present)
                return _take(edit(_take(state, order.argsort(dim=1))), order)
            if state.shape[1] == tokens:
                return edit(state)
            return torch.cat([edit(state[:, :tokens]), state[:, tokens:]], dim=1)

        return adapted

    def _permutation(self, present: Bool[Tensor, "row token"]) -> Int[Tensor, "row token"]:
        """Return the batch's column of each of the model's columns: padding first, then the row."""
        return present.int().sort(dim=1, stable=True).indices


def _take(value: Tensor, columns: Int[Tensor, "row token"]) -> Tensor:
    index = columns.view(*columns.shape, *[1] * (value.ndim - 2)).expand(-1, -1, *value.shape[2:])
    return value.gather(1, index)


@torch.no_grad()
def find_padding(logits: Logits, pad: int, vocabulary: int, device: torch.device) -> Padding:
    """Find the side on which padding does not change the logits of a short row in a batch with a longer one."""
    # The pad token itself must not occur in a row: some decoders read their answer at the token before it.
    tokens = [token for token in range(vocabulary) if token != pad][-7:]
    rows = torch.tensor([tokens, [*tokens[:4], pad, pad, pad]], device=device)
    present = torch.arange(7, device=device)[None] < torch.tensor([[7], [4]], device=device)
    alone = logits(rows[1:, :4], present[1:, :4])
    for padding in (Padding(), Padding(left=True)):
        padded = logits(padding.to_model(rows, present), padding.to_model(present, present))[1:]
        if torch.allclose(padded, alone, rtol=1e-2, atol=1e-3 + 1e-2 * float(alone.abs().max())):
            return padding
    raise InputError(
        f"padding changes the model's answer, on the right and on the left; is {pad} its padding token? "
        "model.config.pad_token_id and tokenizer.pad_token_id must be the same (a model that mixes tokens without an "
        "attention mask, such as FNet, cannot be explained in batches)"
    )


@dataclass(frozen=True)
class PartialForward:
    """Modules that a forward pass may skip on the way to each site."""

    below: Mapping[str, tuple[str, ...]]
    """Blocks below each site; a site that is missing here needs a full forward pass."""
    members: int
    """Length of the tuple that a block returns, with the state first; 0 if it returns the state itself."""

    def to(self, model: nn.Module, site: str) -> AbstractContextManager[None]:
        """Skip all blocks below the site within this context; the caller must set the site's state."""
        if site not in self.below:
            return nullcontext()
        return skip_modules(model, self.below[site], members=self.members)


FULL_FORWARD = PartialForward({}, members=0)


def find_partial_forward(
    model: nn.Module, sites: Mapping[str, Site], embedding: nn.Module, run: ForwardPass
) -> PartialForward:
    """Find the blocks to skip by trying every form of block output until the logits do not change."""
    blocks = [site for name, site in sites.items() if name.startswith("block")]
    if any(site.call is not None for site in blocks):
        return FULL_FORWARD  # One module is called several times: skipping it would also skip the calls above the site.
    modules = tuple(site.module for site in blocks)
    names = [name for name in sites if name not in ("embedding", "block1")]
    below = {name: modules[: index + 1] for index, name in enumerate(names)}
    with frozen(model), torch.no_grad():
        for members in (0, 1, 2):
            partial = PartialForward(below, members)
            if all(_same_logits(partial, model, name, sites[name], embedding, run) for name in names):
                return partial
    return FULL_FORWARD


def _same_logits(
    partial: PartialForward, model: nn.Module, name: str, site: Site, embedding: nn.Module, run: ForwardPass
) -> bool:
    """Return whether a partial forward pass to the site gives the logits of a full one."""
    states: list[Tensor] = []

    def capture(state: Tensor) -> Tensor:
        states.append(state)
        return state

    with edit_sites(model, {site: capture}):
        logits = run_probe(run, embedding)
    try:
        with partial.to(model, name), edit_sites(model, {site: lambda _: states[0]}):
            return torch.allclose(run_probe(run, embedding), logits, rtol=1e-4, atol=1e-5)
    except SiteError:
        return False
