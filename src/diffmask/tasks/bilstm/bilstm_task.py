"""Task of a BiLSTM classifier with its own vocabulary, on one text or on a text and a question."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int
from torch import Tensor

from diffmask.core.batch import Batch
from diffmask.core.capabilities import Retrainable, RowText
from diffmask.core.distributions import UnnormalizedCategorical
from diffmask.core.hooks import Site, record_calls
from diffmask.core.scores import accuracy_score, auroc_score, macro_f1_score
from diffmask.core.task import Task
from diffmask.datasets.tokenizers import MASK, PAD, TokenizedExample, Vocabulary
from diffmask.errors import TaskError
from diffmask.tasks.bilstm.bilstm_training import logits_by_length
from diffmask.tasks.bilstm.model import BiLSTMModel

if TYPE_CHECKING:
    from diffmask.tasks.bilstm.bilstm_config import BiLSTMConfig

Logits = Float[Tensor, "row class"]
Labels = Int[Tensor, " row"]

SCORES: Mapping[str, Callable[[Logits, Labels], float]] = {
    "accuracy": lambda logits, target: accuracy_score(logits.argmax(dim=1), target),
    "macro-f1": lambda logits, target: macro_f1_score(logits.argmax(dim=1), target),
    "auroc": lambda logits, target: auroc_score(logits[:, 1] - logits[:, 0], target),
}


class BiLSTMClassification(Task, RowText, Retrainable):
    """BiLSTM with its vocabulary and its rows; the sites are the text's embedding and the states before pooling.

    Rows have the question in `inputs` and the evidence, if known, in `token_inputs`.
    """

    mask_token = MASK
    pad_token = PAD

    def __init__(
        self,
        config: "BiLSTMConfig",
        vocabulary: Vocabulary,
        names: Sequence[str],
        model: BiLSTMModel,
        data: Mapping[str, Batch],
    ) -> None:
        super().__init__(model, {"embedding": Site("embedding"), "states": Site("states")}, data)
        self.config, self.vocabulary, self.names = config, vocabulary, tuple(names)

    def logits(self, batch: Batch) -> Float[Tensor, "row class"]:
        """Run the model in its current mode."""
        return self.model(**self._inputs(batch))

    def loss(self, batch: Batch) -> Float[Tensor, ""]:
        """Return the mean cross-entropy of a batch for training."""
        return self.classifier.loss(self._inputs(batch), batch.target)

    def inference_logits(self, batch: Batch) -> Float[Tensor, "row class"]:
        """Return the logits without edits and gradients, by the compiled kernel if it supports the model."""
        return self.classifier.inference_logits(self._inputs(batch))

    @property
    def classifier(self) -> BiLSTMModel:
        """The model with its own type."""
        assert isinstance(self.model, BiLSTMModel)
        return self.model

    @property
    def paired(self) -> bool:
        """Whether rows have a question."""
        return "pair" in self.data["train"].inputs

    def _inputs(self, batch: Batch) -> dict[str, Tensor]:
        attended = batch.present & (batch.tokens >= MASK)
        return {"tokens": batch.tokens, "present": batch.present, "attended": attended, **batch.inputs}

    def forward(self, batch: Batch) -> UnnormalizedCategorical:
        """Run the model."""
        return UnnormalizedCategorical(self.logits(batch))

    def score(self, batch: Batch) -> float:
        """Score the model by the data set's metric."""
        return self.score_logits(logits_by_length(self, batch), batch.target)

    def per_example_score(self, batch: Batch) -> Float[Tensor, " row"] | None:
        """Return 1 for each correct row if the data set's metric is accuracy, else None."""
        if self.config.preset.metric != "accuracy":
            return None
        return (logits_by_length(self, batch).argmax(dim=1) == batch.target).double()

    def score_logits(self, logits: Float[Tensor, "row class"], target: Int[Tensor, " row"]) -> float:
        """Return accuracy or macro-F1, whichever is usual for the data set."""
        return SCORES[self.config.preset.metric](logits, target)

    def selection_score(self, logits: Float[Tensor, "row class"], target: Int[Tensor, " row"]) -> float:
        """Return the score that selects the best epoch."""
        return SCORES[self.config.preset.selection](logits, target)

    @torch.no_grad()
    def attentions(self, batch: Batch) -> Float[Tensor, "row layer head query key"]:
        """Return the pooling weights as one layer, one head and one query."""
        with record_calls(self.model, ["pooling.weights"]) as calls:
            self.logits(batch)
        weights = calls[0].output
        assert weights is not None
        return weights[:, None, None, None]

    def ground_truth(self, batch: Batch) -> Float[Tensor, "row token"]:
        """Return 1 for the words of the supporting facts."""
        if "evidence" not in batch.token_inputs:
            raise TaskError(f"{self.config.data} has no known truth; bABI has: its supporting facts")
        return batch.token_inputs["evidence"].float()

    def describe(self, batch: Batch) -> list[list[str]]:
        """Return the words of each row."""
        return [
            [self.vocabulary.words[token] for token in row[real].tolist()]
            for row, real in zip(batch.tokens, batch.present, strict=True)
        ]

    @torch.no_grad()
    def title(self, batch: Batch) -> str:
        """Return the question, if there is one, and the predicted class with its probability."""
        prediction = self.forward(batch[:1]).probs[0].max(dim=0)
        question = ""
        if "pair" in batch.inputs:
            words = [self.vocabulary.words[token] for token in batch.inputs["pair"][0].tolist() if token >= MASK]
            question = " ".join(words) + "? "
        label, probability = self.names[int(prediction.indices)], float(prediction.values)
        return f"{question}The model says {label} with {probability:.3f}."

    def retrain(self, data: Mapping[str, Batch], seed: int) -> "BiLSTMClassification":
        """Train a fresh model on other rows, with the seed's second initialisation as Madsen et al. 2022.

        From the first initialisation it would learn to attend to the same tokens, and find the masks there.
        """
        model, order = self.config.init_model(self.vocabulary, len(self.names), self.paired, seed, earlier=1)
        task = BiLSTMClassification(self.config, self.vocabulary, self.names, model, data)
        self.config.training.train(task, order)
        return task


def encode(texts: Sequence[TokenizedExample], vocabulary: Vocabulary) -> Batch:
    """Return texts as a batch of [CLS] words [EOS], padded on the right."""
    index = vocabulary.index_by_word()
    tokens = _pad([vocabulary.encode(text.words, index) for text in texts])
    inputs = {}
    if texts[0].pair is not None:
        pair = _pad([vocabulary.encode(text.pair or (), index) for text in texts])
        inputs = {"pair": pair, "pair_present": pair != PAD}
    evidence = {}
    if texts[0].evidence:
        evidence = {"evidence": _pad([[0, *map(int, text.evidence), 0] for text in texts], tokens.shape[1])}
    return Batch(
        tokens=tokens,
        present=tokens != PAD,
        maskable=tokens >= MASK,
        target=torch.tensor([text.label for text in texts]),
        inputs=inputs,
        token_inputs=evidence,
    )


def _pad(rows: Sequence[Sequence[int]], width: int = 0) -> Tensor:
    length = max(width, *(len(row) for row in rows))
    return torch.tensor([[*row, *[PAD] * (length - len(row))] for row in rows])
