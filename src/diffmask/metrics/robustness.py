"""Do a text's scores add up to what erasing its tokens does? Yeh et al. 2019, definition 2.1.

How far do the scores move when the embedded text moves a little? Yeh et al. 2019, definition 3.1.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from diffmask.core.baselines import site_statistics
from diffmask.core.batch import Batch
from diffmask.core.distributions import Quantity, predicted_outcome, target_score
from diffmask.core.explainer import Explainer, Method
from diffmask.core.hooks import Edit, persistent_edit
from diffmask.core.task import Task
from diffmask.core.training import generator
from diffmask.errors import ConfigError
from diffmask.metrics.base import Metric, record_of
from diffmask.metrics.erasure import Eraser, Mode
from diffmask.results.benchmark_result import MetricInfo
from diffmask.results.records import Record
from diffmask.workspace.workspace import Workspace


@dataclass(frozen=True, kw_only=True)
class Infidelity(Metric):
    """E_I[(sum of the scores in I - (f(x) - f(x without I)))^2] over random sets I of tokens.

    A text's scores are multiplied by the one number that fits best: methods do not share a unit. So is a text in which
    no set changes anything at 0, whatever the scores.
    """

    name: ClassVar[str] = "infidelity"
    infos: ClassVar[tuple[MetricInfo, ...]] = (
        MetricInfo(
            name="infidelity",
            title="infidelity",
            higher_is_better=False,
            interpretation="The scores of any tokens, summed, say how much the answer changes without them.",
            limitation="It asks scores to add up, which those of a method that ranks tokens were never meant to; "
            "and the erased texts are unlike those the model was trained on.",
        ),
    )

    split: str = "test"
    samples: int = 20
    """Sets drawn for each text: a share from (0, 1), then each token with that chance; the same for all methods."""
    mode: Mode = "mask"
    quantity: Quantity = "probability"
    scaled: bool = True
    """Multiply each text's scores by the number that fits best, as Captum's `normalize` does."""

    def __post_init__(self) -> None:
        if self.samples < 2:
            raise ConfigError(f"infidelity: samples is at least 2, a fit to one set is perfect; found {self.samples}")

    def run(self, method: Method, workspace: Workspace) -> Iterator[Record]:
        """One number."""
        found = workspace.explained(method, self.split)
        batch, eraser = workspace.task().data[self.split], Eraser(workspace.task(), self.mode)
        sets = random_sets(batch, self.samples, workspace.seed)
        change = changes(eraser, batch, sets, self.quantity)
        said = (sets * found.attribution.scores).sum(dim=2)
        values = infidelity(said, change.to(said.dtype), self.scaled)
        yield record_of(workspace, method, found, "input", "infidelity", values, keep_rows=True)


def random_sets(batch: Batch, samples: int, seed: int) -> Bool[Tensor, "sample row token"]:
    """Sets of maskable tokens, of every size."""
    source = generator(seed, "infidelity")
    share = torch.rand(samples, len(batch), 1, generator=source)
    drawn = torch.rand(samples, *batch.tokens.shape, generator=source) < share
    return drawn.to(batch.maskable.device) & batch.maskable


def changes(
    eraser: Eraser, batch: Batch, sets: Bool[Tensor, "sample row token"], quantity: Quantity
) -> Float[Tensor, "sample row"]:
    """f(x) - f(x without I), f being the quantity of the original decision."""
    outcome = eraser.decisions(batch)

    def value(gone: Bool[Tensor, "row token"]) -> Float[Tensor, " row"]:
        return eraser.ask(batch, gone, lambda answer, rows: target_score(answer, outcome[rows], quantity))

    whole = value(torch.zeros_like(batch.maskable))
    return torch.stack([whole - value(gone) for gone in sets])


def infidelity(
    said: Float[Tensor, "sample row"], change: Float[Tensor, "sample row"], scaled: bool
) -> Float[Tensor, " row"]:
    """Mean of (b * said - change)^2 over samples, with b = 1 or the number that makes it least.

    >>> infidelity(torch.tensor([[1.0], [2.0]]), torch.tensor([[3.0], [4.0]]), scaled=False)
    tensor([4.])
    """
    size = said.square().sum(dim=0)
    best = (said * change).sum(dim=0) / torch.where(size > 0, size, 1.0)
    factor = best if scaled else torch.ones_like(best)
    return (factor * said - change).square().mean(dim=0)


NoiseTolerance = Float[Tensor, "token width"]


@dataclass(frozen=True, kw_only=True)
class MaxSensitivity(Metric):
    """max over d of ||scores(x + d) - scores(x)|| / ||scores(x)||, d small and added to the token embeddings."""

    name: ClassVar[str] = "sensitivity"
    infos: ClassVar[tuple[MetricInfo, ...]] = (
        MetricInfo(
            name="max_sensitivity",
            title="sensitivity to noise",
            higher_is_better=False,
            interpretation="A change too small to matter to the model hardly moves the scores.",
            limitation="Scores that ignore the model are perfectly calm; a calm explanation need not be a right one.",
        ),
    )

    split: str = "test"
    rows: int = 50
    """Texts looked at, the first ones: each is explained once a sample."""
    samples: int = 5
    """Noises drawn; the one that moves a text's scores most counts."""
    radius: float = 0.1
    """Largest noise at each of the embedding's dimensions, in units of its deviation there."""

    def __post_init__(self) -> None:
        if self.rows < 1 or self.samples < 1:
            raise ConfigError(f"sensitivity: rows and samples are at least 1; found {self.rows} and {self.samples}")

    def run(self, method: Method, workspace: Workspace) -> Iterator[Record]:
        """One number."""
        task, explainer = workspace.task(), workspace.explainer(method)
        batch = task.data[self.split][: self.rows].trim()
        noises = draw(task, batch.tokens.shape[1], self.samples, self.radius, workspace.seed)
        values = max_sensitivity(explainer, batch, noises)
        found = workspace.explained(method, self.split)
        yield record_of(workspace, method, found, "input", "max_sensitivity", values, keep_rows=True)


def draw(task: Task, tokens: int, samples: int, radius: float, seed: int) -> list[NoiseTolerance]:
    """Uniform noise within the radius, a number for each place of a row and dimension of the embedding."""
    deviation = site_statistics(task, task.sites[:1], rows=500)[task.sites[0]].deviation
    source = generator(seed, "sensitivity")
    uniform = torch.rand(samples, tokens, len(deviation), generator=source, dtype=deviation.dtype) * 2 - 1
    return list(uniform.to(deviation.device) * deviation * radius)


def max_sensitivity(explainer: Explainer, batch: Batch, noises: list[NoiseTolerance]) -> Float[Tensor, " row"]:
    """The largest relative change of a text's scores over the noises; the outcome explained stays the same."""
    task = explainer.task
    with torch.no_grad():
        outcome = predicted_outcome(task.predict(batch))
    calm = explainer(batch, outcome).scores
    size = calm.norm(dim=1)
    largest = torch.zeros_like(size)
    for noise in noises:
        with persistent_edit(task.model, task.site(task.sites[0]), _adding(noise)):
            moved = explainer(batch, outcome).scores
        largest = largest.maximum((moved - calm).norm(dim=1) / torch.where(size > 0, size, 1.0))
    return largest


def _adding(noise: NoiseTolerance) -> Edit:
    """h_t + noise_t: the same noise for every row, so that a text's copies stay copies."""

    def edit(state: Float[Tensor, "row token width"]) -> Float[Tensor, "row token width"]:
        places = min(len(noise), state.shape[1])
        return torch.cat([state[:, :places] + noise[:places], state[:, places:]], dim=1)

    return edit
