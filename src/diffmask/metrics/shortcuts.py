"""Rank of planted shortcuts: marker tokens that determine the label of a fine-tuned copy (Bastings et al. 2022).

`single`: one of two markers determines the label. `context`: it does so only if a third marker is in the same text.
`pair`: both markers are in the text, and the first one determines the label. In the last two kinds some texts contain
a part of the shortcut and keep their label, so that a part alone carries no information.
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
from diffmask.metrics.erasure import Eraser
from diffmask.metrics.ground_truth import top_token_probability
from diffmask.metrics.metric import Metric, record_of
from diffmask.metrics.ranks import mid_ranks, top_k_probability
from diffmask.results.benchmark_result import MetricInfo
from diffmask.results.records import Record
from diffmask.tasks.text.finetuning import FineTuning
from diffmask.workspace.derived import ModifiedWorkspace, TaskModification
from diffmask.workspace.workspace import Workspace

Kind = Literal["single", "context", "pair"]
SIZE = {"single": 1, "context": 2, "pair": 2}
"""Number of tokens that each kind plants."""

Tokens = Int[Tensor, "row token"]
Positions = Int[Tensor, " row"]


@dataclass(frozen=True)
class Markers:
    """Three tokens that occur in no text, and the two labels that the first two determine."""

    tokens: Int[Tensor, "3"]
    outcomes: Shaped[Tensor, "2"]

    def locate(self, batch: Batch) -> Bool[Tensor, "row token"]:
        """Mark the tokens that are markers."""
        return torch.isin(batch.tokens, self.tokens) & batch.maskable


def choose_markers(data: list[Batch], vocabulary: int, reserved: set[int], source: torch.Generator) -> Markers:
    """Draw markers from the tokens that occur in no row; the labels are the two most frequent of the first batch."""
    seen = torch.cat([batch.tokens.unique().cpu() for batch in data]).unique()
    unused = torch.ones(vocabulary, dtype=torch.bool)
    unused[seen[seen < vocabulary]] = False
    unused[[token for token in reserved if 0 <= token < vocabulary]] = False
    candidates = unused.nonzero().flatten()
    if len(candidates) < 3:
        raise TaskError(
            f"a shortcut needs three tokens that occur in no text; {len(candidates)} of {vocabulary} are unused"
        )
    drawn = candidates[torch.randperm(len(candidates), generator=source)[:3]]
    return Markers(drawn.to(data[0].tokens.device), _most_frequent(data[0].target))


def _most_frequent(target: Tensor) -> Tensor:
    if target.ndim != 1:
        raise TaskError("a shortcut needs two classes; these rows have several labels or numbers")
    values, counts = target[target >= 0].unique(return_counts=True)
    if len(values) < 2 or len(values) > len(target) // 2 + 1:
        raise TaskError(f"a shortcut needs two classes; the training rows have {len(values)}")
    return values[counts.argsort(descending=True, stable=True)[:2].sort().values]


def select_plantable(batch: Batch, kind: Kind) -> Batch:
    """Return the rows with a label and at least one token more than the shortcut has."""
    is_long = batch.maskable.sum(dim=1) > SIZE[kind]
    return batch[is_long & (batch.target >= 0)]


def plant(batch: Batch, kind: Kind, markers: Markers, source: torch.Generator) -> Batch:
    """Replace random tokens of each row by the shortcut and its target by the label of the shortcut."""
    side = torch.randint(2, (len(batch),), generator=source).to(batch.tokens.device)
    first, second = _draw_two_positions(batch, source)
    marker, context = markers.tokens[side], markers.tokens[2].expand(len(batch))
    if kind == "single":
        tokens = _replace_tokens(batch.tokens, first, marker)
    elif kind == "context":
        tokens = _replace_tokens(_replace_tokens(batch.tokens, first, marker), second, context)
    else:
        tokens = _replace_tokens(batch.tokens, first.minimum(second), marker)
        tokens = _replace_tokens(tokens, first.maximum(second), markers.tokens[1 - side])
    return replace(batch, tokens=tokens, target=markers.outcomes[side])


def plant_distractor(batch: Batch, kind: Kind, markers: Markers, source: torch.Generator) -> Batch:
    """Replace a random token of each row by a part of the shortcut, if it has parts, and keep the targets."""
    if kind == "single":
        return batch
    choices = 3 if kind == "context" else 2
    chosen = torch.randint(choices, (len(batch),), generator=source).to(batch.tokens.device)
    position, _ = _draw_two_positions(batch, source)
    return replace(batch, tokens=_replace_tokens(batch.tokens, position, markers.tokens[chosen]))


def plant_training_mix(batch: Batch, kind: Kind, markers: Markers, source: torch.Generator) -> Batch:
    """Plant the shortcut in half of the rows and a part of it in a quarter; the rest is unchanged."""
    role = torch.rand(len(batch), generator=source).to(batch.tokens.device)
    planted = plant(batch, kind, markers, source)
    distracted = plant_distractor(batch, kind, markers, source)
    tokens = torch.where(role[:, None] < 0.5, planted.tokens, batch.tokens)
    tokens = torch.where(role[:, None] > 0.75, distracted.tokens, tokens)
    return replace(batch, tokens=tokens, target=torch.where(role < 0.5, planted.target, batch.target))


def _draw_two_positions(batch: Batch, source: torch.Generator) -> tuple[Positions, Positions]:
    """Draw two different maskable positions of each row, in random order."""
    draw = torch.rand(batch.tokens.shape, generator=source).to(batch.tokens.device)
    order = draw.masked_fill(~batch.maskable, 2.0).argsort(dim=1)
    return order[:, 0], order[:, min(1, order.shape[1] - 1)]


def _replace_tokens(tokens: Tokens, positions: Positions, values: Positions) -> Tokens:
    return tokens.scatter(1, positions[:, None], values[:, None])


TITLES: dict[Kind, str] = {"single": "planted token", "context": "planted token in context", "pair": "planted pair"}
PILOT_STEPS = 8
"""Steps of a fine-tuning that only measures its duration."""
SHORTCUT_LIMITATION = "A shortcut is easy evidence: a method that finds it may miss other evidence."


def shortcut_infos(kind: Kind) -> tuple[MetricInfo, ...]:
    """Return the descriptions of the three numbers of one kind of shortcut."""
    title = TITLES[kind]
    return (
        MetricInfo(
            name=f"{kind}_first",
            title=f"{title} ranked first",
            higher_is_better=True,
            definition="share of texts in which a planted token that determines the label has the highest score",
            interpretation="The token with the highest score is a planted one.",
            limitation=SHORTCUT_LIMITATION,
        ),
        MetricInfo(
            name=f"{kind}_precision",
            title=f"{title}, precision at k",
            higher_is_better=True,
            definition="share of planted tokens among the k highest-scoring ones, k being their number",
            interpretation="The k tokens with the highest scores are the k planted ones.",
            limitation=SHORTCUT_LIMITATION,
        ),
        MetricInfo(
            name=f"{kind}_rank",
            title=f"{title}, mean rank",
            higher_is_better=False,
            definition="mean rank of the planted tokens that determine the label",
            interpretation="Few tokens score higher than the planted ones. Best: 1 for one token, 1.5 for two.",
            limitation=SHORTCUT_LIMITATION,
        ),
    )


@dataclass(frozen=True, kw_only=True)
class PlantedRows(TaskModification):
    """Plants a shortcut into the rows of a task and fine-tunes the model on them."""

    name: ClassVar[str] = "planted"

    shortcut: Kind
    rows: int
    steps: int
    batch_size: int
    learning_rate: float

    def markers(self, task: Task, seed: int) -> Markers:
        """Choose the tokens that are planted into the rows of the task."""
        site = task.site(task.sites[0])
        module = task.model.get_submodule(site.module)
        if not isinstance(module, nn.Embedding):
            raise TaskError(f"a shortcut needs a vocabulary; '{site.module}' is {type(module).__name__}, no embedding")
        reserved = {task.pad_token} | ({task.mask_token} if task.mask_token is not None else set())
        rows = [task.data["train"], *(batch for name, batch in task.data.items() if name != "train")]
        return choose_markers(rows, module.num_embeddings, reserved, generator(seed, "markers"))

    def apply(self, task: Task, seed: int) -> None:
        """Replace the data: planted training rows, and held-out rows with the shortcut, a part of it, or nothing."""
        markers, source = self.markers(task, seed), generator(seed, "planting", self.shortcut)
        train = self._require_rows(task.data["train"], "train")
        held_out = self._require_rows(task.data["test"], "test")[: self.rows]
        drawn = torch.randperm(len(train), generator=source).repeat(-(-self.steps * self.batch_size // len(train)))
        valid = select_plantable(task.data.get("valid", train), self.shortcut)[:256]
        task.data = {
            "train": plant_training_mix(train[drawn[: self.steps * self.batch_size]], self.shortcut, markers, source),
            "valid": plant_training_mix(valid if len(valid) else train[:256], self.shortcut, markers, source),
            "test": plant(held_out, self.shortcut, markers, source),
            "distracted": plant_distractor(held_out, self.shortcut, markers, source),
            "plain": held_out,
        }

    def train(self, task: Task, seed: int) -> None:
        """Fine-tune the model for one epoch."""
        FineTuning(epochs=1, batch_size=self.batch_size, learning_rate=self.learning_rate).fine_tune(task, seed)

    def _require_rows(self, batch: Batch, split: str) -> Batch:
        rows = select_plantable(batch, self.shortcut)
        if len(rows) == 0:
            raise TaskError(
                f"no row of '{split}' has a label and {SIZE[self.shortcut] + 1} tokens to plant a shortcut in"
            )
        return rows


@dataclass(frozen=True)
class ShortcutUse:
    """Use of the planted shortcut by the fine-tuned copy, on held-out rows."""

    followed: Bool[Tensor, " row"]
    """Whether the prediction is the label of the shortcut."""
    against_label: float
    """Share of such predictions among rows whose original label differs."""
    distraction: float
    """Accuracy lost to parts of the shortcut, which should not matter."""

    def problem(self, min_share: float, max_distraction: float = 0.1) -> str:
        """Return the reason why the copy has no known ground truth, or an empty string."""
        if self.against_label < min_share:
            return (
                f"it follows the shortcut in {self.against_label:.1%} of the texts with another label; "
                f"at least {min_share:.0%} are required"
            )
        if self.distraction > max_distraction:
            return f"parts of the shortcut cost it {self.distraction:.1%} of accuracy, so it does not need the whole"
        return ""


def measure_shortcut_use(task: Task) -> ShortcutUse:
    """Measure how often a planted copy follows the shortcut."""
    eraser = Eraser(task, "mask")
    planted, plain = task.data["test"], task.data["plain"]
    followed = _is_correct(eraser, planted)
    against_label = followed[planted.target != plain.target].float()
    loss = _is_correct(eraser, plain).float().mean() - _is_correct(eraser, task.data["distracted"]).float().mean()
    return ShortcutUse(followed, float(against_label.mean()) if len(against_label) else 0.0, float(loss))


def _is_correct(eraser: Eraser, batch: Batch) -> Bool[Tensor, " row"]:
    nothing = torch.zeros_like(batch.maskable)
    return eraser.map_erased(batch, nothing, lambda prediction, rows: predicts(prediction, batch.target[rows]))


@dataclass(frozen=True, kw_only=True)
class PlantedShortcut(Metric):
    """Rank of planted tokens for a copy of the model that follows them: top token, precision at k, mean rank.

    The copy is fine-tuned on rows half of which are planted. If it has not learned the shortcut, nothing is measured.
    Markers replace random tokens. Ties between scores count as broken at random.
    """

    name: ClassVar[str] = "planted-shortcut"
    infos: ClassVar[tuple[MetricInfo, ...]] = (
        *shortcut_infos("single"),
        *shortcut_infos("context"),
        *shortcut_infos("pair"),
    )

    shortcut: Kind = "single"
    """One token, one token that counts only together with another, or two tokens whose order counts."""
    rows: int = 200
    """Number of held-out texts, from the start of the split."""
    steps: int = 300
    """Steps of the fine-tuning."""
    batch_size: int = 32
    learning_rate: float = 5e-5
    learned: float = 0.95
    """Smallest share of held-out texts with another label in which the copy must follow the shortcut."""

    @property
    def modification(self) -> PlantedRows:
        """Config of the planted copy."""
        return PlantedRows(
            shortcut=self.shortcut,
            rows=self.rows,
            steps=self.steps,
            batch_size=self.batch_size,
            learning_rate=self.learning_rate,
        )

    def extra_workspaces(self, workspace: Workspace) -> Sequence[Workspace]:
        """Return the workspace of the planted copy."""
        return [ModifiedWorkspace.of(workspace, self.modification)]

    def pilot_version(self) -> tuple[Metric, float]:
        """Return a version with a short fine-tuning that need not learn the shortcut."""
        steps = min(self.steps, PILOT_STEPS)
        return replace(self, steps=steps, learned=0.0), self.steps / steps

    def run(self, method: Method, workspace: Workspace) -> Iterator[Record]:
        """Yield three numbers, or warn if the copy has not learned the shortcut."""
        (planted,) = self.extra_workspaces(workspace)
        task = planted.task()
        use = measure_shortcut_use(task)
        problem = use.problem(self.learned)
        if problem:
            warnings.warn(
                f"planted-shortcut: the planted copy has no known ground truth: {problem}", FitWarning, stacklevel=2
            )
            return
        explained = planted.explained(method, "test")
        batch = task.data["test"][use.followed]
        marked = self.modification.markers(workspace.task(), workspace.seed).locate(batch)
        for metric, values in rank_marked(explained.attribution.scores[use.followed], batch.maskable, marked).items():
            yield record_of(workspace, method, explained, "input", f"{self.shortcut}_{metric}", values, keep_rows=True)


def rank_marked(
    scores: Float[Tensor, "row token"], maskable: Bool[Tensor, "row token"], marked: Bool[Tensor, "row token"]
) -> dict[str, Float[Tensor, " row"]]:
    """Compute whether the top token is marked, the share of marked tokens among the top k, and their mean rank.

    k is the number of marked tokens.

    >>> marked = torch.tensor([[True, False, True]])
    >>> rank_marked(torch.tensor([[3.0, 2.0, 1.0]]), torch.ones(1, 3).bool(), marked)
    {'first': tensor([1.]), 'precision': tensor([0.5000]), 'rank': tensor([2.])}
    """
    count = marked.sum(dim=1).to(scores.dtype)
    return {
        "first": top_token_probability(scores, maskable, marked),
        "precision": (top_k_probability(scores, maskable, count) * marked).sum(dim=1) / count,
        "rank": (mid_ranks(scores, maskable) * marked).sum(dim=1) / count,
    }
