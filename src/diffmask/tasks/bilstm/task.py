"""Scores of a classifier: accuracy, macro-F1 and the area under the ROC curve.

A classifier of words with a vocabulary of its own, on one text or on a text and a question.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int
from torch import Tensor

from diffmask.core.batch import Batch
from diffmask.core.capabilities import Retrainable, RowText
from diffmask.core.distributions import UnnormalizedCategorical
from diffmask.core.hooks import Site, record_calls
from diffmask.core.task import Task
from diffmask.datasets.tokenizers import MASK, PAD, TokenizedExample, Vocabulary
from diffmask.errors import TaskError
from diffmask.tasks.bilstm.model import Classifier
from diffmask.tasks.bilstm.training import logits_by_length

if TYPE_CHECKING:
    from diffmask.tasks.bilstm.config import BiLSTMConfig

Logits = Float[Tensor, "row class"]
Labels = Int[Tensor, " row"]


def accuracy(logits: Logits, target: Labels) -> float:
    """Share of rows whose most likely class is the right one; also the micro-F1."""
    return float(right(logits, target).mean())


def right(logits: Logits, target: Labels) -> Float[Tensor, " row"]:
    """1 for a row whose most likely class is the right one."""
    return (logits.argmax(dim=1) == target).double()


def macro_f1(logits: Logits, target: Labels) -> float:
    """Mean over classes of 2 TP / (2 TP + FP + FN); a class that is neither given nor found counts 0.

    >>> round(macro_f1(torch.tensor([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0]]), torch.tensor([0, 0, 1])), 3)
    0.4
    """
    found = logits.argmax(dim=1)
    scores = []
    for label in range(logits.shape[1]):
        hit = int(((found == label) & (target == label)).sum())
        total = int((found == label).sum() + (target == label).sum())
        scores.append(2 * hit / total if total else 0.0)
    return sum(scores) / len(scores)


def auroc(logits: Logits, target: Labels) -> float:
    """P(a positive row scores above a negative one), ties counted half; two classes.

    >>> auroc(torch.tensor([[0.0, 1.0], [0.0, 3.0], [0.0, 2.0]]), torch.tensor([0, 1, 0]))
    1.0
    """
    score = (logits[:, 1] - logits[:, 0]).double()
    positive, negative = score[target == 1], score[target == 0]
    if not len(positive) or not len(negative):
        return 0.5
    ordered = negative.sort().values
    below = torch.searchsorted(ordered, positive, right=False)
    up_to = torch.searchsorted(ordered, positive, right=True)
    return float((below + up_to).double().mean() / 2 / len(negative))


SCORES = {"accuracy": accuracy, "macro-f1": macro_f1, "auroc": auroc}


class BiLSTMClassification(Task, RowText, Retrainable):
    """The model, its vocabulary and its rows; sites are the text's embedding and the states that are pooled.

    Rows carry the question in `inputs` and, where it is known, the evidence in `token_inputs`.
    """

    mask_token = MASK
    pad_token = PAD

    def __init__(
        self,
        recipe: "BiLSTMConfig",
        vocabulary: Vocabulary,
        names: Sequence[str],
        model: Classifier,
        data: Mapping[str, Batch],
    ) -> None:
        super().__init__(model, {"embedding": Site("embedding"), "states": Site("states")}, data)
        self.recipe, self.vocabulary, self.names = recipe, vocabulary, tuple(names)

    def logits(self, batch: Batch) -> Float[Tensor, "row class"]:
        """One pass of the model, in whatever mode it is."""
        return self.model(**self._given(batch))

    def loss(self, batch: Batch) -> Float[Tensor, ""]:
        """The mean cross-entropy of a batch, to learn from."""
        return self.classifier.loss(self._given(batch), batch.target)

    def inference_logits(self, batch: Batch) -> Float[Tensor, "row class"]:
        """The logits, where nobody edits the model or asks for slopes: faster."""
        return self.classifier.inference_logits(self._given(batch))

    @property
    def classifier(self) -> Classifier:
        """The model, which here is one of words."""
        assert isinstance(self.model, Classifier)
        return self.model

    @property
    def paired(self) -> bool:
        """Whether a question comes with the text."""
        return "pair" in self.data["train"].inputs

    def _given(self, batch: Batch) -> dict[str, Tensor]:
        attended = batch.present & (batch.tokens >= MASK)
        return {"tokens": batch.tokens, "present": batch.present, "attended": attended, **batch.inputs}

    def forward(self, batch: Batch) -> UnnormalizedCategorical:
        """One pass of the model."""
        return UnnormalizedCategorical(self.logits(batch))

    def score(self, batch: Batch) -> float:
        """The model's score."""
        return self.score_logits(logits_by_length(self, batch), batch.target)

    def per_example_score(self, batch: Batch) -> Float[Tensor, " row"] | None:
        """Whether each answer is right, where that is what the data set is scored by."""
        if self.recipe.preset.metric != "accuracy":
            return None
        return right(logits_by_length(self, batch), batch.target)

    def score_logits(self, logits: Float[Tensor, "row class"], target: Int[Tensor, " row"]) -> float:
        """Accuracy or macro-F1, as is usual for the data set."""
        return SCORES[self.recipe.preset.metric](logits, target)

    def selection_score(self, logits: Float[Tensor, "row class"], target: Int[Tensor, " row"]) -> float:
        """The score that chooses the best epoch."""
        return SCORES[self.recipe.preset.selection](logits, target)

    @torch.no_grad()
    def attentions(self, batch: Batch) -> Float[Tensor, "row layer head query key"]:
        """The weights by which states are pooled: one layer, head and query."""
        with record_calls(self.model, ["pooling.weights"]) as calls:
            self.logits(batch)
        weights = calls[0].output
        assert weights is not None
        return weights[:, None, None, None]

    def ground_truth(self, batch: Batch) -> Float[Tensor, "row token"]:
        """The words of the supporting facts."""
        if "evidence" not in batch.token_inputs:
            raise TaskError(f"{self.recipe.data} has no known truth; bABI has: its supporting facts")
        return batch.token_inputs["evidence"].float()

    def describe(self, batch: Batch) -> list[list[str]]:
        """The words."""
        return [
            [self.vocabulary.words[token] for token in row[real].tolist()]
            for row, real in zip(batch.tokens, batch.present, strict=True)
        ]

    @torch.no_grad()
    def title(self, batch: Batch) -> str:
        """The question, where there is one, and the answer with its probability."""
        chosen = self.forward(batch[:1]).probs[0].max(dim=0)
        asked = ""
        if "pair" in batch.inputs:
            words = [self.vocabulary.words[token] for token in batch.inputs["pair"][0].tolist() if token >= MASK]
            asked = " ".join(words) + "? "
        return f"{asked}The model says {self.names[int(chosen.indices)]} with {float(chosen.values):.3f}."

    def retrain(self, data: Mapping[str, Batch], seed: int) -> "BiLSTMClassification":
        """A fresh model trained on other rows: as published, the seed's second, which begins with weights of its own.

        From the first one's weights it would learn to attend to the same places, and find the masks there.
        """
        fresh, source = self.recipe.init_model(len(self.vocabulary), len(self.names), self.paired, seed, earlier=1)
        task = BiLSTMClassification(self.recipe, self.vocabulary, self.names, fresh, data)
        self.recipe.training.train(task, source)
        return task


def encode(texts: Sequence[TokenizedExample], vocabulary: Vocabulary) -> Batch:
    """Texts as a batch: [CLS] words [EOS], padded on the right."""
    index = vocabulary.index_by_word()
    tokens = _padded([vocabulary.encode(text.words, index) for text in texts])
    inputs = {}
    if texts[0].pair is not None:
        pair = _padded([vocabulary.encode(text.pair or (), index) for text in texts])
        inputs = {"pair": pair, "pair_present": pair != PAD}
    evidence = {}
    if texts[0].evidence:
        evidence = {"evidence": _padded([[0, *map(int, text.evidence), 0] for text in texts], tokens.shape[1])}
    return Batch(
        tokens=tokens,
        present=tokens != PAD,
        maskable=tokens >= MASK,
        target=torch.tensor([text.label for text in texts]),
        inputs=inputs,
        token_inputs=evidence,
    )


def _padded(rows: Sequence[Sequence[int]], width: int = 0) -> Tensor:
    longest = max(width, *(len(row) for row in rows))
    return torch.tensor([[*row, *[PAD] * (longest - len(row))] for row in rows])
