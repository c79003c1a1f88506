"""Infidelity and max-sensitivity of Yeh et al. 2019, definitions 2.1 and 3.1."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from diffmask.core.baseline_states import site_statistics
from diffmask.core.batch import Batch
from diffmask.core.distributions import Quantity, predicted_outcome, target_score
from diffmask.core.explainer import Explainer, Method
from diffmask.core.hooks import Edit, persistent_edit
from diffmask.core.task import Task
from diffmask.core.training import generator
from diffmask.errors import ConfigError
from diffmask.metrics.erasure import Eraser, Mode
from diffmask.metrics.metric import Metric, record_of
from diffmask.results.benchmark_result import MetricInfo
from diffmask.results.records import Record
from diffmask.workspace.workspace import Workspace


@dataclass(frozen=True, kw_only=True)
class Infidelity(Metric):
    """E_I[(sum of the scores in I - (f(x) - f(x without I)))^2] over random sets I of tokens.

    The scores of a text are multiplied by the number that fits best, because methods do not share a unit. A text whose
    prediction no set changes therefore scores 0.
    """

    name: ClassVar[str] = "infidelity"
    infos: ClassVar[tuple[MetricInfo, ...]] = (
        MetricInfo(
            name="infidelity",
            title="infidelity",
            higher_is_better=False,
            definition="mean squared error of the summed scores as a prediction of the effect of erasing random tokens",
            interpretation="The sum of the scores of a set of tokens equals the change of the prediction without them.",
            limitation="It assumes additive scores, which methods that only rank tokens do not promise. Texts with "
            "erased tokens may be out of distribution.",
        ),
    )

    split: str = "test"
    samples: int = 20
    """Sets drawn per text: a share from U(0, 1), then each token with that probability. All methods share the sets."""
    mode: Mode = "mask"
    quantity: Quantity = "probability"
    """Function f of the model's output."""
    scaled: bool = True
    """Whether the scores of each text are multiplied by the best-fitting number, as Captum's `normalize` does."""

    def __post_init__(self) -> None:
        if self.samples < 2:
            raise ConfigError(f"infidelity: samples is at least 2, a fit to one set is perfect; found {self.samples}")

    def run(self, method: Method, workspace: Workspace) -> Iterator[Record]:
        """Yield the mean infidelity."""
        explained_split = workspace.explained(method, self.split)
        batch, eraser = workspace.task().data[self.split], Eraser(workspace.task(), self.mode)
        sets = random_sets(batch, self.samples, workspace.seed)
        change = prediction_changes(eraser, batch, sets, self.quantity)
        predicted = (sets * explained_split.attribution.scores).sum(dim=2)
        values = infidelity(predicted, change.to(predicted.dtype), self.scaled)
        yield record_of(workspace, method, explained_split, "input", "infidelity", values, keep_rows=True)


def random_sets(batch: Batch, samples: int, seed: int) -> Bool[Tensor, "sample row token"]:
    """Draw random sets of maskable tokens of every size."""
    source = generator(seed, "infidelity")
    share = torch.rand(samples, len(batch), 1, generator=source)
    drawn = torch.rand(samples, *batch.tokens.shape, generator=source) < share
    return drawn.to(batch.maskable.device) & batch.maskable


def prediction_changes(
    eraser: Eraser, batch: Batch, sets: Bool[Tensor, "sample row token"], quantity: Quantity
) -> Float[Tensor, "sample row"]:
    """Compute f(x) - f(x without I), with f the quantity of the original decision."""
    outcome = eraser.decisions(batch)

    def value(erased: Bool[Tensor, "row token"]) -> Float[Tensor, " row"]:
        return eraser.map_erased(
            batch, erased, lambda prediction, rows: target_score(prediction, outcome[rows], quantity)
        )

    unmasked = value(torch.zeros_like(batch.maskable))
    return torch.stack([unmasked - value(erased) for erased in sets])


def infidelity(
    predicted: Float[Tensor, "sample row"], change: Float[Tensor, "sample row"], scaled: bool
) -> Float[Tensor, " row"]:
    """Compute the mean of (b * predicted - change)^2 over samples, with b = 1 or the b that minimises it.

    >>> infidelity(torch.tensor([[1.0], [2.0]]), torch.tensor([[3.0], [4.0]]), scaled=False)
    tensor([4.])
    """
    size = predicted.square().sum(dim=0)
    best = (predicted * change).sum(dim=0) / torch.where(size > 0, size, 1.0)
    factor = best if scaled else torch.ones_like(best)
    return (factor * predicted - change).square().mean(dim=0)


EmbeddingNoise = Float[Tensor, "token width"]


@dataclass(frozen=True, kw_only=True)
class MaxSensitivity(Metric):
    """max over d of ||scores(x + d) - scores(x)|| / ||scores(x)||, with small noise d on the token embeddings."""

    name: ClassVar[str] = "sensitivity"
    infos: ClassVar[tuple[MetricInfo, ...]] = (
        MetricInfo(
            name="max_sensitivity",
            title="sensitivity to noise",
            higher_is_better=False,
            definition="largest relative change of the scores under small noise on the token embeddings",
            interpretation="A change of the input too small to change the prediction hardly changes the scores.",
            limitation="Scores that ignore the model have the best value: a stable explanation can be wrong.",
        ),
    )

    split: str = "test"
    rows: int = 50
    """Number of texts, from the start of the split. Each is explained once per sample."""
    samples: int = 5
    """Number of noise samples. The largest change of the scores over the samples counts."""
    radius: float = 0.1
    """Largest noise per dimension of the embedding, in units of the standard deviation of that dimension."""

    def __post_init__(self) -> None:
        if self.rows < 1 or self.samples < 1:
            raise ConfigError(f"sensitivity: rows and samples are at least 1; found {self.rows} and {self.samples}")

    def run(self, method: Method, workspace: Workspace) -> Iterator[Record]:
        """Yield the mean sensitivity."""
        task, explainer = workspace.task(), workspace.explainer(method)
        batch = task.data[self.split][: self.rows].trim()
        noises = draw_noise(task, batch.tokens.shape[1], self.samples, self.radius, workspace.seed)
        values = max_sensitivity(explainer, batch, noises)
        explained_split = workspace.explained(method, self.split)
        yield record_of(workspace, method, explained_split, "input", "max_sensitivity", values, keep_rows=True)


def draw_noise(task: Task, tokens: int, samples: int, radius: float, seed: int) -> list[EmbeddingNoise]:
    """Draw uniform noise within the radius, one number per position and dimension of the embedding."""
    deviation = site_statistics(task, task.sites[:1], rows=500)[task.sites[0]].deviation
    source = generator(seed, "sensitivity")
    uniform = torch.rand(samples, tokens, len(deviation), generator=source, dtype=deviation.dtype) * 2 - 1
    return list(uniform.to(deviation.device) * deviation * radius)


def max_sensitivity(explainer: Explainer, batch: Batch, noises: list[EmbeddingNoise]) -> Float[Tensor, " row"]:
    """Compute the largest relative change of the scores over the noise samples; the explained outcome stays fixed."""
    task = explainer.task
    with torch.no_grad():
        outcome = predicted_outcome(task.predict(batch))
    original = explainer(batch, outcome).scores
    size = original.norm(dim=1)
    largest = torch.zeros_like(size)
    for noise in noises:
        with persistent_edit(task.model, task.site(task.sites[0]), _add(noise)):
            noisy = explainer(batch, outcome).scores
        largest = largest.maximum((noisy - original).norm(dim=1) / torch.where(size > 0, size, 1.0))
    return largest


def _add(noise: EmbeddingNoise) -> Edit:
    """Return the edit h_t + noise_t. All rows share the noise, so that copies of a text stay equal."""

    def edit(state: Float[Tensor, "row token width"]) -> Float[Tensor, "row token width"]:
        length = min(len(noise), state.shape[1])
        return torch.cat([state[:, :length] + noise[:length], state[:, length:]], dim=1)

    return edit
