"""What lies behind a ROAR curve: how sparse importances are, how many points a path needs, what masks alone tell.

Madsen et al. 2022, appendices C and E; leakage: Rong et al. 2022.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import one_hot

from diffmask.batch import Batch, ranking
from diffmask.methods.integrated_gradient import IntegratedGradient
from diffmask.roar.steps import Masks, Step
from diffmask.task import Task
from diffmask.tasks.scoring import accuracy
from diffmask.training import generator

Scores = Float[Tensor, "row token"]


def sparsity(scores: Scores, maskable: Bool[Tensor, "row token"], shares: Sequence[float]) -> list[float]:
    """Mean share of a row's importance that its most important tokens hold, for each share of the tokens.

    >>> sparsity(torch.tensor([[3.0, 1.0]]), torch.ones(1, 2, dtype=torch.bool), [0.5, 1.0])
    [0.75, 1.0]
    """
    size = scores.abs().masked_fill(~maskable, 0.0)
    total = size.sum(dim=1, keepdim=True).clamp(min=1e-30)
    held = (size.sort(dim=1, descending=True).values / total).cumsum(dim=1)
    n = maskable.sum(dim=1)
    found = []
    for share in shares:
        last = (n * share).ceil().long().clamp(min=1) - 1
        found.append(float(held.gather(1, last[:, None])[n > 0].mean()))
    return found


@dataclass(frozen=True)
class RiemannError:
    """Integrated gradients with so many points beside those with many."""

    points: int
    error: float
    """Mean |difference| of the scores."""
    moved: float
    """Share of tokens that are at another rank."""
    moved_at_the_top: float
    """The same among the most important tenth."""
    seconds: float


def riemann(
    task: Task, batch: Batch, points: Sequence[int], most: int = 100, method: IntegratedGradient | None = None
) -> list[RiemannError]:
    """How the scores and ranks settle as the path has more points."""
    chosen = method or IntegratedGradient(path="right")
    reference = replace(chosen, n_steps=most).fit(task)(batch, batch.target).scores
    best = ranking(reference, batch.maskable)
    n = batch.maskable.sum(dim=1, keepdim=True)
    place = torch.arange(batch.tokens.shape[1])
    found = []
    for number in points:
        explainer = replace(chosen, n_steps=number).fit(task)
        scores = explainer(batch, batch.target).scores
        moved = ranking(scores, batch.maskable) != best
        found.append(
            RiemannError(
                points=number,
                error=float((scores - reference).abs()[batch.maskable].mean()),
                moved=float(moved[place < n].float().mean()),
                moved_at_the_top=float(moved[place < (n + 9) // 10].float().mean()),
                seconds=explainer.cost.seconds,
            )
        )
    return found


def majority(train: Int[Tensor, " text"], rows: int, classes: int) -> Float[Tensor, "row class"]:
    """The answers of one who always says the class most frequent in training.

    >>> majority(torch.tensor([1, 0, 1]), rows=2, classes=3).tolist()
    [[0.0, 1.0, 0.0], [0.0, 1.0, 0.0]]
    """
    return one_hot(train.mode().values, classes).float().expand(rows, -1)


def mask_position_leak(masks: Masks, data: Mapping[str, Batch], seed: int = 0, steps: int = 300) -> float:
    """Test accuracy of a linear classifier that sees where the masks are, and the length, and no word.

    What it tells above the majority class, a retrained model could read from the masks too.
    """
    classes = 1 + max(int(batch.target.max()) for batch in data.values())
    width = max(batch.tokens.shape[1] for batch in data.values())
    train, test = (_mask_features(masks[split], data[split], width) for split in ("train", "test"))
    source = generator(seed, "mask positions")
    weight = (0.01 * torch.randn(train.shape[1], classes, generator=source)).requires_grad_()
    optimizer = torch.optim.Adam([weight], lr=0.02, weight_decay=1e-4)
    for _ in range(steps):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(train @ weight, data["train"].target.long()).backward()
        optimizer.step()
    return accuracy((test @ weight).detach(), data["test"].target.long())


def _mask_features(masked: Bool[Tensor, "row token"], batch: Batch, width: int) -> Float[Tensor, "row feature"]:
    padded = torch.zeros(len(batch), width)
    padded[:, : masked.shape[1]] = masked.float()
    length = batch.present.sum(dim=1, keepdim=True)
    relative = torch.stack([_share_within(masked, length, tenth / 10, (tenth + 1) / 10) for tenth in range(10)], dim=1)
    return torch.cat([padded, relative, length / width, torch.ones(len(batch), 1)], dim=1)


def _share_within(
    masked: Bool[Tensor, "row token"], length: Int[Tensor, "row 1"], low: float, high: float
) -> Float[Tensor, " row"]:
    """Share of the tokens in a stretch of the text that are masked."""
    where = torch.arange(masked.shape[1]) / length
    inside = (where >= low) & (where < high)
    return (masked & inside).sum(dim=1) / inside.sum(dim=1).clamp(min=1)


def permuted(data: Mapping[str, Batch], seed: int = 0) -> dict[str, Batch]:
    """The data with the classes of each split dealt out anew: whatever is learned from it is leaked or by chance."""
    found = {}
    for split, batch in data.items():
        order = torch.randperm(len(batch), generator=generator(seed, "permuted labels", split))
        found[split] = replace(batch, target=batch.target[order])
    return found


def permuted_score(step: Step) -> float:
    """The step's protocol on permuted classes: importances for classes that nothing explains, masks, a new model.

    Above the majority class, the masks themselves carry the class from the explained to the retrained model.
    """
    seed, task = step.bench.seed, step.bench.task()
    shuffled = task.retrain(permuted(task.data, seed), seed)
    explainer = step.method.fit(shuffled, seed)
    scores = {split: step.ranked(explainer(batch, batch.target).scores) for split, batch in shuffled.data.items()}
    masked = step.masked_by(scores, shuffled.data)
    again = shuffled.retrain(masked, seed)
    return again.quality(again.data["test"])
