"""Leave-one-out (Li et al. 2016), and the exact smallest evidence of tasks that can state it."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from diffmask.core.baseline_states import Baseline, BaselineExplainer, baseline_state
from diffmask.core.batch import Attribution, Batch, delete_tokens, hide_tokens
from diffmask.core.capabilities import ErasesUnits, HasSmallestEvidence, HidesFromEnd, require
from diffmask.core.distributions import Quantity, target_score
from diffmask.core.explainer import Explainer, Method
from diffmask.core.hooks import erase_states
from diffmask.core.task import Task
from diffmask.core.units import spread_unit_scores
from diffmask.errors import ConfigError, TaskError
from diffmask.methods.unit_ablation import ablated_scores, unit_pairs


@dataclass(frozen=True, kw_only=True)
class LeaveOneOut(Method):
    """score_t = f(x) - f(x without token t), f the log-odds of the outcome. Li et al. 2016."""

    name: ClassVar[str] = "leave-one-out"

    mode: Literal["mask", "delete", "attention-mask", "cached"] = "mask"
    """Erase the token's state, delete the token from the text, or exclude it from attention.

    A task with units of its own, such as the parts of a prompt, erases one unit at a time in its own way or, if
    `cached`, hides it from the question and the response alone, which are computed again on the keys and values of the
    whole prompt. For long prompts that takes little more than one forward pass.

    The only token of a text cannot be deleted or excluded: its state is erased.
    """
    site: str | None = None
    """Site whose state is erased. Default: the token embedding."""
    baseline: Baseline = "auto"
    """State of an erased token."""
    quantity: Quantity = "log-odds"
    """f: quantity of the target outcome."""
    internal_batch_size: int = 256
    """Rows per forward pass, one per token left out."""

    def __post_init__(self) -> None:
        if self.internal_batch_size < 1:
            raise ConfigError(f"leave-one-out: internal_batch_size must be at least 1; got {self.internal_batch_size}")

    def build(self, task: Task, seed: int) -> "LeaveOneOutExplainer | LeaveOneUnitOutExplainer":
        """Check that the model has an attention mask, if tokens are excluded from attention."""
        if isinstance(task, ErasesUnits):
            if self.mode not in ("mask", "cached") or self.site is not None:
                raise TaskError(f"leave-one-out: {type(task).__name__} erases its units in its own way; set it there")
            if self.mode == "cached":
                require(task, HidesFromEnd, "leave-one-out: mode 'cached'")
            return LeaveOneUnitOutExplainer(self, task)
        if self.mode == "cached":
            raise TaskError(f"leave-one-out: mode 'cached' is for parts of prompts; {type(task).__name__} has none")
        if self.mode == "attention-mask" and not task.attention_masked:
            raise TaskError(f"leave-one-out: {type(task).__name__} has no attention mask; use mode 'mask' or 'delete'")
        site = self.site_of(task, self.site)
        return LeaveOneOutExplainer(self, task, site, baseline_state(task, site, self.baseline))


class LeaveOneOutExplainer(BaselineExplainer[LeaveOneOut]):
    """Explainer that runs the model on the text and once per maskable token."""

    @torch.no_grad()
    def explain(self, batch: Batch, target: Shaped[Tensor, "row *event"]) -> Attribution:
        """Run every pair of a row and a maskable token as a row of its own."""
        rows, tokens = batch.maskable.nonzero(as_tuple=True)
        whole = target_score(self.task.predict(batch), target, self.method.quantity)

        def without(items: slice) -> Float[Tensor, " pair"]:
            return self._without(batch[rows[items]].trim(), tokens[items], target[rows[items]])

        remaining = torch.cat([whole[:0], *self.portion.split(len(rows), without)])
        scores = whole.new_zeros(batch.tokens.shape)
        scores[rows, tokens] = whole[rows] - remaining
        return Attribution(scores)

    def _without(
        self, batch: Batch, tokens: Int[Tensor, " row"], target: Shaped[Tensor, "row *event"]
    ) -> Float[Tensor, " row"]:
        """Return f of each row without one of its tokens."""
        gone = torch.zeros_like(batch.present).scatter(1, tokens[:, None], True)
        replaced = gone if self.method.mode == "mask" else gone & (batch.present.sum(dim=1, keepdim=True) == 1)
        removed = gone & ~replaced
        shorter = hide_tokens(batch, removed) if self.method.mode == "attention-mask" else delete_tokens(batch, removed)
        answer = self.task.predict(shorter, {self.site: erase_states(replaced, self.baseline)})
        return target_score(answer, target, self.method.quantity)


class LeaveOneUnitOutExplainer(Explainer):
    """Explainer that runs the model on the text and once per unit of its task."""

    def __init__(self, method: LeaveOneOut, task: Task) -> None:
        super().__init__(task)
        self.method = method

    @torch.no_grad()
    def explain(self, batch: Batch, target: Shaped[Tensor, "row *event"]) -> Attribution:
        """Give every token of a unit the change of f without the unit."""
        numbers = require(self.task, ErasesUnits, "leave-one-out").unit_numbers(batch)
        rows, units = unit_pairs(numbers)
        every_row, every_unit = (torch.arange(size, device=rows.device) for size in (len(batch), int(numbers.max())))
        # The whole rows come first.
        kept = torch.cat([every_unit.new_zeros(len(batch), 1), units[:, None]]) != every_unit + 1
        copies, cached = torch.cat([every_row, rows]), self.method.mode == "cached"
        values = ablated_scores(self.task, batch, target, copies, kept, self.method.quantity, cached=cached)
        whole, remaining = values.split([len(batch), len(rows)])
        scores = whole.new_zeros(len(batch), len(every_unit))
        scores[rows, units - 1] = whole[rows] - remaining
        return Attribution(spread_unit_scores(scores, numbers))


@dataclass(frozen=True, kw_only=True)
class ExactErasure(Method):
    """score_t = 1 for the smallest sufficient set of tokens, else 0: the result of a search over all subsets.

    De Cao et al. 2020, section 4.1, show its hindsight bias: a droppable token may still be used by the model.
    """

    name: ClassVar[str] = "exact-erasure"

    def build(self, task: Task, seed: int) -> "ExactErasureExplainer":
        """Check that the task knows its smallest evidence."""
        require(task, HasSmallestEvidence, self.name)
        return ExactErasureExplainer(task)


class ExactErasureExplainer(Explainer):
    """Explainer that returns the task's smallest evidence."""

    explains_target: ClassVar[bool] = False

    @torch.no_grad()
    def explain(self, batch: Batch, target: Shaped[Tensor, "row *event"]) -> Attribution:
        """Return ones at the evidence."""
        return Attribution(require(self.task, HasSmallestEvidence, "exact-erasure").smallest_evidence(batch))
