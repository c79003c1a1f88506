"""What a student learns from: texts, and the model's answers when only some of their tokens are kept."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.distributions import Distribution

from diffmask.batch import Batch
from diffmask.methods.amortised_answer import numbers
from diffmask.methods.amortised_student import States
from diffmask.methods.erasure import fill
from diffmask.task import Task


@dataclass(frozen=True)
class Lesson:
    """A few texts of like length: clean states, and the answer's numbers for each masked copy."""

    states: States
    """In half precision where the model's is single: a replay is long."""
    present: Bool[Tensor, "row token"]
    maskable: Bool[Tensor, "row token"]
    kept: Bool[Tensor, "row copy token"]
    told: Float[Tensor, "row copy feature"]
    """f(kept)."""
    empty: Float[Tensor, "row feature"]
    """f(nothing kept)."""
    whole: Float[Tensor, "row feature"]
    """f(everything kept)."""
    kind: Distribution
    """The clean answer, for what kind of answer it is."""

    def read(self) -> States:
        """The states as a student reads them."""
        return {site: state.to(self.told.dtype) for site, state in self.states.items()}


@dataclass(frozen=True)
class Questioner:
    """Asks the model about masked copies; a masked token's embedding becomes the baseline."""

    task: Task
    sites: tuple[str, ...]
    baseline: Float[Tensor, " width"]
    pairs: int
    """Masks drawn a text; each is asked with its complement."""
    source: torch.Generator

    @torch.no_grad()
    def ask(self, batch: Batch) -> Lesson:
        """One clean pass, and a pass over every copy: nothing kept, then the masks."""
        answer, states = self.task.trace(batch)
        kept = draw_kept(batch.maskable, self.pairs, self.source)
        asked = torch.cat([torch.zeros_like(kept[:, :1]), kept], dim=1)
        erased = (batch.maskable[:, None] & ~asked).flatten(0, 1)
        copies = self.task.predict(batch.repeat(asked.shape[1]), {self.task.sites[0]: fill(erased, self.baseline)})
        told = numbers(copies).unflatten(0, (len(batch), asked.shape[1]))
        return Lesson(
            states={site: _halved(states[site]) for site in self.sites},
            present=batch.present,
            maskable=batch.maskable,
            kept=kept,
            told=told[:, 1:],
            empty=told[:, 0],
            whole=numbers(answer),
            kind=answer,
        )


def draw_kept(
    maskable: Bool[Tensor, "row token"], pairs: int, source: torch.Generator
) -> Bool[Tensor, "row copy token"]:
    """Each token kept with probability u, u ~ U(0, 1) a copy; every mask is followed by its complement.

    The keep-rates of a row's masks are stratified, so that small and large sets are asked of every text.
    """
    rows, tokens = maskable.shape
    stratum = torch.arange(pairs)[None].expand(rows, pairs)
    rate = (stratum + torch.rand(rows, pairs, generator=source)) / (2 * pairs)
    first = torch.rand(rows, pairs, tokens, generator=source) < rate[..., None]
    both = torch.stack([first, ~first], dim=2).flatten(1, 2).to(maskable.device)
    return both & maskable[:, None]


def _halved(state: Tensor) -> Tensor:
    return state.half() if state.dtype == torch.float32 else state
