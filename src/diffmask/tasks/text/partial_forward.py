"""The short way to a site whose clean state is known: blocks below it need not run."""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from diffmask.core.hooks import Site, edit_sites, frozen, skip_modules
from diffmask.errors import SiteError
from diffmask.tasks.text.inspection import ForwardPass, probe


@dataclass(frozen=True)
class PartialForward:
    """Which modules may be skipped on the way to which site."""

    below: Mapping[str, tuple[str, ...]]
    """By site, the blocks before it; a model that cannot do without them has no sites here."""
    members: int
    """A block answers with a tuple of so many, the state first and nothing after it; 0: with the state itself."""

    def to(self, model: nn.Module, site: str) -> AbstractContextManager[None]:
        """Within this block a pass computes nothing before the site, whose state must be set."""
        if site not in self.below:
            return nullcontext()
        return skip_modules(model, self.below[site], members=self.members)


FULL_FORWARD = PartialForward({}, members=0)


def find_partial_forward(
    model: nn.Module, sites: Mapping[str, Site], embedding: nn.Module, run: ForwardPass
) -> PartialForward:
    """The blocks to skip, if the answer is then what it was: found by trying it, with each form of answer."""
    blocks = [site for name, site in sites.items() if name.startswith("block")]
    if any(site.call is not None for site in blocks):
        return FULL_FORWARD  # one module called many times: skipping it would skip what comes after, too
    modules = tuple(site.module for site in blocks)
    names = [name for name in sites if name not in ("embedding", "block1")]
    below = dict(zip(names, (modules[: index + 1] for index in range(len(names))), strict=True))
    with frozen(model), torch.no_grad():
        for members in (0, 1, 2):
            found = PartialForward(below, members)
            if all(_arrives(found, model, name, sites[name], embedding, run) for name in names):
                return found
    return FULL_FORWARD


def _arrives(
    shortcut: PartialForward, model: nn.Module, name: str, site: Site, embedding: nn.Module, run: ForwardPass
) -> bool:
    """Whether the short way to a site ends in the same answer as the long one."""
    seen: list[Tensor] = []

    def keep(state: Tensor) -> Tensor:
        seen.append(state)
        return state

    with edit_sites(model, {site: keep}):
        answer = probe(run, embedding)
    try:
        with shortcut.to(model, name), edit_sites(model, {site: lambda _: seen[0]}):
            return torch.allclose(probe(run, embedding), answer, rtol=1e-4, atol=1e-5)
    except SiteError:
        return False
