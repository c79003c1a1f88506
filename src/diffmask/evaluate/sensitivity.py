"""How far do the scores move when the embedded text moves a little? Yeh et al. 2019, definition 3.1."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from diffmask.answer import decision
from diffmask.batch import Batch
from diffmask.bench import Bench
from diffmask.board import Measure
from diffmask.errors import RecipeError
from diffmask.evaluation import Evaluation, record_of
from diffmask.explainer import Explainer, Method
from diffmask.hooks import Edit, disturbing
from diffmask.probe import site_statistics
from diffmask.record import Record
from diffmask.task import Task
from diffmask.training import generator

Noise = Float[Tensor, "token width"]


@dataclass(frozen=True, kw_only=True)
class MaxSensitivity(Evaluation):
    """max over d of ||scores(x + d) - scores(x)|| / ||scores(x)||, d small and added to the token embeddings."""

    name: ClassVar[str] = "sensitivity"
    measures: ClassVar[tuple[Measure, ...]] = (
        Measure(
            name="max_sensitivity",
            title="sensitivity to noise",
            better="lower",
            says="A change too small to matter to the model hardly moves the scores.",
            cannot_say="Scores that ignore the model are perfectly calm; a calm explanation need not be a right one.",
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
            raise RecipeError(f"sensitivity: rows and samples are at least 1; found {self.rows} and {self.samples}")

    def run(self, method: Method, bench: Bench) -> Iterator[Record]:
        """One number."""
        task, explainer = bench.task(), bench.explainer(method)
        batch = task.data[self.split][: self.rows].trim()
        noises = draw(task, batch.tokens.shape[1], self.samples, self.radius, bench.seed)
        values = max_sensitivity(explainer, batch, noises)
        found = bench.explained(method, self.split)
        yield record_of(bench, method, found, "input", "max_sensitivity", values, keep_rows=True)


def draw(task: Task, tokens: int, samples: int, radius: float, seed: int) -> list[Noise]:
    """Uniform noise within the radius, a number for each place of a row and dimension of the embedding."""
    deviation = site_statistics(task, task.sites[:1], rows=500)[task.sites[0]].deviation
    source = generator(seed, "sensitivity")
    uniform = torch.rand(samples, tokens, len(deviation), generator=source, dtype=deviation.dtype) * 2 - 1
    return list(uniform.to(deviation.device) * deviation * radius)


def max_sensitivity(explainer: Explainer, batch: Batch, noises: list[Noise]) -> Float[Tensor, " row"]:
    """The largest relative change of a text's scores over the noises; the outcome explained stays the same."""
    task = explainer.task
    with torch.no_grad():
        outcome = decision(task.predict(batch))
    calm = explainer(batch, outcome).scores
    size = calm.norm(dim=1)
    largest = torch.zeros_like(size)
    for noise in noises:
        with disturbing(task.model, task.place(task.sites[0]), _adding(noise)):
            moved = explainer(batch, outcome).scores
        largest = largest.maximum((moved - calm).norm(dim=1) / torch.where(size > 0, size, 1.0))
    return largest


def _adding(noise: Noise) -> Edit:
    """h_t + noise_t: the same noise for every row, so that a text's copies stay copies."""

    def edit(state: Float[Tensor, "row token width"]) -> Float[Tensor, "row token width"]:
        places = min(len(noise), state.shape[1])
        return torch.cat([state[:, :places] + noise[:places], state[:, places:]], dim=1)

    return edit
