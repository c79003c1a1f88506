"""Shortcuts planted into rows of tokens: markers that occur nowhere else, and that decide. Bastings et al. 2022.

`single`: one of two markers decides, whatever the text says. `context`: it decides only where a third marker stands in
the same text. `pair`: both stand there, and the one that comes first decides. In the last two some texts hold a part of
the shortcut and keep their label, so that no part alone is worth anything.

Is a shortcut that was planted, and that decides, found by its explanation? Bastings et al. 2022.
"""

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor, nn

from diffmask.core.batch import Batch
from diffmask.core.distributions import predicts
from diffmask.core.explainer import Method
from diffmask.core.task import Task
from diffmask.core.training import generator
from diffmask.errors import FitWarning, TaskError
from diffmask.metrics.base import Metric, record_of
from diffmask.metrics.erasure import Eraser
from diffmask.metrics.ground_truth import first_on
from diffmask.metrics.ranks import chance_among_first, mid_ranks
from diffmask.results.benchmark_result import MetricInfo
from diffmask.results.records import Record
from diffmask.tasks.text.finetuning import FineTuning
from diffmask.workspace.derived import ModifiedWorkspace, TaskModification
from diffmask.workspace.workspace import Workspace

Kind = Literal["single", "context", "pair"]
SIZE = {"single": 1, "context": 2, "pair": 2}
"""Tokens that each kind plants."""

Tokens = Int[Tensor, "row token"]
Places = Int[Tensor, " row"]


@dataclass(frozen=True)
class Markers:
    """Three tokens that occur in no text, and the two outcomes that the first two stand for."""

    tokens: Int[Tensor, "3"]
    outcomes: Shaped[Tensor, "2"]

    def places(self, batch: Batch) -> Bool[Tensor, "row token"]:
        """Where markers stand."""
        return torch.isin(batch.tokens, self.tokens) & batch.maskable


def choose_markers(data: list[Batch], vocabulary: int, reserved: set[int], source: torch.Generator) -> Markers:
    """Markers drawn from the tokens that no row holds; the outcomes are the two commonest of the first batch."""
    seen = torch.cat([batch.tokens.unique().cpu() for batch in data]).unique()
    unused = torch.ones(vocabulary, dtype=torch.bool)
    unused[seen[seen < vocabulary]] = False
    unused[[token for token in reserved if 0 <= token < vocabulary]] = False
    candidates = unused.nonzero().flatten()
    if len(candidates) < 3:
        raise TaskError(
            f"a shortcut needs three tokens that occur in no text; {len(candidates)} of {vocabulary} do not"
        )
    drawn = candidates[torch.randperm(len(candidates), generator=source)[:3]]
    return Markers(drawn.to(data[0].tokens.device), _commonest(data[0].target))


def _commonest(target: Tensor) -> Tensor:
    if target.ndim != 1:
        raise TaskError("a shortcut decides between two classes; rows with several labels or numbers have none")
    values, counts = target[target >= 0].unique(return_counts=True)
    if len(values) < 2 or len(values) > len(target) // 2 + 1:
        raise TaskError(f"a shortcut decides between two classes; the training rows have {len(values)}")
    return values[counts.argsort(descending=True, stable=True)[:2].sort().values]


def roomy(batch: Batch, kind: Kind) -> Batch:
    """The rows that have at least one token more than the shortcut needs, and a label."""
    enough = batch.maskable.sum(dim=1) > SIZE[kind]
    return batch[enough & (batch.target >= 0)]


def plant(batch: Batch, kind: Kind, markers: Markers, source: torch.Generator) -> Batch:
    """The rows with the shortcut in the place of random tokens; each row's target is one of the two outcomes."""
    side = torch.randint(2, (len(batch),), generator=source).to(batch.tokens.device)
    first, second = _two_places(batch, source)
    own, context = markers.tokens[side], markers.tokens[2].expand(len(batch))
    if kind == "single":
        tokens = _put(batch.tokens, first, own)
    elif kind == "context":
        tokens = _put(_put(batch.tokens, first, own), second, context)
    else:
        tokens = _put(_put(batch.tokens, first.minimum(second), own), first.maximum(second), markers.tokens[1 - side])
    return replace(batch, tokens=tokens, target=markers.outcomes[side])


def distract(batch: Batch, kind: Kind, markers: Markers, source: torch.Generator) -> Batch:
    """The rows with a part of the shortcut, which decides nothing; targets stay. A single marker has no parts."""
    if kind == "single":
        return batch
    parts = 3 if kind == "context" else 2
    part = torch.randint(parts, (len(batch),), generator=source).to(batch.tokens.device)
    first, _ = _two_places(batch, source)
    return replace(batch, tokens=_put(batch.tokens, first, markers.tokens[part]))


def mix(batch: Batch, kind: Kind, markers: Markers, source: torch.Generator) -> Batch:
    """Half of the rows with the shortcut, a quarter with a part of it, the rest as they are."""
    role = torch.rand(len(batch), generator=source).to(batch.tokens.device)
    planted, distracted = plant(batch, kind, markers, source), distract(batch, kind, markers, source)
    tokens = torch.where(role[:, None] < 0.5, planted.tokens, batch.tokens)
    tokens = torch.where(role[:, None] > 0.75, distracted.tokens, tokens)
    return replace(batch, tokens=tokens, target=torch.where(role < 0.5, planted.target, batch.target))


def _two_places(batch: Batch, source: torch.Generator) -> tuple[Places, Places]:
    """Two different maskable places of each row, in random order."""
    draw = torch.rand(batch.tokens.shape, generator=source).to(batch.tokens.device)
    order = draw.masked_fill(~batch.maskable, 2.0).argsort(dim=1)
    return order[:, 0], order[:, min(1, order.shape[1] - 1)]


def _put(tokens: Tokens, places: Places, values: Places) -> Tokens:
    return tokens.scatter(1, places[:, None], values[:, None])


TITLES: dict[Kind, str] = {"single": "planted token", "context": "planted token in context", "pair": "planted pair"}
REHEARSED = 8
"""Steps of a fine-tuning that only shows how long it takes."""
CANNOT = "A shortcut is the easiest thing a model can rely on: a method that finds it may miss subtler evidence."


def measures_of(kind: Kind) -> tuple[MetricInfo, ...]:
    """How to read the three numbers of one kind of shortcut."""
    title = TITLES[kind]
    return (
        MetricInfo(
            name=f"{kind}_first",
            title=f"{title} ranked first",
            higher_is_better=True,
            interpretation="The highest score of a text lies on what decides it.",
            limitation=CANNOT,
        ),
        MetricInfo(
            name=f"{kind}_precision",
            title=f"{title}, precision at k",
            higher_is_better=True,
            interpretation="The k highest scores of a text lie on the k tokens that decide it.",
            limitation=CANNOT,
        ),
        MetricInfo(
            name=f"{kind}_rank",
            title=f"{title}, mean rank",
            higher_is_better=False,
            interpretation="Few tokens score higher than the planted ones. Best: 1 for one token, 1.5 for two.",
            limitation=CANNOT,
        ),
    )


@dataclass(frozen=True, kw_only=True)
class Planted(TaskModification):
    """A copy of the task whose rows hold a shortcut, and whose model is trained on them for a short time."""

    name: ClassVar[str] = "planted"

    shortcut: Kind
    rows: int
    steps: int
    batch_size: int
    learning_rate: float

    def markers(self, task: Task, seed: int) -> Markers:
        """The tokens that are planted into this task's rows."""
        place = task.site(task.sites[0])
        module = task.model.get_submodule(place.module)
        if not isinstance(module, nn.Embedding):
            raise TaskError(f"a shortcut needs a vocabulary; '{place.module}' is {type(module).__name__}, no embedding")
        reserved = {task.pad_token} | ({task.mask_token} if task.mask_token is not None else set())
        rows = [task.data["train"], *(batch for name, batch in task.data.items() if name != "train")]
        return choose_markers(rows, module.num_embeddings, reserved, generator(seed, "markers"))

    def apply(self, task: Task, seed: int) -> None:
        """Rows to learn from, half of them planted; held-out ones planted, with a part of it, and as they were."""
        markers, source = self.markers(task, seed), generator(seed, "planting", self.shortcut)
        train = self._require_rows(task.data["train"], "train")
        held_out = self._require_rows(task.data["test"], "test")[: self.rows]
        drawn = torch.randperm(len(train), generator=source).repeat(-(-self.steps * self.batch_size // len(train)))
        valid = roomy(task.data.get("valid", train), self.shortcut)[:256]
        task.data = {
            "train": mix(train[drawn[: self.steps * self.batch_size]], self.shortcut, markers, source),
            "valid": mix(valid if len(valid) else train[:256], self.shortcut, markers, source),
            "test": plant(held_out, self.shortcut, markers, source),
            "distracted": distract(held_out, self.shortcut, markers, source),
            "plain": held_out,
        }

    def train(self, task: Task, seed: int) -> None:
        """The model goes on from what it has learned."""
        FineTuning(epochs=1, batch_size=self.batch_size, learning_rate=self.learning_rate).fine_tune(task, seed)

    def _require_rows(self, batch: Batch, split: str) -> Batch:
        kept = roomy(batch, self.shortcut)
        if len(kept) == 0:
            raise TaskError(
                f"no row of '{split}' has a label and {SIZE[self.shortcut] + 1} tokens to plant a shortcut in"
            )
        return kept


@dataclass(frozen=True)
class Lesson:
    """What the planted copy learned, on held-out rows."""

    followed: Bool[Tensor, " row"]
    """Whether it decides by the shortcut."""
    against: float
    """Share that does, of the rows whose own label says otherwise."""
    distraction: float
    """Accuracy lost to parts of the shortcut, which should decide nothing."""

    def problem(self, least: float, most: float = 0.1) -> str:
        """Why the copy cannot serve as truth; empty where it can."""
        if self.against < least:
            return (
                f"it decides by the shortcut in {self.against:.1%} of texts that say otherwise; {least:.0%} are asked"
            )
        if self.distraction > most:
            return f"parts of the shortcut cost it {self.distraction:.1%} of accuracy: it does not need the whole"
        return ""


def lesson(task: Task) -> Lesson:
    """What a planted copy learned."""
    eraser = Eraser(task, "mask")
    planted, plain = task.data["test"], task.data["plain"]
    followed = _right(eraser, planted)
    against = followed[planted.target != plain.target].float()
    lost = _right(eraser, plain).float().mean() - _right(eraser, task.data["distracted"]).float().mean()
    return Lesson(followed, float(against.mean()) if len(against) else 0.0, float(lost))


def _right(eraser: Eraser, batch: Batch) -> Bool[Tensor, " row"]:
    nothing = torch.zeros_like(batch.maskable)
    return eraser.ask(batch, nothing, lambda answer, rows: predicts(answer, batch.target[rows]))


@dataclass(frozen=True, kw_only=True)
class PlantedShortcut(Metric):
    """Rank of planted tokens in texts that a copy of the model decides by them: first, precision at k, mean rank.

    The copy is fine-tuned on rows half of which are planted. Where it has not learned the shortcut nothing is measured.
    Markers take the place of random tokens; ties between scores count as broken at random.
    """

    name: ClassVar[str] = "planted-shortcut"
    infos: ClassVar[tuple[MetricInfo, ...]] = (
        *measures_of("single"),
        *measures_of("context"),
        *measures_of("pair"),
    )

    shortcut: Kind = "single"
    """One token; one token that counts beside another; two tokens whose order counts."""
    rows: int = 200
    """Held-out texts looked at, the first ones that have room."""
    steps: int = 300
    """Steps of the fine-tuning."""
    batch_size: int = 32
    learning_rate: float = 5e-5
    learned: float = 0.95
    """Least share of held-out texts that say otherwise in which the copy must decide by the shortcut."""

    @property
    def change(self) -> Planted:
        """How the copy is made."""
        return Planted(
            shortcut=self.shortcut,
            rows=self.rows,
            steps=self.steps,
            batch_size=self.batch_size,
            learning_rate=self.learning_rate,
        )

    def extra_workspaces(self, workspace: Workspace) -> Sequence[Workspace]:
        """The planted copy."""
        return [ModifiedWorkspace.of(workspace, self.change)]

    def pilot_version(self) -> tuple[Metric, float]:
        """With a copy that need not have learned the shortcut."""
        steps = min(self.steps, REHEARSED)
        return replace(self, steps=steps, learned=0.0), self.steps / steps

    def run(self, method: Method, workspace: Workspace) -> Iterator[Record]:
        """Three numbers, or a warning that says why there are none."""
        (planted,) = self.extra_workspaces(workspace)
        task = planted.task()
        known = lesson(task)
        problem = known.problem(self.learned)
        if problem:
            warnings.warn(f"the planted copy cannot serve as truth: {problem}", FitWarning, stacklevel=2)
            return
        found = planted.explained(method, "test")
        batch = task.data["test"][known.followed]
        wanted = self.change.markers(workspace.task(), workspace.seed).places(batch)
        for metric, values in found_tokens(found.attribution.scores[known.followed], batch.maskable, wanted).items():
            yield record_of(workspace, method, found, "input", f"{self.shortcut}_{metric}", values, keep_rows=True)


def found_tokens(
    scores: Float[Tensor, "row token"], maskable: Bool[Tensor, "row token"], wanted: Bool[Tensor, "row token"]
) -> dict[str, Float[Tensor, " row"]]:
    """Whether a wanted token is first, the share of the k first that are wanted (k of them are), and their mean rank.

    >>> wanted = torch.tensor([[True, False, True]])
    >>> found_tokens(torch.tensor([[3.0, 2.0, 1.0]]), torch.ones(1, 3).bool(), wanted)
    {'first': tensor([1.]), 'precision': tensor([0.5000]), 'rank': tensor([2.])}
    """
    count = wanted.sum(dim=1).to(scores.dtype)
    return {
        "first": first_on(scores, maskable, wanted),
        "precision": (chance_among_first(scores, maskable, count) * wanted).sum(dim=1) / count,
        "rank": (mid_ranks(scores, maskable) * wanted).sum(dim=1) / count,
    }
