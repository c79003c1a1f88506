"""Task of a Hugging Face sequence classifier on texts or pairs of texts."""

from collections.abc import Sequence
from typing import Any, ClassVar

from jaxtyping import Bool, Float, Shaped
from torch import Tensor
from torch.distributions import Distribution

from diffmask.core.batch import Batch
from diffmask.core.distributions import average
from diffmask.datasets.tables import Example
from diffmask.explanation.verified_set import Prediction
from diffmask.tasks.text.encoding import TextTaskSpec
from diffmask.tasks.text.heads import head_of
from diffmask.tasks.text.text_task import TextTask


class TextClassification(TextTask):
    """Classifier with its tokenizer and its texts; the sites are found by running the model.

    The model is in eval mode and requires no gradients while it runs here. After each pass the mode of every module
    and `requires_grad` of every parameter are restored. The weights never change.

    Args:
        model: A folder, a hub id, a `transformers` pipeline, a tuple `(model, tokenizer)` or a module. A model whose
            repository contains Python code of its own is loaded with `load_classifier(name, trust_remote_code=True)`
            and passed as a module. A model in half precision is explained in single precision.
        tokenizer: The model's fast tokenizer; needed only if `model` is a module.
        train, valid, test: Texts of each split: a path, columns or rows.
        encoding: Columns of the tables and the tokenization of the texts.
        source: Encoder and hyperparameters from which ROAR retrains the classifier; a classifier that
            `diffmask train` saved states its own.
        device: Device to move the model to, such as `cuda`; by default it stays where it is.
    """

    spec: ClassVar[TextTaskSpec] = TextTaskSpec(
        name="text-classification", auto_class="AutoModelForSequenceClassification"
    )

    def read_config(self, config: Any) -> None:
        """Set the head: classes, several labels at once, or numbers."""
        self.head = head_of(config)

    def distribution(self, values: Float[Tensor, "row output"]) -> Distribution:
        """Return the head's distribution."""
        return self.head.distribution(values)

    def prediction(self, answer: Distribution, example: Example, encodings: Sequence[Any]) -> Prediction:
        """Return the predicted outcome of the mean answer over the rows of the text."""
        return self.head.predictions(average(answer))[0]

    def outcome_of(self, target: Any) -> Shaped[Tensor, "*event"]:
        """Return the outcome of a class that is given by name or by index."""
        return self.head.outcome_of(target)

    def target_prediction(self, answer: Distribution, target: Shaped[Tensor, "*event"]) -> Prediction:
        """Return the name of the explained class and its mean probability over the rows of the text."""
        return self.head.target_prediction(average(answer), target)

    def targets(
        self, examples: Sequence[Example], sources: Sequence[int], encodings: Sequence[Any]
    ) -> Shaped[Tensor, "row *event"]:
        """Return the labels as outcomes of the head."""
        return self.head.targets([examples[index].label for index in sources])

    def forward_train(self, batch: Batch) -> Distribution:
        """Run the classifier in its current mode."""
        return self.head.distribution(self.model(**self.model_inputs(batch)).logits.float())

    def roar_maskable(self, batch: Batch) -> Bool[Tensor, "row token"]:
        """Return the maskable tokens of the first text: those before the first gap between maskable tokens."""
        starts = batch.maskable & ~batch.maskable.roll(1, dims=1)
        return batch.maskable & (starts.cumsum(dim=1) == 1)

    def score(self, batch: Batch) -> float:
        """Score the labelled rows: accuracy, the fraction of correct labels, or R squared."""
        return self.head.score(self.head.distribution(self.logits(batch)), batch.target)

    def per_example_score(self, batch: Batch) -> Float[Tensor, " row"] | None:
        """Return 1 for each correct row; None for a regression, whose score is not a mean over rows."""
        return self.head.per_example_score(self.head.distribution(self.logits(batch)), batch.target)

    def init_head(self, seed: int) -> Any:
        """Return the encoder with a new head for the same classes."""
        return self.source.init_classifier(self.head.names, self.model.config.problem_type, seed)

    def outcomes(self, target: Shaped[Tensor, "row *event"]) -> list[str | None]:
        """Return the names of the outcomes in the model's configuration."""
        return self.head.outcomes(target)
