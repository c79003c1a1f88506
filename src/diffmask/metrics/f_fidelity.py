"""F-Fidelity: erase within the distribution of a copy that was fine-tuned once on random masks.

Zheng et al. 2025 (ICLR, arXiv 2410.02970). ROAR retrains per point, and the shape of its masks can tell the label. Here
one copy of the model is fine-tuned on texts with up to `max_masked` of their tokens masked at random, the same copy for
every method. An explanation of size s is tested by masking a random part of it, never more than `max_masked` of the
text, so that the copy has seen such texts.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from diffmask.core.batch import Batch
from diffmask.core.capabilities import require_labels
from diffmask.core.config import require_between
from diffmask.core.explainer import Method
from diffmask.core.task import Task
from diffmask.core.training import generator
from diffmask.errors import TaskError
from diffmask.metrics.erasure import Eraser, rank_positions, tokens_to_erase, unmasked_predictions
from diffmask.metrics.metric import Metric, record_of
from diffmask.results.benchmark_result import MetricInfo
from diffmask.results.records import Record
from diffmask.tasks.text.finetuning import FineTuning
from diffmask.workspace.derived import ModifiedWorkspace, TaskModification
from diffmask.workspace.workspace import Workspace

LIMITATION = (
    "It speaks about a copy of the model that was fine-tuned on masked texts; few tokens are masked at once, so that "
    "differences are small."
)
PLUS = MetricInfo(
    name="f_fidelity_plus",
    title="F-Fidelity+",
    higher_is_better=True,
    definition="fall of the predicted class's probability when random tokens of the highest-scoring ones are masked",
    interpretation="Masking part of the highest-scoring tokens lowers the probability: the model needs them.",
    limitation=LIMITATION,
)
MINUS = MetricInfo(
    name="f_fidelity_minus",
    title="F-Fidelity−",
    higher_is_better=False,
    definition="fall of the predicted class's probability when random tokens outside the highest-scoring are masked",
    interpretation="Masking part of the other tokens changes little: the model does not need them.",
    limitation=LIMITATION,
)


@dataclass(frozen=True, kw_only=True)
class RandomMaskFineTuning(TaskModification):
    """Fine-tunes a copy of the model on training rows with random tokens masked; labels stay."""

    name: ClassVar[str] = "random-masks"

    max_masked: float
    steps: int
    batch_size: int
    learning_rate: float

    def apply(self, task: Task, seed: int) -> None:
        """Replace the training rows by as many masked copies as the fine-tuning takes; other splits stay."""
        if task.mask_token is None:
            raise TaskError(f"F-Fidelity masks tokens, but {type(task).__name__} has no mask token")
        source, rows = generator(seed, "F-Fidelity"), task.data["train"]
        require_labels(task, {"train": rows})
        count = self.steps * self.batch_size
        drawn = torch.randperm(len(rows), generator=source).repeat(-(-count // len(rows)))[:count]
        task.data["train"] = _mask_up_to(task.mask_token, rows[drawn], self.max_masked, source)

    def train(self, task: Task, seed: int) -> None:
        """Fine-tune the copy for one pass over the masked rows."""
        FineTuning(epochs=1, batch_size=self.batch_size, learning_rate=self.learning_rate).fine_tune(task, seed)


def _mask_up_to(mask_token: int, batch: Batch, largest: float, source: torch.Generator) -> Batch:
    """Mask tokens at random; each row has its own share, uniform between 0 and `largest`."""
    share = largest * torch.rand(len(batch), 1, generator=source)
    masked = (torch.rand(batch.tokens.shape, generator=source) < share).to(batch.tokens.device) & batch.maskable
    return replace(batch, tokens=batch.tokens.masked_fill(masked, mask_token))


@dataclass(frozen=True, kw_only=True)
class FFidelity(Metric):
    """FFid+ = E[p(y|x) - p(y|x without a part of the top s)], FFid- likewise without a part of the rest; means over s.

    p is the probability of the original prediction y under the fine-tuned copy.
    """

    name: ClassVar[str] = "f-fidelity"
    infos: ClassVar[tuple[MetricInfo, ...]] = (PLUS, MINUS)

    split: str = "test"
    sizes: tuple[float, ...] = (0.1, 0.2, 0.3, 0.4, 0.5)
    """Sizes of the explanation: shares of the tokens of a text, rounded up."""
    part: float = 0.5
    """Largest share of the explanation, or of the rest, that is masked at once."""
    max_masked: float = 0.2
    """Largest share of a text that is masked, in the fine-tuning and in the test."""
    samples: int = 8
    """Random masks per text and size; all methods share the random numbers."""
    steps: int = 100
    """Minibatches of the fine-tuning."""
    batch_size: int = 32
    learning_rate: float = 2e-5
    """Peak of the learning rate of the fine-tuning."""

    def __post_init__(self) -> None:
        require_between(self, "sizes", 0, 1, open_low=True)
        require_between(self, "part", 0, 1, open_low=True)
        require_between(self, "max_masked", 0, 1, open_low=True)
        require_between(self, "samples", 1)
        require_between(self, "steps", 1)

    def extra_workspaces(self, workspace: Workspace) -> Sequence[Workspace]:
        """Return nothing: methods are fitted to the original model only."""
        return ()

    def run(self, method: Method, workspace: Workspace) -> Iterator[Record]:
        """Yield both means over sizes and samples, and a point of a curve per size."""
        explained = workspace.explained(method, self.split)
        batch = workspace.task().data[self.split]
        target = unmasked_predictions(workspace, self.split, "predicted").target
        eraser = Eraser(self._fine_tuned(workspace).task())
        rows = torch.arange(len(batch))
        whole = eraser.probability(batch, target, rows, torch.zeros_like(batch.present))
        position = rank_positions(explained.attribution.scores, batch.maskable)
        top = tokens_to_erase(batch.maskable, self.sizes)
        for outside, info in enumerate(self.infos):
            drops = []
            for number, size in enumerate(self.sizes):
                inside = (position < top[:, number, None]) & batch.maskable
                candidates = batch.maskable & ~inside if outside else inside
                masks = self._masks(batch.maskable, candidates, workspace.seed)
                copies = rows.repeat(self.samples)
                masked = eraser.probability(batch, target, copies, masks).view(self.samples, len(batch)).mean(dim=0)
                drops.append((whole - masked).float())
                yield record_of(workspace, method, explained, "input", info.name, drops[-1], at=size, keep_rows=True)
            mean = torch.stack(drops).mean(dim=0)
            yield record_of(workspace, method, explained, "input", info.name, mean, keep_rows=True)

    def _fine_tuned(self, workspace: Workspace) -> Workspace:
        choices = {name: getattr(self, name) for name in ("max_masked", "steps", "batch_size", "learning_rate")}
        return ModifiedWorkspace.of(workspace, RandomMaskFineTuning(**choices))

    def _masks(
        self, maskable: Bool[Tensor, "row token"], candidates: Bool[Tensor, "row token"], seed: int
    ) -> Bool[Tensor, "copy token"]:
        """Draw masks of a share `part` of each row's candidates, from one token to `max_masked` of the row."""
        source = generator(seed, "F-Fidelity masks")
        most = (maskable.sum(dim=1) * self.max_masked).floor().clamp(min=1)
        count = torch.minimum((candidates.sum(dim=1) * self.part).ceil(), most)
        masks = []
        for _ in range(self.samples):
            keys: Float[Tensor, "row token"] = torch.rand(maskable.shape, generator=source).to(maskable.device)
            masks.append((rank_positions(keys, candidates) < count[:, None]) & candidates)
        return torch.cat(masks)
