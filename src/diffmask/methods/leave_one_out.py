"""Leave one out: by how much does the answer change when a token is gone? Li et al. 2016.

Exact erasure: the smallest set of tokens that keeps the answer, where a task can state it.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn

from diffmask.core.baselines import Baseline, baseline_state
from diffmask.core.batch import Attribution, Batch, delete_tokens, hide_tokens
from diffmask.core.capabilities import HasSmallestEvidence, require
from diffmask.core.distributions import Quantity, target_score
from diffmask.core.explainer import Explainer, Method
from diffmask.core.hooks import erase_states
from diffmask.core.resources import AdaptiveBatchSize
from diffmask.core.task import Task
from diffmask.errors import ConfigError, TaskError


@dataclass(frozen=True, kw_only=True)
class LeaveOneOut(Method):
    """score_t = f(x) - f(x without token t), f the log-odds of the outcome."""

    name: ClassVar[str] = "leave-one-out"

    mode: Literal["mask", "delete", "attention-mask"] = "mask"
    """Replace the token's state by a baseline, take the token out of the text, or hide it from attention.

    The only token of a text can be neither taken out nor hidden: it is replaced.
    """
    site: str | None = None
    """Where a state is replaced; the token embedding where none is named."""
    baseline: Baseline = "auto"
    """What it is replaced by."""
    quantity: Quantity = "log-odds"
    """What the drop is measured in."""
    internal_batch_size: int = 256
    """Rows the model is given at once, one for each token left out."""

    def __post_init__(self) -> None:
        if self.internal_batch_size < 1:
            raise ConfigError(f"erasure: internal_batch_size is at least 1; found {self.internal_batch_size}")

    def build(self, task: Task, seed: int) -> "ErasureExplainer":
        """Hiding a token asks for a model that can be told to ignore it."""
        if self.mode == "attention-mask" and not task.attention_masked:
            raise TaskError(f"erasure: {type(task).__name__} has no attention mask; use mode 'mask' or 'delete'")
        site = self.site_of(task, self.site)
        return ErasureExplainer(self, task, site, baseline_state(task, site, self.baseline))


class ErasureExplainer(Explainer):
    """As many rows through the model as there are maskable tokens, and the text itself."""

    def __init__(self, method: LeaveOneOut, task: Task, site: str, baseline: Float[Tensor, " width"]) -> None:
        super().__init__(task)
        self.method, self.site = method, site
        self.baseline = nn.Parameter(baseline, requires_grad=False)
        self.portion = AdaptiveBatchSize(method.internal_batch_size)

    @torch.no_grad()
    def explain(self, batch: Batch, target: Shaped[Tensor, "row *event"]) -> Attribution:
        """Every pair of a row and a maskable token is a row of its own."""
        rows, tokens = batch.maskable.nonzero(as_tuple=True)
        whole = target_score(self.task.predict(batch), target, self.method.quantity)

        def without(items: slice) -> Float[Tensor, " pair"]:
            return self._without(batch[rows[items]].trim(), tokens[items], target[rows[items]])

        left = torch.cat([whole[:0], *self.portion.split(len(rows), without)])
        scores = whole.new_zeros(batch.tokens.shape)
        scores[rows, tokens] = whole[rows] - left
        return Attribution(scores)

    def _without(
        self, batch: Batch, tokens: Int[Tensor, " row"], target: Shaped[Tensor, "row *event"]
    ) -> Float[Tensor, " row"]:
        """f of each row without one of its tokens."""
        gone = torch.zeros_like(batch.present).scatter(1, tokens[:, None], True)
        replaced = gone if self.method.mode == "mask" else gone & (batch.present.sum(dim=1, keepdim=True) == 1)
        removed = gone & ~replaced
        shorter = hide_tokens(batch, removed) if self.method.mode == "attention-mask" else delete_tokens(batch, removed)
        answer = self.task.predict(shorter, {self.site: erase_states(replaced, self.baseline)})
        return target_score(answer, target, self.method.quantity)


@dataclass(frozen=True, kw_only=True)
class ExactErasure(Method):
    """1 for the smallest evidence, 0 for the rest: what a search over all subsets finds, with its hindsight.

    De Cao et al. 2020, section 4.1: that a token can be dropped does not mean that the model knows it.
    """

    name: ClassVar[str] = "exact-erasure"

    def build(self, task: Task, seed: int) -> "ExactErasureExplainer":
        """A task that does not know its smallest evidence is refused here."""
        require(task, HasSmallestEvidence, self.name)
        return ExactErasureExplainer(task)


class ExactErasureExplainer(Explainer):
    """The task's own smallest evidence."""

    @torch.no_grad()
    def explain(self, batch: Batch, target: Shaped[Tensor, "row *event"]) -> Attribution:
        """Ones at the evidence."""
        return Attribution(require(self.task, HasSmallestEvidence, "exact-erasure").smallest_evidence(batch))
