"""Partial forward passes: skip the blocks below an edited site whose unmodified state is known."""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from diffmask.core.hooks import Site, edit_sites, frozen, skip_modules
from diffmask.errors import SiteError
from diffmask.tasks.text.inspection import ForwardPass, run_probe


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
