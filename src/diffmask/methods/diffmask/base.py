"""An explainer that says, of every token and from every site, whether it may be erased: what DiffMask learns."""

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from typing import Literal

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor, nn
from torch.distributions import Distribution

from diffmask.core.batch import Attribution, Batch
from diffmask.core.distributions import divergence
from diffmask.core.explainer import Explainer, ForwardTrace
from diffmask.core.hooks import Edit
from diffmask.core.task import Task


def binarize(opened: Float[Tensor, "*row token"]) -> Float[Tensor, "*row token"]:
    """1 where a token is more likely kept than not, 0 elsewhere."""
    return (opened > 0.5).to(opened.dtype)


class MaskExplainer(Explainer):
    """What is read off one clean pass is the explanation: P(token kept), seen from every site."""

    def __init__(
        self, task: Task, mask: Literal["inputs", "states"], sites: tuple[str, ...], baselines: dict[str, nn.Parameter]
    ) -> None:
        super().__init__(task)
        self.mask, self.sites = mask, sites
        self.baselines = nn.ParameterList(baselines.values())

    @abstractmethod
    def opened(self, clean: ForwardTrace, sites: tuple[str, ...]) -> Float[Tensor, "row site token"]:
        """P(token kept), seen from each of these sites."""

    def expected(self, clean: ForwardTrace, site: str) -> Float[Tensor, "row token"]:
        """The mean of each gate."""
        return self.opened(clean, (site,))[:, 0]

    def hard(self, clean: ForwardTrace, site: str) -> Float[Tensor, "row token"]:
        """The mask a reader is told: 1 where a token is more likely kept than not."""
        return binarize(self.opened(clean, (site,)))[:, 0]

    def place(self, site: str) -> str:
        """Where the mask seen from `site` is applied."""
        return site if self.mask == "states" else self.task.sites[0]

    def baseline(self, site: str) -> Float[Tensor, " width"]:
        """What the mask seen from `site` puts in place of an erased state."""
        return self.baselines[self.sites.index(site) if self.mask == "states" else 0]

    def edits(
        self,
        site: str,
        gate: Float[Tensor, "row token"],
        maskable: Bool[Tensor, "row token"],
        baseline: Float[Tensor, " width"] | None = None,
    ) -> dict[str, Edit]:
        """h <- z h + (1 - z) b at the maskable tokens, where the mask seen from `site` applies."""
        kept = torch.where(maskable, gate, 1.0)[..., None]
        filler = self.baseline(site) if baseline is None else baseline
        return {self.place(site): lambda state: kept * state + (1 - kept) * filler}

    def outcome(self, batch: Batch) -> Shaped[Tensor, "row *event"]:
        """A mask keeps the whole answer, whatever it is: no pass is spent on asking for it."""
        return batch.target

    @torch.no_grad()
    def explain(self, batch: Batch, target: Shaped[Tensor, "row *event"]) -> Attribution:
        """How much each token is needed, and P(token kept) seen from every site."""
        return self.answer(batch)[1]

    @torch.no_grad()
    def answer(self, batch: Batch) -> tuple[Distribution, Attribution]:
        """One pass serves both."""
        clean = ForwardTrace.of(self.task, batch)
        opened, scores = self.read(clean)
        return clean.answer, Attribution(scores, opened, self.sites)

    def read(self, clean: ForwardTrace) -> tuple[Float[Tensor, "row site token"], Float[Tensor, "row token"]]:
        """P(token kept) seen from every site, and scores: of an input what the last says, of a state the mean."""
        opened = self.opened(clean, self.sites)
        return opened, opened[:, -1] if self.mask == "inputs" else opened.mean(dim=1)

    def under(
        self,
        clean: ForwardTrace,
        site: str,
        gate: Shaped[Tensor, "row token"],
        baseline: Float[Tensor, " width"] | None = None,
    ) -> Distribution:
        """The answer under a mask seen from `site`; nothing below the place that is masked is computed again."""
        edits = self.edits(site, gate.to(clean.states[site].dtype), clean.rows.maskable, baseline)
        return self.task.resume(clean.rows, clean.states, edits)

    @torch.no_grad()
    def caused(self, clean: ForwardTrace, site: str, kept: Shaped[Tensor, "row token"]) -> Float[Tensor, " row"]:
        """KL(original || masked) of every row, under a mask seen from `site`."""
        return divergence(clean.answer, self.under(clean, site, kept))

    def holds(self, passes: Sequence[ForwardTrace], site: str, kept: Iterable[Tensor], margin: float) -> bool:
        """Whether masks seen from `site`, one for each pass, move the answer by no more than the margin on average.

        Divergences are never negative: no more is asked of the model once their sum is too large.
        """
        left = margin * sum(len(clean.rows) for clean in passes)
        for clean, mask in zip(passes, kept, strict=True):
            left -= self.caused(clean, site, mask).sum().item()
            if left < 0:
                return False
        return True

    @torch.no_grad()
    def predict_kept(self, batch: Batch, kept: Bool[Tensor, "row token"], layer: str | None) -> Distribution:
        """The answer under a mask seen from `layer`, with this explainer's own baseline where it masks."""
        site = self.sites[-1] if layer is None else layer
        return self.task.predict(batch, self.edits(site, kept.to(self.baseline(site).dtype), batch.maskable))
