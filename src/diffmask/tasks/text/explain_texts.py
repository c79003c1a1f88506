"""Explanations of texts; the rows of one long text are merged into one explanation."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor
from torch.distributions import Distribution

from diffmask.core.batch import Attribution, Batch
from diffmask.core.distributions import divergence
from diffmask.core.explainer import Explainer
from diffmask.core.task import Task
from diffmask.core.verification.masks import TextUnits
from diffmask.datasets.tables import Example, read_inputs
from diffmask.errors import InputError
from diffmask.explanation.collection import ExplanationList
from diffmask.explanation.explanation import Explanation
from diffmask.explanation.text_units import ReadRow, Token, Unit, is_punctuation, split_units, unit_gaps
from diffmask.explanation.verified_set import Prediction
from diffmask.tasks.text.encoding import EncodedBatch, ReadsTexts
from diffmask.tasks.text.verification import main_layer, verify_texts

TOKENS_AT_ONCE = 2_048
"""Tokens per forward pass, padding included: enough to keep a processor busy at a constant use of memory."""

Positions = dict[Token, list[tuple[int, int]]]
"""Row and column of each token; a token in the overlap of two rows has two positions."""


class ExplainsTexts(Task, ReadsTexts, ABC):
    """A task on texts that explains single inputs, in words of the text."""

    @abstractmethod
    def distribution(self, values: Float[Tensor, "row *feature"]) -> Distribution:
        """Return the answer with these logits."""

    @abstractmethod
    def prediction(self, answer: Distribution, example: Example, encodings: Sequence[Any]) -> Prediction:
        """Return the prediction of one text, given the answers and the encodings of its rows."""

    def explain(
        self, explainer: Any, inputs: Any = None, target: Any = None, *, verify: bool = True, **named: Any
    ) -> Any:
        """Return the explanation of one input; of several inputs, a list that is also a table (`ExplanationList`).

        An input is a text, a pair `(first, second)` or a mapping with `spec.input_fields`; a single one may be given by
        these names. Several are a list, a generator, a column, a data frame or a data set. `target` is a class by
        name or index, one per input, or several classes of one input; by default the predicted one is explained. The
        words that are enough for the prediction are searched for and verified on the model; `verify=False` takes one
        forward pass and predicts them.
        """
        if inputs is None and not named:
            raise InputError(f"expected text, got None; give a text, a list of texts, or {self._fields()} by name")
        if inputs is not None and named:
            raise InputError(f"give one input, a list of inputs, or the fields {self._fields()} by name")
        self._require_fields(named)
        examples, single = read_inputs(named if inputs is None else inputs, self.to_example)
        if single and isinstance(target, list | tuple):
            examples, single = examples * len(target), False
        targets = self._outcomes_of(target, len(examples))
        explanations = self.explain_examples(explainer, examples, verify=verify, targets=targets)
        return explanations[0] if single else ExplanationList(explanations)

    def _outcomes_of(self, target: Any, count: int) -> list[Tensor] | None:
        """Return one outcome per input."""
        if target is None:
            return None
        each = [target] * count if isinstance(target, str) or not isinstance(target, Iterable) else list(target)
        if len(each) != count:
            raise InputError(f"{len(each)} targets for {count} inputs; give one class, or one per input")
        return [self.outcome_of(input_target) for input_target in each]

    def outcome_of(self, target: Any) -> Shaped[Tensor, "*event"]:
        """Return the outcome that a target names; a subclass whose answers are classes overrides it."""
        raise InputError(f"{type(self).__name__} explains its own answer; leave target out")

    def target_prediction(self, answer: Distribution, target: Shaped[Tensor, "*event"]) -> Prediction:
        """Return the name and probability of an explained outcome, given the answers of one text's rows."""
        raise InputError(f"{type(self).__name__} explains its own answer; leave target out")

    def explain_examples(
        self, explainer: Any, examples: Sequence[Example], *, verify: bool, targets: Sequence[Tensor] | None = None
    ) -> list[Explanation]:
        """Return one explanation per example."""
        return explain_examples(self, explainer, examples, verify=verify, targets=targets)


def explain_examples(
    task: ExplainsTexts,
    explainer: Explainer,
    examples: Sequence[Example],
    *,
    verify: bool = False,
    targets: Sequence[Tensor] | None = None,
) -> list[Explanation]:
    """Return one explanation per text; with `verify` the words that are enough are searched for on the model.

    `targets` are the explained outcomes, by default the predicted ones. A text whose target is not its prediction is
    not verified: a verified set keeps the prediction.
    """
    if not examples:
        return []
    encoded = task.encode_examples(examples)
    rows_at_once = max(1, min(256, TOKENS_AT_ONCE // encoded.batch.tokens.shape[1]))
    outcome = _row_outcomes(explainer, encoded, targets)
    logits, attribution = explainer.explain_with_answer(encoded.batch, outcome, rows_at_once=rows_at_once)
    rows_of: dict[int, list[int]] = {}
    for row, source in enumerate(encoded.sources):
        rows_of.setdefault(source, []).append(row)
    texts = [TextRows(task, explainer, example, encoded, rows_of[index]) for index, example in enumerate(examples)]
    explanations = [_explanation(text, logits, attribution) for text in texts]
    if targets is not None:
        explanations = _add_targets(texts, explanations, logits, targets)
    chosen = [index for index, explanation in enumerate(explanations) if verify and explanation.explains_prediction]
    if not chosen:
        return explanations
    units = [explanations[index].units for index in chosen]
    verifications = verify_texts([texts[index] for index in chosen], units, "word", logits, attribution)
    for index, verification in zip(chosen, verifications, strict=True):
        verified, layers = verification.verified, verification.layers
        explanations[index] = replace(explanations[index], verified=verified, layer_verifier=layers)
    return explanations


def _row_outcomes(explainer: Explainer, encoded: EncodedBatch, targets: Sequence[Tensor] | None) -> Tensor | None:
    """Return the outcome of each row; None if the prediction is explained, or the method explains it anyway."""
    if targets is None or not explainer.explains_target:
        return None
    quantity = getattr(explainer.config, "quantity", "log-odds")
    if targets[0].ndim and quantity != "log-odds":
        raise InputError(
            f"one label of several is explained by its log-odds; give quantity='log-odds', not '{quantity}'"
        )
    return torch.stack([targets[source] for source in encoded.sources]).to(encoded.batch.tokens.device)


def _add_targets(
    texts: Sequence["TextRows"],
    explanations: Sequence[Explanation],
    logits: Float[Tensor, "row *feature"],
    targets: Sequence[Tensor],
) -> list[Explanation]:
    """Return the explanations with their targets; refuse another class than the prediction if the method cannot."""
    named = []
    for number, (text, explanation, target) in enumerate(zip(texts, explanations, targets, strict=True)):
        answer = text.task.distribution(logits[torch.tensor(text.rows)])
        chosen = text.task.target_prediction(answer, target)
        named.append(replace(explanation, target=chosen))
        if not (text.explainer.explains_target or named[-1].explains_prediction):
            raise InputError(
                f"text {number}: {explanation.method} explains the whole prediction, here {explanation.prediction}, "
                f"and no single class; leave target='{chosen.label}' out, or use a method whose scores depend on the "
                "class, such as leave-one-out or integrated-gradients"
            )
    return named


@dataclass(frozen=True)
class TextRows:
    """Text with the rows that it was encoded as."""

    task: ExplainsTexts
    explainer: Explainer
    example: Example
    encoded: EncodedBatch
    rows: list[int]

    @cached_property
    def batch(self) -> Batch:
        """The rows of the text alone."""
        return self.encoded.batch[torch.tensor(self.rows)].trim()

    @cached_property
    def positions(self) -> Positions:
        """Positions of the maskable tokens."""
        return token_positions(self.encoded, self.rows)

    def units(self, units: Sequence[Unit]) -> TextUnits:
        """Return the rows and columns of the tokens of each unit."""
        positions = list(self.positions.values())
        columns = [
            tuple((self.rows[row], column) for token in unit.tokens for row, column in positions[token])
            for unit in units
        ]
        avoided = tuple(number for number, unit in enumerate(units) if is_punctuation(unit.text))
        return TextUnits(tuple(self.rows), tuple(columns), avoided)

    def mask_effect(self, kept: Bool[Tensor, " token"], layer: str | None) -> tuple[float, Prediction]:
        """Return the mean divergence over the text's rows if only these tokens are kept, and the mean prediction."""
        batch = self.batch
        keep = torch.zeros_like(batch.maskable)
        for positions, is_kept in zip(self.positions.values(), kept.tolist(), strict=True):
            for row, column in positions:
                keep[row, column] = is_kept
        with torch.no_grad():
            original = self.task.predict(batch)
            masked = self.explainer.predict_kept(batch, keep, layer)
        return float(divergence(original, masked).mean()), self.prediction(masked)

    def prediction(self, answer: Distribution) -> Prediction:
        """Return the prediction of the text, given the answers of its rows."""
        encodings = [self.encoded.encodings[row] for row in self.rows]
        return self.task.prediction(answer, self.example, encodings)


def token_positions(encoded: EncodedBatch, rows: Sequence[int]) -> Positions:
    """Return the positions of the maskable tokens of a text; rows are counted from the text's first row."""
    positions: Positions = {}
    for index, row in enumerate(rows):
        encoding = encoded.encodings[row]
        maskable = encoded.batch.maskable[row].tolist()
        seen: dict[Token, int] = {}
        for column, (piece, span, segment) in enumerate(
            zip(encoding.tokens, encoding.offsets, encoding.sequence_ids, strict=True)
        ):
            if maskable[column]:
                token = Token(piece, span, segment)
                # Several byte pieces of one character have the same span and may have the same spelling.
                token = Token(piece, span, segment, seen.setdefault(token, 0))
                seen[Token(piece, span, segment)] += 1
                positions.setdefault(token, []).append((index, column))
    return positions


def row_words(example: Example, encoded: EncodedBatch, row: int) -> ReadRow:
    """Return the words of one row; the text between them, including tokens that may not be masked, becomes gaps."""
    positions = token_positions(encoded, [row])
    columns = [column for where in positions.values() for _, column in where]
    units = split_units(example.text, example.pair, tuple(positions), "word")
    word_columns = tuple(tuple(columns[token] for token in unit.tokens) for unit in units)
    return ReadRow(tuple(unit.text for unit in units), unit_gaps(example.text, example.pair, units), word_columns)


def _explanation(text: TextRows, logits: Float[Tensor, "row *feature"], attribution: Attribution) -> Explanation:
    positions = text.positions
    tokens = tuple(positions)
    rows = torch.tensor(text.rows)
    by_layer = None if attribution.by_layer is None else _max_over_rows(attribution.by_layer[rows], positions)
    return Explanation(
        text=text.example.text,
        pair=text.example.pair,
        prediction=text.prediction(text.task.distribution(logits[rows])),
        tokens=tokens,
        units=split_units(text.example.text, text.example.pair, tokens, "word"),
        token_scores=_max_over_rows(attribution.scores[rows], positions),
        token_by_layer=by_layer,
        layers=attribution.layers,
        method=text.explainer.config.label if text.explainer.config else type(text.explainer).__name__,
        mask_effect=text.mask_effect,
        verifier=lambda units, kind: verify_texts([text], [units], kind, logits, attribution)[0],
        main_layer=main_layer(text.explainer, attribution),
    )


def _max_over_rows(scores: Float[Tensor, "row *layer column"], positions: Positions) -> Float[Tensor, "*layer token"]:
    """Return the largest score of each token over the rows that contain it."""
    if len(scores) == 1 or not positions:
        return scores[0][..., [column for where in positions.values() for _, column in where]]
    columns = [
        torch.stack([scores[row, ..., column] for row, column in where]).amax(dim=0) for where in positions.values()
    ]
    return torch.stack(columns, dim=-1)
