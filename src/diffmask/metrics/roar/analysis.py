"""Analyses of a ROAR curve: data, sparsity of the scores, integration points, and leakage of labels through masks.

Madsen et al. 2022, table 2, figure 1 and appendices C to E; leakage: Rong et al. 2022. Models, masks and scores are in
the workspace's store and shared with a run that uses the same.
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
from diffmask.metrics.roar.synthetic import FEATURES, falls_after, masking_example, synthetic_curves
from diffmask.report.result_tables import Cell, ResultTable
from diffmask.report.roar_curves import short_titles
from diffmask.tasks.bilstm.bilstm_task import BiLSTMClassification
from diffmask.workspace.workspace import Workspace

Scores = Float[Tensor, "row token"]


def sparsity(scores: Scores, maskable: Bool[Tensor, "row token"], shares: Sequence[float]) -> list[float]:
    """Compute the mean share of a row's absolute scores on its top tokens, for each share of the tokens.

    >>> sparsity(torch.tensor([[3.0, 1.0]]), torch.ones(1, 2, dtype=torch.bool), [0.5, 1.0])
    [0.75, 1.0]
    """
    size = scores.abs().masked_fill(~maskable, 0.0)
    total = size.sum(dim=1, keepdim=True).clamp(min=1e-30)
    cumulative = (size.sort(dim=1, descending=True).values / total).cumsum(dim=1)
    n = maskable.sum(dim=1)
    result = []
    for share in shares:
        last = (n * share).ceil().long().clamp(min=1) - 1
        result.append(float(cumulative.gather(1, last[:, None])[n > 0].mean()))
    return result


@dataclass(frozen=True)
class RiemannError:
    """Difference between integrated gradients with few and with many integration points."""

    points: int
    error: float
    """Mean absolute difference of the scores."""
    moved: float
    """Share of tokens with another rank."""
    moved_at_the_top: float
    """Share of the top tenth of the tokens with another rank."""
    seconds: float


def riemann(
    task: Task, batch: Batch, points: Sequence[int], most: int = 100, method: IntegratedGradients | None = None
) -> list[RiemannError]:
    """Measure how scores and ranks converge with the number of integration points."""
    base = method or IntegratedGradients(path="right")
    reference = replace(base, n_steps=most).fit(task)(batch, batch.target).scores
    best = ranking(reference, batch.maskable)
    n = batch.maskable.sum(dim=1, keepdim=True)
    position = torch.arange(batch.tokens.shape[1])
    errors = []
    for number in points:
        explainer = replace(base, n_steps=number).fit(task)
        scores = explainer(batch, batch.target).scores
        moved = ranking(scores, batch.maskable) != best
        errors.append(
            RiemannError(
                points=number,
                error=float((scores - reference).abs()[batch.maskable].mean()),
                moved=float(moved[position < n].float().mean()),
                moved_at_the_top=float(moved[position < (n + 9) // 10].float().mean()),
                seconds=explainer.cost.seconds,
            )
        )
    return errors


def majority(train: Int[Tensor, " text"], rows: int, classes: int) -> Float[Tensor, "row class"]:
    """Return the predictions of the most frequent training class, as one-hot rows.

    >>> majority(torch.tensor([1, 0, 1]), rows=2, classes=3).tolist()
    [[0.0, 1.0, 0.0], [0.0, 1.0, 0.0]]
    """
    return one_hot(train.mode().values, classes).float().expand(rows, -1)


def mask_position_leak(masks: MasksBySplit, data: Mapping[str, Batch], seed: int = 0, steps: int = 300) -> float:
    """Compute the test accuracy of a linear classifier that sees the mask positions and the length, but no words.

    If it is above the most frequent class, a retrained model can also learn labels from the masks.
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
    """Compute the share of masked tokens between two relative positions of the text."""
    where = torch.arange(masked.shape[1]) / length
    inside = (where >= low) & (where < high)
    return (masked & inside).sum(dim=1) / inside.sum(dim=1).clamp(min=1)


def permuted(data: Mapping[str, Batch], seed: int = 0) -> dict[str, Batch]:
    """Permute the labels of each split: a model that learns them has learned from leakage or by chance."""
    data_permuted = {}
    for split, batch in data.items():
        order = torch.randperm(len(batch), generator=generator(seed, "permuted labels", split))
        data_permuted[split] = replace(batch, target=batch.target[order])
    return data_permuted


def permuted_score(step: RoarStep) -> float:
    """Run a step's protocol on permuted labels: train, explain, mask, train again; return the test score.

    If it is above the most frequent class, the masks leak labels from the explained to the retrained model.
    """
    seed, task = step.workspace.seed, step.workspace.task()
    shuffled = require(task, Retrainable, "ROAR").retrain(permuted(task.data, seed), seed)
    explainer = step.method.fit(shuffled, seed, keep_interrupted=False)
    data, protocol = shuffled.data, step.protocol
    scores = {split: protocol.importance(explainer(batch, batch.target).scores) for split, batch in data.items()}
    masks = protocol.select_tokens(shuffled, data, scores, no_masks(data), step.k)
    masked = apply_masks(shuffled, data, masks)
    again = require(shuffled, Retrainable, "ROAR").retrain(masked, seed)
    return again.score(again.data["test"])


SHARES = (10, 20, 30, 40, 50, 60, 70, 80, 90)
POINTS = (2, 5, 10, 20, 50)
ANALYSES = ("data", "synthetic", "sparsity", "answers", "riemann", "lengths", "leaks")
"""Names of the analyses and of their files, the cheapest first."""


@dataclass(frozen=True)
class RoarAnalysis:
    """Analyses of one model of words and the methods that explain it."""

    workspace: Workspace
    methods: Sequence[Method]
    rows: int = 200
    """Number of validation rows whose scores are analysed."""
    k: int = 20
    """Percentage of tokens masked in the leakage analysis."""

    def tables(self, names: Sequence[str] = ANALYSES) -> Iterator[ResultTable]:
        """Yield the result of each analysis, the cheapest first. `answers` needs known evidence."""
        for name in names:
            if name not in ANALYSES:
                raise InputError(f"there is no analysis '{name}'; {nearest(name, ANALYSES)}")
        known = "evidence" in self.task().data["test"].token_inputs
        for name in ANALYSES:
            if name in names and (known or name != "answers"):
                yield getattr(self, name)()

    def task(self) -> BiLSTMClassification:
        """Return the unmasked task."""
        task = self.workspace.task()
        if not isinstance(task, BiLSTMClassification):
            raise TaskError(f"{type(task).__name__} is not a BiLSTM task, which these analyses need")
        return task

    def data(self) -> ResultTable:
        """Tabulate sizes, vocabulary, length, parameters and score."""
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
        """Tabulate the share of the absolute scores on the top tokens."""
        task, batch = self.task(), self._validation_rows()
        shares = []
        for method in self.methods:
            scores = RoarStep(self.workspace, method, RoarProtocol(), 0).importances()["valid"][: len(batch)]
            shares.append(
                sparsity(scores[:, : batch.tokens.shape[1]], task.roar_maskable(batch), [s / 100 for s in SHARES])
            )
        return self._by_share("sparsity", "Share of the absolute scores on the top tokens", shares)

    def answers(self) -> ResultTable:
        """Tabulate how often the answer's own word in the supporting sentence is masked.

        Models with the same score may attend to that word or to another one, depending on the seed.
        """
        task = self.task()
        test, numbers = task.data["test"], task.vocabulary.index_by_word()
        word = torch.tensor([numbers.get(name, PAD) for name in task.names])[test.target]
        answer = (test.tokens == word[:, None]) & test.token_inputs["evidence"].bool()
        curves = []
        for method in self.methods:
            masks = [RoarStep(self.workspace, method, RoarProtocol(), share).masks()["test"] for share in SHARES]
            curves.append([float((masked & answer).any(dim=1)[answer.any(dim=1)].double().mean()) for masked in masks])
        return self._by_share(
            "answers", "Share of texts whose answer is masked by the scores for the unmasked model", curves
        )

    def _by_share(self, name: str, title: str, curves: Sequence[Sequence[float]]) -> ResultTable:
        """Tabulate one curve per method over shares of the tokens."""
        names = self._names()
        rows = tuple(zip(SHARES, *curves, strict=True))
        return ResultTable(name=name, title=title, headings=("% of tokens", *names), rows=rows, curves=names)

    def synthetic(self) -> ResultTable:
        """Tabulate the synthetic problem on which ROAR is wrong and Recursive ROAR is right."""
        curves = synthetic_curves()
        after = ", ".join(f"{name} {falls_after(scores)}" for name, scores in curves.items())
        return ResultTable(
            name="synthetic",
            title=f"16 features, 4 of them informative: accuracy falls after {after}",
            headings=("features removed", *curves),
            rows=tuple(zip(range(FEATURES + 1), *curves.values(), strict=True)),
            curves=tuple(curves),
        )

    def riemann(self) -> ResultTable:
        """Tabulate the error of integrated gradients by number of integration points."""
        errors = riemann(self.task(), self._validation_rows(), POINTS)
        return ResultTable(
            name="riemann",
            title="Integrated gradients with few points against 100 points: tokens with another rank",
            headings=tuple(field.name.replace("_", " ") for field in fields(RiemannError)),
            rows=tuple(astuple(error) for error in errors),
            curves=("moved", "moved at the top"),
        )

    def lengths(self) -> ResultTable:
        """Tabulate whether lengths and questions give away the label if every token is masked."""
        step = RoarStep(self.workspace, self.methods[0], RoarProtocol(), 100)
        rows = (("model trained on masks", step.score().score), ("most frequent class", self._majority()))
        return ResultTable(name="lengths", title="All tokens masked", headings=("prediction by", "score"), rows=rows)

    def leaks(self) -> ResultTable:
        """Tabulate whether masks give away the label: to a classifier of their positions, and with permuted labels."""
        rows = []
        for method, name in zip(self.methods, self._names(), strict=True):
            step = RoarStep(self.workspace, method, RoarProtocol(), self.k)
            by_position = mask_position_leak(step.masks(), self.task().data)
            rows.append((name, by_position, permuted_score(step), self._majority()))
        return ResultTable(
            name="leaks",
            title=f"Leakage of labels through the masks of {self.k} % of the tokens",
            headings=("method", "mask positions only", "permuted labels", "most frequent class"),
            rows=tuple(rows),
        )

    def example(self, row: int = 0) -> str:
        """Return one text in LaTeX with its scores as shades and its masked tokens."""
        return masking_example(RoarStep(self.workspace, self.methods[0], RoarProtocol(), 0), row)

    def _names(self) -> tuple[str, ...]:
        """Return the titles of the methods."""
        titles = short_titles(method.label for method in self.methods)
        return tuple(titles[method.label] for method in self.methods)

    def _validation_rows(self) -> Batch:
        return self.task().data["valid"][: self.rows].trim()

    def _majority(self) -> float:
        task, test = self.task(), self.task().data["test"]
        answers = majority(task.data["train"].target, len(test), len(task.names))
        return task.score_logits(answers, test.target)
