"""All that lies behind the ROAR curves of one model of words, one finding after the other.

Madsen et al. 2022, table 2, figure 1 and appendices C to E. Models, masks and importances are kept in the bench's store
and shared with a run that uses the same.
"""

from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass, fields

import torch

from diffmask.batch import Batch
from diffmask.bench import Bench
from diffmask.data.worded import PAD
from diffmask.errors import InputError, TaskError, nearest
from diffmask.explainer import Method
from diffmask.report.finding import Cell, Finding
from diffmask.report.roar_curves import titles_of
from diffmask.roar.analyses import RiemannError, majority, mask_position_leak, permuted_score, riemann, sparsity
from diffmask.roar.example import masking_example
from diffmask.roar.steps import Protocol, Step
from diffmask.roar.synthetic import FEATURES, falls_after, synthetic
from diffmask.tasks.words import WordClassification

SHARES = (10, 20, 30, 40, 50, 60, 70, 80, 90)
POINTS = (2, 5, 10, 20, 50)
FINDINGS = ("data", "synthetic", "sparsity", "answers", "riemann", "lengths", "leaks")
"""By the names of their files, the cheap ones first."""


@dataclass(frozen=True)
class Behind:
    """A model, the measures that explain it, and how much of the data is looked at."""

    bench: Bench
    methods: Sequence[Method]
    rows: int = 200
    """Validation rows whose importances are looked at."""
    k: int = 20
    """Percent of tokens masked where leaks are sought."""

    def findings(self, wanted: Sequence[str] = FINDINGS) -> Iterator[Finding]:
        """Each as soon as it is known, the cheap ones first; answers only where the evidence is known."""
        for name in wanted:
            if name not in FINDINGS:
                raise InputError(f"there is no finding '{name}'; {nearest(name, FINDINGS)}")
        known = "evidence" in self.task().data["test"].token_inputs
        for name in FINDINGS:
            if name in wanted and (known or name != "answers"):
                yield getattr(self, name)()

    def task(self) -> WordClassification:
        """The unmasked task."""
        found = self.bench.task()
        if not isinstance(found, WordClassification):
            raise TaskError(f"{type(found).__name__} is not a task of words, which these analyses are of")
        return found

    def data(self) -> Finding:
        """Sizes, vocabulary, length, parameters and score."""
        task = self.task()
        lengths = task.data["train"].present.sum(dim=1).float()
        facts: list[tuple[str, Cell]] = [(f"{split} rows", len(batch)) for split, batch in task.data.items()]
        facts += [
            ("words in the vocabulary", len(task.vocabulary)),
            ("tokens in a training text, mean", float(lengths.mean())),
            ("parameters", sum(value.numel() for value in task.model.parameters())),
            (f"test {task.recipe.preset.metric}", task.quality(task.data["test"])),
        ]
        return Finding(
            name="data", title="The data and the model", headings=(task.recipe.data, "value"), rows=tuple(facts)
        )

    def sparsity(self) -> Finding:
        """How much of all importance the most important tokens hold."""
        task, batch = self.task(), self._some()
        held = []
        for method in self.methods:
            scores = Step(self.bench, method, Protocol(), 0).importances()["valid"][: len(batch)]
            held.append(sparsity(scores[:, : batch.tokens.shape[1]], task.primary(batch), [s / 100 for s in SHARES]))
        return self._by_share("sparsity", "Share of all importance that the most important tokens hold", held)

    def answers(self) -> Finding:
        """How often the word that is the answer, in the sentence it follows from, is masked.

        Models that answer equally well may attend to that word, or to another beside it: it depends on the seed.
        """
        task = self.task()
        test, numbers = task.data["test"], task.vocabulary.numbered()
        word = torch.tensor([numbers.get(name, PAD) for name in task.names])[test.target]
        answer = (test.tokens == word[:, None]) & test.token_inputs["evidence"].bool()
        found = []
        for method in self.methods:
            masks = [Step(self.bench, method, Protocol(), share).masks()["test"] for share in SHARES]
            found.append([float((masked & answer).any(dim=1)[answer.any(dim=1)].double().mean()) for masked in masks])
        return self._by_share(
            "answers", "Share of the texts whose answer is masked, by the unmasked model's importances", found
        )

    def _by_share(self, name: str, says: str, found: Sequence[Sequence[float]]) -> Finding:
        """A curve a measure, over shares of the tokens."""
        names = self._names()
        rows = tuple(zip(SHARES, *found, strict=True))
        return Finding(name=name, title=says, headings=("% of tokens", *names), rows=rows, curves=names)

    def synthetic(self) -> Finding:
        """The problem on which ROAR is wrong and Recursive ROAR is right, whatever the model."""
        curves = synthetic()
        after = ", ".join(f"{name} {falls_after(scores)}" for name, scores in curves.items())
        return Finding(
            name="synthetic",
            title=f"16 features of which 4 tell: accuracy falls after {after}",
            headings=("features removed", *curves),
            rows=tuple(zip(range(FEATURES + 1), *curves.values(), strict=True)),
            curves=tuple(curves),
        )

    def riemann(self) -> Finding:
        """How many points a path of integrated gradients needs."""
        found = riemann(self.task(), self._some(), POINTS)
        return Finding(
            name="riemann",
            title="Integrated gradient with few points beside one with 100: tokens at another rank",
            headings=tuple(field.name.replace("_", " ") for field in fields(RiemannError)),
            rows=tuple(astuple(one) for one in found),
            curves=("moved", "moved at the top"),
        )

    def lengths(self) -> Finding:
        """Whether lengths, and questions, tell the class where every token is masked."""
        step = Step(self.bench, self.methods[0], Protocol(), 100)
        rows = (("a model trained on masks", step.score().score), ("the most frequent class", self._majority()))
        return Finding(name="lengths", title="All tokens masked", headings=("who answers", "score"), rows=rows)

    def leaks(self) -> Finding:
        """Whether masks tell the class: to a classifier of their places, and on classes dealt out at random."""
        found = []
        for method, name in zip(self.methods, self._names(), strict=True):
            step = Step(self.bench, method, Protocol(), self.k)
            places = mask_position_leak(step.masks(), self.task().data)
            found.append((name, places, permuted_score(step), self._majority()))
        return Finding(
            name="leaks",
            title=f"What the masks of {self.k} % of the tokens give away",
            headings=("measure", "their places alone", "permuted classes", "most frequent class"),
            rows=tuple(found),
        )

    def example(self, row: int = 0) -> str:
        """One text, its importances as shades, and what is masked; LaTeX."""
        return masking_example(Step(self.bench, self.methods[0], Protocol(), 0), row)

    def _names(self) -> tuple[str, ...]:
        """The measures' names."""
        titles = titles_of(method.label for method in self.methods)
        return tuple(titles[method.label] for method in self.methods)

    def _some(self) -> Batch:
        return self.task().data["valid"][: self.rows].trim()

    def _majority(self) -> float:
        task, test = self.task(), self.task().data["test"]
        answers = majority(task.data["train"].target, len(test), len(task.names))
        return task.score(answers, test.target)
