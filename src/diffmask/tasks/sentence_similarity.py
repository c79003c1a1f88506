"""Task of a sentence encoder: which words of a text make it similar to another text?"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Shaped
from torch import Tensor
from torch.distributions import Distribution, Independent, Normal
from torch.nn.functional import cosine_similarity

from diffmask.core.batch import Batch
from diffmask.core.hooks import frozen
from diffmask.datasets.tables import Example
from diffmask.errors import InputError, TaskError
from diffmask.explanation.verified_set import Prediction
from diffmask.tasks.text.encoding import EncodedBatch, TextTaskSpec
from diffmask.tasks.text.text_task import TextTask

OTHER = "other"
"""Key in `Batch.inputs` of the encoding of the other text."""
DEVIATION = 0.1
"""Standard deviation of the similarity: a change of 0.1 is a divergence of half a nat."""


class SentenceSimilarity(TextTask):
    """Bi-encoder: a text is explained by its cosine similarity to another text, which is encoded once and not masked.

    The encoding of a text is the mean of its last states. The answer is a normal distribution around the similarity
    with a standard deviation of 0.1, so that KL is the squared change of the similarity in units of it, halved. Explain
    the pair the other way round to see the words of the second text.
    """

    spec: ClassVar[TextTaskSpec] = TextTaskSpec(
        name="sentence-similarity", auto_class="AutoModel", placeholder=(".", ".")
    )

    def encode_examples(self, rows: Iterable[Example]) -> EncodedBatch:
        """Return the first texts as a batch that holds the encodings of the second texts."""
        examples = [self.to_example(row) for row in rows]
        if any(example.pair is None for example in examples):
            raise InputError("a similarity needs two texts: give pairs, or text=... and pair=...")
        others = super().encode_examples([Example(example.pair or "") for example in examples])
        first = super().encode_examples([replace(example, pair=None) for example in examples])
        with torch.no_grad(), frozen(self.model):
            vectors = torch.cat([self.embed(others.batch[rows]) for rows in torch.arange(len(examples)).split(64)])
        inputs = {**first.batch.inputs, OTHER: vectors[torch.tensor(first.sources)]}
        return EncodedBatch(replace(first.batch, inputs=inputs), first.sources, first.encodings)

    def targets(
        self, examples: Sequence[Example], sources: Sequence[int], encodings: Sequence[Any]
    ) -> Shaped[Tensor, "row 1"]:
        """Return the known similarities; NaN where there is none."""
        return torch.tensor(
            [[torch.nan if examples[source].label is None else float(examples[source].label)] for source in sources]
        )

    def embed(self, batch: Batch) -> Float[Tensor, "row width"]:
        """Return the mean last state of each text."""
        inputs = self.model_inputs(batch)
        return self._mean(self.model(**inputs), inputs)

    def probe(self, model: Any, inputs: Mapping[str, Tensor]) -> Float[Tensor, "row output"]:
        """Return the encodings."""
        return self._mean(model(**inputs), inputs)

    @staticmethod
    def _mean(output: Any, inputs: Mapping[str, Tensor]) -> Float[Tensor, "row width"]:
        attention_mask = inputs["attention_mask"][..., None].to(output.last_hidden_state)
        return (output.last_hidden_state * attention_mask).sum(dim=1).float() / attention_mask.sum(dim=1).clamp(min=1)

    def forward_train(self, batch: Batch) -> Distribution:
        """Run the encoder in its current mode and compare."""
        similarity = cosine_similarity(self.embed(batch), batch.inputs[OTHER])
        return self.distribution(similarity[:, None] / DEVIATION)

    def distribution(self, values: Float[Tensor, "row 1"]) -> Distribution:
        """Return normal distributions; `values` are similarities in units of their standard deviation."""
        mean = values * DEVIATION
        return Independent(Normal(mean, torch.full_like(mean, DEVIATION), validate_args=False), 1, validate_args=False)

    def prediction(self, answer: Distribution, example: Example, encodings: Sequence[Any]) -> Prediction:
        """Return the similarity, the mean over the rows of a long text."""
        return Prediction(f"similarity {float(answer.mean.mean()):.3f}", None)

    def score(self, batch: Batch) -> float:
        """Return the correlation of the similarities with the known ones."""
        known = ~batch.target[:, 0].isnan()
        if int(known.sum()) < 2:
            raise InputError("fewer than two pairs have a known similarity: the model's own score needs them")
        similarities = self.logits(batch[known])[:, 0]
        return float(torch.corrcoef(torch.stack([similarities, batch.target[known, 0].to(similarities)]))[0, 1])

    def outcomes(self, target: Shaped[Tensor, "row 1"]) -> list[str | None]:
        """Return the known similarities."""
        return [None if value != value else f"{value:.4g}" for value in target[:, 0].tolist()]

    def untrained(self, seed: int) -> Any:
        """Raise a TaskError: there is no head to train again."""
        raise TaskError("ROAR cannot retrain a sentence encoder: it has no head of its own")
