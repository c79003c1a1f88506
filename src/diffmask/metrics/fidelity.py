"""Does the answer survive the masks that a method learned?"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Shaped
from torch import Tensor
from torch.distributions import Categorical, Distribution

from diffmask.core.batch import Batch, order_by_length
from diffmask.core.distributions import agreement, divergence, predicted_outcome
from diffmask.core.explainer import ForwardTrace, Method
from diffmask.core.resources import AdaptiveBatchSize
from diffmask.core.scores import macro_f1_score
from diffmask.methods.diffmask.base import MaskExplainer, binarize
from diffmask.metrics.base import Metric, record_of
from diffmask.results.records import Record
from diffmask.workspace.workspace import Workspace

Table = dict[str, Shaped[Tensor, " row"]]


@dataclass(frozen=True, kw_only=True)
class Fidelity(Metric):
    """Divergence, agreement and macro-F1 of the answer under hard masks, and the share kept; learned masks only."""

    name: ClassVar[str] = "fidelity"

    split: str = "test"
    rows_at_once: int = 128

    @torch.no_grad()
    def run(self, method: Method, workspace: Workspace) -> Iterator[Record]:
        """Three numbers a site, five where the answer is one of several classes; none if no mask was learned."""
        explainer = workspace.explainer(method)
        if not isinstance(explainer, MaskExplainer):
            return
        explained = workspace.explained(method, self.split)
        batch = workspace.task().data[self.split]
        order = order_by_length(batch)
        parts = AdaptiveBatchSize(self.rows_at_once).split(
            len(batch), lambda items: under_masks(explainer, batch[order[items]].trim())
        )
        for site in explainer.sites:
            table = {name: torch.cat([part[site][name] for part in parts]) for name in parts[0][site]}
            for metric in ("divergence", "agreement", "kept"):
                yield record_of(workspace, method, explained, site, metric, table[metric])
            if "gold" in table:
                for metric in ("before", "after"):
                    score = macro_f1_score(table[metric], table["gold"])
                    yield record_of(workspace, method, explained, site, f"f1_{metric}", torch.tensor([score]))


def under_masks(explainer: MaskExplainer, batch: Batch) -> dict[str, Table]:
    """What becomes of each row's answer under the hard mask of each site."""
    clean = ForwardTrace.of(explainer.task, batch)
    answer, masks = clean.answer, binarize(explainer.keep_probability(clean, explainer.sites))
    found = {}
    for site, hard in zip(explainer.sites, masks.unbind(dim=1), strict=True):
        masked = explainer.predict_masked(clean, site, hard)
        found[site] = {
            "divergence": divergence(answer, masked),
            "agreement": agreement(answer, masked).float(),
            "kept": (hard * batch.maskable).sum(dim=1) / batch.maskable.sum(dim=1).clamp(min=1),
            **_decisions(answer, masked, batch),
        }
    return found


def _decisions(answer: Distribution, masked: Distribution, batch: Batch) -> Table:
    if not isinstance(answer, Categorical):
        return {}
    return {"before": predicted_outcome(answer), "after": predicted_outcome(masked), "gold": batch.target}
