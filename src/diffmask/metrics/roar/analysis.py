"""What lies behind a ROAR curve: how sparse importances are, how many points a path needs, what masks alone tell.

Madsen et al. 2022, appendices C and E; leakage: Rong et al. 2022.

All that lies behind the ROAR curves of one model of words, one finding after the other.

Madsen et al. 2022, table 2, figure 1 and appendices C to E. Models, masks and importances are kept in the bench's store
and shared with a run that uses the same.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, fields, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import one_hot

from diffmask.core.batch import Batch, ranking
from diffmask.core.capabilities import Retrainable, require
from diffmask.core.explainer import Method
from diffmask.core.scores import accuracy_score
from diffmask.core.task import Task
from diffmask.core.training import generator
from diffmask.datasets.tokenizers import PAD
from diffmask.errors import InputError, TaskError, nearest
from diffmask.methods.gradients import IntegratedGradients
from diffmask.metrics.roar.masking import MasksBySplit, RoarProtocol, apply_masks, no_masks
from diffmask.metrics.roar.step import RoarStep
from diffmask.metrics.roar.synthetic import FEATURES, falls_after, masking_example, synthetic
from diffmask.report.roar import short_titles
from diffmask.report.tables import Cell, ResultTable
from diffmask.tasks.bilstm.task import BiLSTMClassification
from diffmask.workspace.workspace import Workspace

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
    task: Task, batch: Batch, points: Sequence[int], most: int = 100, method: IntegratedGradients | None = None
) -> list[RiemannError]:
    """How the scores and ranks settle as the path has more points."""
    chosen = method or IntegratedGradients(path="right")
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


def mask_position_leak(masks: MasksBySplit, data: Mapping[str, Batch], seed: int = 0, steps: int = 300) -> float:
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
    return accuracy_score((test @ weight).argmax(dim=1), data["test"].target.long())


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


def permuted_score(step: RoarStep) -> float:
    """The step's protocol on permuted classes: importances for classes that nothing explains, masks, a new model.

    Above the majority class, the masks themselves carry the class from the explained to the retrained model.
    """
    seed, task = step.workspace.seed, step.workspace.task()
    shuffled = require(task, Retrainable, "ROAR").retrain(permuted(task.data, seed), seed)
    explainer = step.method.fit(shuffled, seed)
    data, protocol = shuffled.data, step.protocol
    scores = {split: protocol.importance(explainer(batch, batch.target).scores) for split, batch in data.items()}
    masks = protocol.select_tokens(shuffled, data, scores, no_masks(data), step.k)
    masked = apply_masks(shuffled, data, masks)
    again = require(shuffled, Retrainable, "ROAR").retrain(masked, seed)
    return again.score(again.data["test"])


SHARES = (10, 20, 30, 40, 50, 60, 70, 80, 90)
POINTS = (2, 5, 10, 20, 50)
FINDINGS = ("data", "synthetic", "sparsity", "answers", "riemann", "lengths", "leaks")
"""By the names of their files, the cheap ones first."""


@dataclass(frozen=True)
class RoarAnalysis:
    """A model, the measures that explain it, and how much of the data is looked at."""

    workspace: Workspace
    methods: Sequence[Method]
    rows: int = 200
    """Validation rows whose importances are looked at."""
    k: int = 20
    """Percent of tokens masked where leaks are sought."""

    def findings(self, wanted: Sequence[str] = FINDINGS) -> Iterator[ResultTable]:
        """Each as soon as it is known, the cheap ones first; answers only where the evidence is known."""
        for name in wanted:
            if name not in FINDINGS:
                raise InputError(f"there is no finding '{name}'; {nearest(name, FINDINGS)}")
        known = "evidence" in self.task().data["test"].token_inputs
        for name in FINDINGS:
            if name in wanted and (known or name != "answers"):
                yield getattr(self, name)()

    def task(self) -> BiLSTMClassification:
        """The unmasked task."""
        found = self.workspace.task()
        if not isinstance(found, BiLSTMClassification):
            raise TaskError(f"{type(found).__name__} is not a task of words, which these analyses are of")
        return found

    def data(self) -> ResultTable:
        """Sizes, vocabulary, length, parameters and score."""
        task = self.task()
        lengths = task.data["train"].present.sum(dim=1).float()
        facts: list[tuple[str, Cell]] = [(f"{split} rows", len(batch)) for split, batch in task.data.items()]
        facts += [
            ("words in the vocabulary", len(task.vocabulary)),
            ("tokens in a training text, mean", float(lengths.mean())),
            ("parameters", sum(value.numel() for value in task.model.parameters())),
            (f"test {task.config.preset.metric}", task.score(task.data["test"])),
        ]
        return ResultTable(
            name="data", title="The data and the model", headings=(task.config.data, "value"), rows=tuple(facts)
        )

    def sparsity(self) -> ResultTable:
        """How much of all importance the most important tokens hold."""
        task, batch = self.task(), self._some()
        held = []
        for method in self.methods:
            scores = RoarStep(self.workspace, method, RoarProtocol(), 0).importances()["valid"][: len(batch)]
            held.append(
                sparsity(scores[:, : batch.tokens.shape[1]], task.roar_maskable(batch), [s / 100 for s in SHARES])
            )
        return self._by_share("sparsity", "Share of all importance that the most important tokens hold", held)

    def answers(self) -> ResultTable:
        """How often the word that is the answer, in the sentence it follows from, is masked.

        Models that answer equally well may attend to that word, or to another beside it: it depends on the seed.
        """
        task = self.task()
        test, numbers = task.data["test"], task.vocabulary.index_by_word()
        word = torch.tensor([numbers.get(name, PAD) for name in task.names])[test.target]
        answer = (test.tokens == word[:, None]) & test.token_inputs["evidence"].bool()
        found = []
        for method in self.methods:
            masks = [RoarStep(self.workspace, method, RoarProtocol(), share).masks()["test"] for share in SHARES]
            found.append([float((masked & answer).any(dim=1)[answer.any(dim=1)].double().mean()) for masked in masks])
        return self._by_share(
            "answers", "Share of the texts whose answer is masked, by the unmasked model's importances", found
        )

    def _by_share(self, name: str, says: str, found: Sequence[Sequence[float]]) -> ResultTable:
        """A curve a measure, over shares of the tokens."""
        names = self._names()
        rows = tuple(zip(SHARES, *found, strict=True))
        return ResultTable(name=name, title=says, headings=("% of tokens", *names), rows=rows, curves=names)

    def synthetic(self) -> ResultTable:
        """The problem on which ROAR is wrong and Recursive ROAR is right, whatever the model."""
        curves = synthetic()
        after = ", ".join(f"{name} {falls_after(scores)}" for name, scores in curves.items())
        return ResultTable(
            name="synthetic",
            title=f"16 features of which 4 tell: accuracy falls after {after}",
            headings=("features removed", *curves),
            rows=tuple(zip(range(FEATURES + 1), *curves.values(), strict=True)),
            curves=tuple(curves),
        )

    def riemann(self) -> ResultTable:
        """How many points a path of integrated gradients needs."""
        found = riemann(self.task(), self._some(), POINTS)
        return ResultTable(
            name="riemann",
            title="Integrated gradient with few points beside one with 100: tokens at another rank",
            headings=tuple(field.name.replace("_", " ") for field in fields(RiemannError)),
            rows=tuple(astuple(one) for one in found),
            curves=("moved", "moved at the top"),
        )

    def lengths(self) -> ResultTable:
        """Whether lengths, and questions, tell the class where every token is masked."""
        step = RoarStep(self.workspace, self.methods[0], RoarProtocol(), 100)
        rows = (("a model trained on masks", step.score().score), ("the most frequent class", self._majority()))
        return ResultTable(name="lengths", title="All tokens masked", headings=("who answers", "score"), rows=rows)

    def leaks(self) -> ResultTable:
        """Whether masks tell the class: to a classifier of their places, and on classes dealt out at random."""
        found = []
        for method, name in zip(self.methods, self._names(), strict=True):
            step = RoarStep(self.workspace, method, RoarProtocol(), self.k)
            places = mask_position_leak(step.masks(), self.task().data)
            found.append((name, places, permuted_score(step), self._majority()))
        return ResultTable(
            name="leaks",
            title=f"What the masks of {self.k} % of the tokens give away",
            headings=("measure", "their places alone", "permuted classes", "most frequent class"),
            rows=tuple(found),
        )

    def example(self, row: int = 0) -> str:
        """One text, its importances as shades, and what is masked; LaTeX."""
        return masking_example(RoarStep(self.workspace, self.methods[0], RoarProtocol(), 0), row)

    def _names(self) -> tuple[str, ...]:
        """The measures' names."""
        titles = short_titles(method.label for method in self.methods)
        return tuple(titles[method.label] for method in self.methods)

    def _some(self) -> Batch:
        return self.task().data["valid"][: self.rows].trim()

    def _majority(self) -> float:
        task, test = self.task(), self.task().data["test"]
        answers = majority(task.data["train"].target, len(test), len(task.names))
        return task.score_logits(answers, test.target)
