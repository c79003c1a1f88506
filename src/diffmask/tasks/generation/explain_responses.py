"""Explanations of responses: scores of parts, verified needed sets, links to response tokens, and layers."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.distributions import Distribution

from diffmask.core.batch import Batch, spread_indices
from diffmask.core.distributions import divergence, predicts
from diffmask.core.resources import AdaptiveBatchSize
from diffmask.core.units import unit_columns, unit_scores
from diffmask.core.verification.masks import MaskedTexts, TextUnits, run_searches, select_rows
from diffmask.core.verification.search import Kept, Measurement, SearchConfig, SearchResult, search_minimal_set
from diffmask.errors import InputError
from diffmask.explanation.response import MOST_PASSES, NeededParts, PartTable, Regenerated, ResponseExplanation
from diffmask.tasks.generation.decoding import TOKENS_AT_ONCE
from diffmask.tasks.generation.prompt_encoding import PART, SCORED, ResponseRow

if TYPE_CHECKING:
    from diffmask.tasks.generation.text_generation import TextGeneration

DEFAULT_MARGIN = 0.1
"""Largest KL(original || needed parts only), in nats per response token."""
PROMPTS_AT_ONCE = 8
"""Prompts whose answers are held in memory together."""
LAYERS_SHOWN = 8
SEARCH = SearchConfig(proposals=4, batches=5, restarts=0, most_rows=MOST_PASSES)
"""Parts are few, and a pass of a language model is expensive: one round of proposals and removals."""
FEW_PASSES = 16
"""Passes up to which `QUICK_SEARCH` is used."""
QUICK_SEARCH = SearchConfig(prefixes=((1, 3),), proposals=4, batches=5, restarts=0)
"""Skips the empty set and some prefixes: within 8 passes it erases as much of planted facts as greedy search does."""


def explain_prompts(
    task: "TextGeneration", explainer: Any, prompts: Sequence[Any], *, verify: bool = True
) -> list[ResponseExplanation]:
    """Return one explanation per prompt, a few prompts at a time."""
    own = [_is_own(prompt) for prompt in prompts]
    rows = task.read(prompts)
    explanations = []
    for start in range(0, len(rows), PROMPTS_AT_ONCE):
        chunk = slice(start, start + PROMPTS_AT_ONCE)
        explanations += _explain_rows(task, explainer, rows[chunk], own[chunk], verify)
    return explanations


def _is_own(prompt: Any) -> bool:
    stated = prompt.get("response") if isinstance(prompt, dict) else getattr(prompt, "response", None)
    return stated is None


def _explain_rows(
    task: "TextGeneration", explainer: Any, rows: Sequence[ResponseRow], own: Sequence[bool], verify: bool
) -> list[ResponseExplanation]:
    batch = task.batch_of(rows)
    at_once = max(1, TOKENS_AT_ONCE // batch.tokens.shape[1])
    scores = unit_scores(explainer(batch, rows_at_once=at_once).scores, task.unit_numbers(batch)).cpu()
    method = explainer.config.label if explainer.config else type(explainer).__name__
    copies = [PromptCopies(task, row, task.batch_of([row])) for row in rows]
    margin = float(getattr(explainer.config, "margin", DEFAULT_MARGIN))
    needed_sets = needed_parts(task, batch, scores, margin) if verify else [None] * len(rows)
    return [
        _explanation(copy, part_scores[: len(copy.row.prompt.parts)], method, is_own, verified)
        for copy, part_scores, is_own, verified in zip(copies, scores, own, needed_sets, strict=True)
    ]


def _explanation(
    copies: "PromptCopies", scores: Float[Tensor, " part"], method: str, own: bool, verified: NeededParts | None
) -> ResponseExplanation:
    task, row = copies.task, copies.row
    return ResponseExplanation(
        prompt=row.prompt.text,
        parts=row.prompt.parts,
        scores=tuple(scores.tolist()),
        response=task.decode(row.response),
        response_tokens=tuple(task.tokenizer.decode([token]) for token in row.response),
        method=method,
        verified=verified,
        own_response=own,
        regenerate=copies.regenerate,
        measure_links=copies.links,
        measure_layers=copies.layers,
        verifier=lambda margin, same, passes: needed_parts(
            task, copies.batch, scores[None], margin, same_response=same, search=_search(passes)
        )[0],
    )


@torch.no_grad()
def needed_parts(
    task: "TextGeneration",
    batch: Batch,
    scores: Float[Tensor, "row part"],
    margin: float,
    *,
    same_response: bool = True,
    search: SearchConfig = SEARCH,
) -> list[NeededParts]:
    """Search for each row the smallest set of parts that keeps KL <= margin per response token.

    `same_response` also asks for the same most probable token at every position of the response, so that greedy
    decoding gives the same response.
    """
    if margin < 0:
        raise InputError(f"the margin is a divergence in nats and not negative; found {margin}")
    texts = [TextUnits.of_row(index, columns) for index, columns in enumerate(unit_columns(task.unit_numbers(batch)))]
    copies = MaskedTexts(lambda part, kept: _predict_kept(task, part, kept), batch, _answer(task, batch), texts)
    lengths = batch.inputs[SCORED].sum(dim=1).tolist()
    identical: dict[tuple[int, Kept], Measurement] = {}

    def measure(items: list[tuple[int, Kept]]) -> list[Measurement]:
        # The search compares log-odds of the whole response with its total divergence: per token times tokens.
        results = []
        for (text, kept), measurement in zip(items, copies.measure(items), strict=True):
            # Logits over a whole vocabulary, one set each, would fill the memory.
            measurement = replace(measurement, logits=None)
            identical[text, kept] = measurement
            same = measurement.same_prediction or not same_response
            results.append(
                replace(measurement, divergence=measurement.divergence * lengths[text], same_prediction=same)
            )
        return results

    searches = [
        search_minimal_set(_order(row, len(text.tokens)), replace(original, logits=None), margin * length, search)
        for text, row, original, length in zip(texts, scores, copies.originals(), lengths, strict=True)
    ]
    search_results = run_searches(searches, measure, "verify which parts are needed")
    return [
        _needed(task, texts[row], result, identical.get((row, result.kept)), margin)
        for row, result in enumerate(search_results)
    ]


def _search(passes: int) -> SearchConfig:
    """Return the search with at most `passes` masked copies; with few of them, larger sets are tried first."""
    return replace(SEARCH if passes > FEW_PASSES else QUICK_SEARCH, most_rows=passes)


def _order(scores: Float[Tensor, " part"], parts: int) -> list[int]:
    return scores[:parts].argsort(descending=True, stable=True).tolist()


def _answer(task: "TextGeneration", batch: Batch) -> Distribution:
    return task.predict(batch)


def _predict_kept(task: "TextGeneration", batch: Batch, kept: Bool[Tensor, "row token"]) -> Distribution:
    return task.predict(task.erase(batch, batch.maskable & ~kept))


def _needed(
    task: "TextGeneration", text: TextUnits, result: SearchResult, measured: Measurement | None, margin: float
) -> NeededParts:
    tokens = [len(unit) for unit in text.tokens]
    kept = sum(tokens[unit] for unit in result.kept)
    return NeededParts(
        kept=tuple(unit in result.kept for unit in range(len(tokens))),
        kl=measured.divergence if measured else 0.0,
        margin=margin,
        same_response=measured.same_prediction if measured else True,
        minimal=result.minimal,
        passes=result.sets,
        erased_tokens=1 - kept / max(1, sum(tokens)),
        erasing=task.encoding.erasing,
    )


@dataclass(frozen=True)
class PromptCopies:
    """Copies of one prompt without some of its parts, run on demand."""

    task: "TextGeneration"
    row: ResponseRow
    batch: Batch

    @cached_property
    def answer(self) -> Any:
        """The model's answer to the whole prompt."""
        with torch.no_grad():
            return self.task.predict(self.batch)

    def _each_part(self) -> Bool[Tensor, "part token"]:
        """Return the tokens of each part."""
        numbers = torch.arange(1, len(self.row.prompt.parts) + 1, device=self.batch.tokens.device)
        return self.batch.token_inputs[PART] == numbers[:, None]

    @torch.no_grad()
    def links(self) -> PartTable:
        """Return the loss in log-probability of each response token without each part."""
        erased = self._each_part()
        whole = self.answer.base_dist.log_prob(self.batch.target)

        def work(items: slice) -> Tensor:
            copies = self.batch.repeat(len(erased[items]))
            answer: Any = self.task.predict(self.task.erase(copies, erased[items]))
            return whole - answer.base_dist.log_prob(copies.target)

        return torch.cat(self._portion().split(len(erased), work)).tolist()

    @torch.no_grad()
    def layers(self) -> tuple[tuple[str, ...], PartTable]:
        """Return the KL per response token when each part's keys and values are hidden from a layer on."""
        erased = self._each_part()
        depth = self.task.depth
        chosen = spread_indices(depth, LAYERS_SHOWN)

        def work(items: slice) -> Tensor:
            hidden = erased[items]
            copies, original = self.batch.repeat(len(hidden)), select_rows(self.answer, torch.zeros(len(hidden)).long())
            effects = [divergence(original, self.task.predict_hidden_from(copies, hidden, layer)) for layer in chosen]
            return torch.stack(effects, dim=1)

        table = torch.cat(self._portion().split(len(erased), work))
        return tuple(f"block{layer + 1}" for layer in chosen), table.tolist()

    def _portion(self) -> AdaptiveBatchSize:
        return AdaptiveBatchSize(max(1, TOKENS_AT_ONCE // self.batch.tokens.shape[1]))

    def regenerate(self, kept: tuple[bool, ...]) -> Regenerated:
        """Generate the response from the kept parts alone."""
        keep = torch.tensor((True, *kept), device=self.batch.tokens.device)[self.batch.token_inputs[PART]]
        shorter = self.task.erase(self.batch, ~keep)
        response = self.task.generate_again(shorter)
        return Regenerated(self.task.decode(self.row.response), self.task.decode(response), self._cut(kept))

    def _cut(self, kept: tuple[bool, ...]) -> str:
        text, end, pieces = self.row.prompt.text, 0, []
        for part, stays in zip(self.row.prompt.parts, kept, strict=True):
            if not stays:
                pieces.append(text[end : part.span[0]])
                end = part.span[1]
        return "".join([*pieces, text[end:]])


def identical_response(original: Distribution, changed: Distribution, batch: Batch) -> Bool[Tensor, " row"]:
    """Return whether every response token is still the most probable one."""
    return predicts(changed, batch.target * batch.inputs[SCORED])
