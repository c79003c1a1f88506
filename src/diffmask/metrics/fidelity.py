"""Fidelity of learned masks: divergence and agreement of the prediction under the hard masks."""

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
from diffmask.metrics.metric import Metric, record_of
from diffmask.results.records import Record
from diffmask.workspace.workspace import Workspace

ValuesByName = dict[str, Shaped[Tensor, " row"]]


@dataclass(frozen=True, kw_only=True)
class Fidelity(Metric):
    """Divergence and agreement of the predictions under hard masks, their macro-F1, and the share of kept tokens.

    Only methods that learn masks have it. Methods with several margins have it for each margin.
    """

    name: ClassVar[str] = "fidelity"

    split: str = "test"
    rows_at_once: int = 128

    @torch.no_grad()
    def run(self, method: Method, workspace: Workspace) -> Iterator[Record]:
        """Yield three numbers per site, five for a classifier, or nothing if the method learns no masks."""
        explainer = workspace.explainer(method)
        if not isinstance(explainer, MaskExplainer):
            return
        explained = workspace.explained(method, self.split)
        batch = workspace.task().data[self.split]
        order = order_by_length(batch)
        chunks = AdaptiveBatchSize(self.rows_at_once).split(
            len(batch), lambda items: evaluate_hard_masks(explainer, batch[order[items]].trim())
        )
        for site in explainer.sites:
            values = {name: torch.cat([chunk[site][name] for chunk in chunks]) for name in chunks[0][site]}
            for metric in ("divergence", "agreement", "kept"):
                yield record_of(workspace, method, explained, site, metric, values[metric])
            if "gold" in values:
                for metric in ("before", "after"):
                    score = macro_f1_score(values[metric], values["gold"])
                    yield record_of(workspace, method, explained, site, f"f1_{metric}", torch.tensor([score]))


def evaluate_hard_masks(explainer: MaskExplainer, batch: Batch) -> dict[str, ValuesByName]:
    """Run the model under the hard mask of each site and compare its predictions with the unmasked ones."""
    trace = ForwardTrace.of(explainer.task, batch)
    masks = binarize(explainer.keep_probability(trace, explainer.sites))
    values = {}
    for site, hard_mask in zip(explainer.sites, masks.unbind(dim=1), strict=True):
        masked = explainer.predict_masked(trace, site, hard_mask)
        values[site] = {
            "divergence": divergence(trace.answer, masked),
            "agreement": agreement(trace.answer, masked).float(),
            "kept": (hard_mask * batch.maskable).sum(dim=1) / batch.maskable.sum(dim=1).clamp(min=1),
            **_predicted_classes(trace.answer, masked, batch),
        }
    return values


def _predicted_classes(unmasked: Distribution, masked: Distribution, batch: Batch) -> ValuesByName:
    if not isinstance(unmasked, Categorical):
        return {}
    return {"before": predicted_outcome(unmasked), "after": predicted_outcome(masked), "gold": batch.target}
