"""Task of a masked language model: which words make the blank of a sentence be "Paris"?"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Shaped
from torch import Tensor
from torch.distributions import Categorical, Distribution

from diffmask.core.batch import Batch
from diffmask.core.distributions import logits
from diffmask.datasets.tables import Example
from diffmask.errors import InputError, TaskError
from diffmask.explanation.verified_set import Prediction
from diffmask.tasks.text.encoding import TextTaskSpec, pad_rows
from diffmask.tasks.text.heads import NO_LABEL, correct_classes
from diffmask.tasks.text.text_task import TextTask

BLANK = "[MASK]"
"""How every text writes the blank, whatever the model's own mask token is."""
BLANK_INPUT = "blank"
"""Key in `Batch.token_inputs` of the token to predict."""


class MaskedWord(TextTask):
    """Masked language model on texts with one blank, written `[MASK]`; the answer is a distribution over words.

    The blank itself may not be masked. The label of a text is the word of its blank, which must be one token.
    """

    spec: ClassVar[TextTaskSpec] = TextTaskSpec(
        name="fill-mask",
        auto_class="AutoModelForMaskedLM",
        input_fields=("text",),
        placeholder=f"{BLANK} .",
        hidden_inputs=frozenset({BLANK_INPUT}),
    )
    answer_tokens_given: ClassVar[bool] = True

    def read_config(self, config: Any) -> None:
        """Require a mask token."""
        if self.mask_token is None:
            raise TaskError("the tokenizer has no mask token; a masked language model is needed")

    def to_example(self, given: Any) -> Example:
        """Return a text whose blank is the model's mask token."""
        example = super().to_example(given)
        blanks = example.text.count(BLANK) or example.text.count(self.tokenizer.mask_token)
        if blanks != 1:
            raise InputError(f"a text needs one blank, written {BLANK}; found {blanks} in '{example.text[:60]}'")
        return replace(example, text=example.text.replace(BLANK, self.tokenizer.mask_token))

    def encode_examples(self, rows: Any) -> Any:
        """Return texts as a batch with the mapping from its rows back to the texts."""
        return super().encode_examples(self.to_example(row) for row in rows)

    def add_inputs(
        self, batch: Batch, examples: Sequence[Example], sources: Sequence[int], encodings: Sequence[Any]
    ) -> Batch:
        """Mark the blank."""
        blanks = [[int(token == self.mask_token) for token in encoding.ids] for encoding in encodings]
        if any(sum(row) != 1 for row in blanks):
            raise InputError("the blank of a text was cut off; give a shorter text, or a larger max_tokens")
        marked = pad_rows(blanks, 0).to(batch.tokens.device)
        return replace(batch, token_inputs={**batch.token_inputs, BLANK_INPUT: marked})

    def targets(
        self, examples: Sequence[Example], sources: Sequence[int], encodings: Sequence[Any]
    ) -> Shaped[Tensor, " row"]:
        """Return the tokens of the words that belong into the blanks; -1 where it is not given."""
        return torch.tensor([self._target(examples[source].label) for source in sources])

    def _target(self, word: Any) -> int:
        if word is None:
            return NO_LABEL
        tokens = self.tokenizer(str(word), add_special_tokens=False)["input_ids"]
        if len(tokens) != 1 or tokens[0] == self.tokenizer.unk_token_id:
            raise InputError(f"'{word}' is not one token of the model's vocabulary; give a shorter or a common word")
        return int(tokens[0])

    def probe(self, model: Any, inputs: Mapping[str, Tensor]) -> Float[Tensor, "row output"]:
        """Return the mean logits over the tokens that are there."""
        values = model(**inputs).logits
        attention_mask = inputs["attention_mask"][..., None].to(values)
        return (values * attention_mask).sum(dim=1) / attention_mask.sum(dim=1)

    def forward_train(self, batch: Batch) -> Distribution:
        """Run the model in its current mode and read its prediction at the blank."""
        values = self.padding.tokens_from_model(self.model(**self.model_inputs(batch)).logits.float(), batch.present)
        column = batch.token_inputs[BLANK_INPUT].argmax(dim=1)
        return self.distribution(values[torch.arange(len(values), device=values.device), column])

    def answer_tokens(self, batch: Batch, answer: Distribution) -> Float[Tensor, "row token"]:
        """Return 1 for the blank."""
        return batch.token_inputs[BLANK_INPUT].float()

    def distribution(self, values: Float[Tensor, "row token"]) -> Distribution:
        """Return a categorical distribution over the vocabulary."""
        return Categorical(logits=values, validate_args=False)

    def prediction(self, answer: Distribution, example: Example, encodings: Sequence[Any]) -> Prediction:
        """Return the most probable word."""
        best = logits(answer)[0].softmax(dim=-1).max(dim=-1)
        return Prediction(self.tokenizer.decode([int(best.indices)]).strip(), float(best.values))

    def score(self, batch: Batch) -> float:
        """Return the share of blanks whose word is predicted."""
        return float(self.per_example_score(batch).mean())

    def per_example_score(self, batch: Batch) -> Float[Tensor, " row"]:
        """Return 1 for each labelled blank whose word is predicted."""
        return correct_classes(self.logits, batch)

    def outcomes(self, target: Shaped[Tensor, " row"]) -> list[str | None]:
        """Return the words of the tokens."""
        return [None if token == NO_LABEL else self.tokenizer.decode([token]).strip() for token in target.tolist()]

    def untrained(self, seed: int) -> Any:
        """Return the model as it is: a masked language model has no head of its own to train again."""
        raise TaskError("ROAR cannot retrain a masked language model: its head was pretrained together with its body")
