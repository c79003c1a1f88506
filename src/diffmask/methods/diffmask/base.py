"""Configs and explainers that all mask methods share: keep probabilities per site, hard masks, masked predictions.

A mask says which tokens are kept. Its effect is KL(original || masked), in nats; the margin bounds it.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor, nn
from torch.distributions import Distribution

from diffmask.core.batch import Attribution, Batch
from diffmask.core.capabilities import prepare_resume
from diffmask.core.distributions import agreement, divergence
from diffmask.core.explainer import Explainer, ForwardTrace, Method
from diffmask.core.hooks import Edit, interpolate
from diffmask.core.task import Task
from diffmask.errors import ConfigError

MaskKind = Literal["inputs", "states"]

STATISTICS_ROWS = 768
"""Training rows from which the mean and deviation of each site's states are estimated."""
STATISTICS_TOKENS = 40_000
"""Tokens of these rows, at most: the states of all sites are in memory at once, and texts may be long."""
LENGTH_POOL = 8
"""Minibatches that are sorted by length together, which saves padding."""

MAX_SHIFT = 16.0
"""Shift of a logit that keeps any token, for sites that may erase nothing."""


@dataclass(frozen=True, kw_only=True)
class MaskMethod(Method, ABC):
    """Config of a method that learns masks over a data set."""

    sites: tuple[str, ...] = ()
    """Sites to read, in order. Empty: all sites of the task."""
    learning_rate: float = 1e-3
    """Learning rate of Adam."""
    steps: int = 128
    """Minibatches of training rows."""
    batch_size: int = 32
    """Rows per minibatch."""
    calibration_rows: int = 256
    """Largest number of held-out rows on which thresholds are calibrated: every other validation row."""

    def __post_init__(self) -> None:
        self._require_counts(steps=self.steps, batch_size=self.batch_size)
        if not 0 < self.learning_rate < math.inf:
            raise ConfigError(f"{self.name}: learning_rate must be above 0, found {self.learning_rate}")

    def _require_counts(self, **counts: int) -> None:
        for field, count in counts.items():
            if count < 1:
                raise ConfigError(f"{self.name}: {field} must be at least 1, found {count}")

    def _require_margins(self, *margins: float) -> None:
        for margin in margins:
            if not 0 <= margin < math.inf:
                raise ConfigError(f"{self.name}: a margin must be a number of nats, 0 or more; found {margin}")

    def sites_of(self, task: Task) -> tuple[str, ...]:
        """Return the sites to read, after checking that the task has them."""
        for site in self.sites:
            task.site(site)
        return self.sites or task.sites


@dataclass(frozen=True, kw_only=True)
class SiteMaskMethod(MaskMethod, ABC):
    """Config of a method with one margin and one mask per site."""

    mask: MaskKind = "inputs"
    """Erase input tokens, where a token erased at one site stays erased at all later ones, or each site's states."""
    margin: float = 0.1
    """Largest allowed KL(original || masked), in nats."""
    baseline: Literal["auto", "mean", "mask", "zero", "random"] = "auto"
    """State that replaces an erased one. Auto: the mask token for inputs if there is one, else the mean state."""
    learn_baseline: bool = False
    """Whether the baseline is learned before the masks, starting from `baseline`, so that random masks change the
    answer least."""
    sites_per_step: int = 2
    """Sites, drawn at random, that are masked per minibatch."""
    first_site_margin_share: float = 0.15
    """Share of the margin that calibrated input masks may use at the first site. It grows geometrically to 1."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require_margins(self.margin)
        self._require_counts(sites_per_step=self.sites_per_step)
        if not 0 < self.first_site_margin_share <= 1:
            share = self.first_site_margin_share
            raise ConfigError(f"{self.name}: first_site_margin_share must be in (0, 1], found {share}")

    def site_margins(self, sites: tuple[str, ...]) -> dict[str, float]:
        """Return the part of the margin that each site's hard masks may use.

        A token erased at an early site stays erased, although later sites have more information about it.
        """
        first = self.first_site_margin_share if self.mask == "inputs" else 1.0
        exponents = torch.linspace(1, 0, len(sites)).tolist() if len(sites) > 1 else [0.0]
        return {site: self.margin * first**exponent for site, exponent in zip(sites, exponents, strict=True)}


def statistics_rows(task: Task) -> Batch:
    """Return the training rows from which statistics are estimated, evenly spaced."""
    rows = task.data["train"].spread(STATISTICS_ROWS)
    mean_length = max(1, int(rows.present.sum()) // len(rows))
    return rows.spread(max(1, STATISTICS_TOKENS // mean_length))


def binarize(keep_probability: Float[Tensor, "*row token"]) -> Float[Tensor, "*row token"]:
    """Return the hard mask: 1 where the keep probability is above one half, else 0."""
    return (keep_probability > 0.5).to(keep_probability.dtype)


class MaskExplainer(Explainer, ABC):
    """Explainer whose explanation is the keep probability of every token at every site.

    Each site has one mask. `sites` names them: the sites of the task or, for several margins, the margins.
    """

    explains_target: ClassVar[bool] = False

    def __init__(self, task: Task, mask: MaskKind, sites: tuple[str, ...], baselines: dict[str, nn.Parameter]) -> None:
        super().__init__(task)
        prepare_resume(task)
        self.mask, self.sites = mask, sites
        self.baselines = nn.ParameterList(baselines.values())

    @abstractmethod
    def keep_probability(self, trace: ForwardTrace, sites: tuple[str, ...]) -> Float[Tensor, "row site token"]:
        """Return P(token kept) in the masks of these sites."""

    @abstractmethod
    def threshold_scores(self, trace: ForwardTrace, site: str) -> Float[Tensor, "row token"]:
        """Return the score of each token that calibration compares with one threshold per site."""

    @abstractmethod
    def set_threshold(self, site: str, threshold: float) -> None:
        """Make the hard mask of a site keep the tokens whose score is above the threshold; all, if it is -inf."""

    def expected_mask(self, trace: ForwardTrace, site: str) -> Float[Tensor, "row token"]:
        """Return the mean of each gate."""
        return self.keep_probability(trace, (site,))[:, 0]

    def hard_mask(self, trace: ForwardTrace, site: str) -> Float[Tensor, "row token"]:
        """Return 1 for tokens that are more likely kept than not, else 0."""
        return binarize(self.keep_probability(trace, (site,)))[:, 0]

    def masked_site(self, site: str) -> str:
        """Return the site of the task at which the mask of `site` is applied."""
        return site if self.mask == "states" else self.task.sites[0]

    def baseline(self, site: str) -> Float[Tensor, " width"]:
        """Return the state that replaces erased ones in the mask of `site`."""
        return self.baselines[self.sites.index(site) if self.mask == "states" else 0]

    def edits(
        self,
        site: str,
        gate: Float[Tensor, "row token"],
        maskable: Bool[Tensor, "row token"],
        baseline: Float[Tensor, " width"] | None = None,
    ) -> dict[str, Edit]:
        """Return the edit that applies gates to the maskable tokens, with another baseline if one is given."""
        filler = self.baseline(site) if baseline is None else baseline
        return {self.masked_site(site): interpolate(gate, filler, maskable)}

    @property
    def nested(self) -> bool:
        """Whether a token erased at one site stays erased at all later ones."""
        return self.mask == "inputs"

    @property
    def erases_states(self) -> bool:
        """Whether each site's mask erases the states of that site."""
        return self.mask == "states"

    def outcome(self, batch: Batch) -> Shaped[Tensor, "row *event"]:
        """Return the labels, which are not used: masks keep the whole prediction, and no forward pass is needed."""
        return batch.target

    @torch.no_grad()
    def explain(self, batch: Batch, target: Shaped[Tensor, "row *event"]) -> Attribution:
        """Return scores and the keep probabilities per site."""
        return self.answer(batch)[1]

    @torch.no_grad()
    def answer(self, batch: Batch) -> tuple[Distribution, Attribution]:
        """Return prediction and attribution from one forward pass."""
        trace = ForwardTrace.of(self.task, batch)
        return trace.answer, self.attribution(trace)

    def attribution(self, trace: ForwardTrace) -> Attribution:
        """Return keep probabilities per site, and as scores those of the last site (inputs) or their mean (states)."""
        keep = self.keep_probability(trace, self.sites)
        return Attribution(keep[:, -1] if self.mask == "inputs" else keep.mean(dim=1), keep, self.sites)

    def predict_masked(
        self,
        trace: ForwardTrace,
        site: str,
        gate: Shaped[Tensor, "row token"],
        baseline: Float[Tensor, " width"] | None = None,
    ) -> Distribution:
        """Return the prediction under a mask of `site`. Layers below the masked site are not computed again."""
        dtype = trace.states[self.masked_site(site)].dtype
        return self.task.resume(
            trace.rows, trace.states, self.edits(site, gate.to(dtype), trace.rows.maskable, baseline)
        )

    @torch.no_grad()
    def masking_divergence(
        self, trace: ForwardTrace, site: str, kept: Shaped[Tensor, "row token"]
    ) -> Float[Tensor, " row"]:
        """Return KL(original || masked) per row, under a mask of `site`."""
        return divergence(trace.answer, self.predict_masked(trace, site, kept))

    @torch.no_grad()
    def full_mask_divergence(self, rows: Batch, site: str) -> float:
        """Return the mean KL(original || every maskable token erased)."""
        edits = self.edits(site, torch.zeros(rows.tokens.shape), rows.maskable)
        return divergence(self.task.predict(rows), self.task.predict(rows, edits)).mean().item()

    def satisfies_margin(
        self,
        traces: Sequence[ForwardTrace],
        site: str,
        masks: Iterable[Tensor],
        margin: float,
        standard_errors: float = 0.0,
        min_agreement: float | None = None,
    ) -> bool:
        """Return whether the mean KL under one mask per trace, plus some standard errors, is within the margin.

        With `min_agreement`, that share of the rows, rounded down, also has the same prediction. No more forward passes
        are made once the sum or the number of changed predictions is too large: neither ever falls.
        """
        rows = sum(len(trace.rows) for trace in traces)
        budget, changes = margin * rows, rows - math.floor((min_agreement or 0.0) * rows)
        parts = []
        for trace, mask in zip(traces, masks, strict=True):
            masked = self.predict_masked(trace, site, mask)
            parts.append(divergence(trace.answer, masked))
            budget -= parts[-1].sum().item()
            if min_agreement is not None:
                changes -= int((~agreement(trace.answer, masked)).sum())
            if budget < 0 or changes < 0:
                return False
        if not standard_errors:
            return True
        kl = torch.cat(parts)
        return bool(kl.mean() + standard_errors * kl.std(correction=0) / len(kl) ** 0.5 <= margin)

    @torch.no_grad()
    def predict_kept(self, batch: Batch, kept: Bool[Tensor, "row token"], layer: str | None) -> Distribution:
        """Return the prediction with only some tokens kept, by the mask of `layer`, with this explainer's baseline.

        Without a layer the mask is that of the first site: it erases the tokens themselves, or the earliest states.
        """
        site = self.sites[0] if layer is None else layer
        return self.task.predict(batch, self.edits(site, kept.to(self.baseline(site).dtype), batch.maskable))


def draw_sites(explainer: MaskExplainer, count: int, source: torch.Generator) -> tuple[str, ...]:
    """Draw the sites to mask next; a mask of inputs serves all sites, so only the first is returned."""
    if explainer.mask == "inputs":
        return explainer.sites[:1]
    order = torch.randperm(len(explainer.sites), generator=source)[:count]
    return tuple(explainer.sites[index] for index in order.tolist())
