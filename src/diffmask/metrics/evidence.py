"""Evidence by sentences: does the sentence that the answer follows from get the highest score?"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from diffmask.core.capabilities import HasGroundTruth, Retrainable, require
from diffmask.core.explainer import Method
from diffmask.core.task import Task
from diffmask.errors import TaskError
from diffmask.metrics.ground_truth import EVIDENCE_LIMITATION
from diffmask.metrics.metric import Metric, record_of
from diffmask.metrics.ranks import top_k_probability
from diffmask.results.benchmark_result import MetricInfo
from diffmask.results.records import Record
from diffmask.tasks.question_answering import QuestionAnswering
from diffmask.tasks.text.encoding import SENTENCE
from diffmask.workspace.workspace import Workspace

RIGHT = 0.5
"""Score above which the model's answer to a row counts as right."""


@dataclass(frozen=True, kw_only=True)
class EvidenceSentence(Metric):
    """Whether the sentence with the highest token score is the evidence, and how many top tokens lie on it.

    The evidence of SQuAD is the sentence with the answer, that of bABI the supporting facts. Rows with one sentence
    and rows without known evidence are left out.
    """

    name: ClassVar[str] = "evidence-sentence"
    infos: ClassVar[tuple[MetricInfo, ...]] = (
        MetricInfo(
            name="evidence_sentence_first",
            title="evidence ranked first among sentences",
            higher_is_better=True,
            definition="share of texts in which the sentence with the highest token score is evidence",
            interpretation="The sentence that holds the highest score is one that the answer follows from.",
            limitation=EVIDENCE_LIMITATION,
        ),
        MetricInfo(
            name="evidence_precision",
            title="precision at k on the evidence",
            higher_is_better=True,
            definition="share of evidence among the k highest-scored tokens of the passage; the evidence has k tokens",
            interpretation="The highest-scored tokens of the passage are those that the answer follows from.",
            limitation=EVIDENCE_LIMITATION,
        ),
    )

    split: str = "test"
    right_only: bool = True
    """Whether only rows count that the model answers correctly, by a score above one half."""

    def run(self, method: Method, workspace: Workspace) -> Iterator[Record]:
        """Yield two numbers."""
        task = workspace.task()
        batch = task.data[self.split]
        evidence = require(task, HasGroundTruth, self.name).ground_truth(batch) > 0
        if SENTENCE not in batch.token_inputs:
            raise TaskError(f"{self.name}: {type(task).__name__} does not mark sentences; use question answering")
        sentences = batch.token_inputs[SENTENCE] * batch.maskable
        known = (evidence & (sentences > 0)).any(dim=1) & ((sentences > 0) & ~evidence).any(dim=1)
        if self.right_only:
            known &= _answered_right(task, self.split)
        if not known.any():
            return
        explained = workspace.explained(method, self.split)
        scores, sentences, evidence = explained.attribution.scores[known], sentences[known], evidence[known]
        first = top_sentence_probability(scores, sentences, evidence)
        yield record_of(workspace, method, explained, "input", "evidence_sentence_first", first, keep_rows=True)
        inside = (evidence & (sentences > 0)).sum(dim=1)
        chosen = top_k_probability(scores, sentences > 0, inside.float()) * evidence
        precision = chosen.sum(dim=1) / inside
        yield record_of(workspace, method, explained, "input", "evidence_precision", precision, keep_rows=True)


def _answered_right(task: Task, split: str) -> Bool[Tensor, " row"]:
    batch = task.data[split]
    if isinstance(task, QuestionAnswering):
        return task.row_scores(batch) > RIGHT
    scores = task.per_example_score(batch) if isinstance(task, Retrainable) else None
    if scores is None:
        raise TaskError("evidence-sentence: the task has no score per row; give right_only: false")
    return scores.to(batch.tokens.device) > RIGHT


def top_sentence_probability(
    scores: Float[Tensor, "row token"], sentences: Int[Tensor, "row token"], evidence: Bool[Tensor, "row token"]
) -> Float[Tensor, " row"]:
    """Compute the probability that the sentence with the highest token score is evidence, ties broken at random.

    `sentences` numbers the sentence of each token from 1; 0 belongs to none.

    >>> ids = torch.tensor([[1, 1, 2, 3]])
    >>> top_sentence_probability(torch.tensor([[0.1, 0.9, 0.9, 0.2]]), ids, ids == 2)
    tensor([0.5000])
    """
    count = int(sentences.max()) + 1
    best = scores.new_full((len(scores), count), -torch.inf).scatter_reduce(1, sentences.long(), scores, "amax")
    marked = torch.zeros(len(scores), count, dtype=torch.long, device=scores.device)
    marked = marked.scatter_reduce(1, sentences.long(), evidence.long(), "amax") > 0
    exists = best.isfinite() & (torch.arange(count, device=scores.device) > 0)
    return (top_k_probability(best.masked_fill(~exists, 0.0), exists, torch.ones(len(scores))) * marked).sum(dim=1)
