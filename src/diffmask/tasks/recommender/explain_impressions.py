"""Explanations of impressions: the words of the explained candidate, of the titles read before, and whole titles."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.distributions import Bernoulli, Categorical, Distribution

from diffmask.core.batch import Attribution, Batch
from diffmask.core.distributions import divergence, logits
from diffmask.core.explainer import Explainer
from diffmask.core.verification.masks import TextUnits, select_rows
from diffmask.explanation.explanation import Explanation
from diffmask.explanation.heatmap import Heatmap
from diffmask.explanation.text_units import ReadRow, Span, Token, Unit, group_tokens, split_units
from diffmask.explanation.verified_set import Prediction, Verification
from diffmask.tasks.recommender.titles import Explained, ExplainedCandidate, TitleTable
from diffmask.tasks.text.encoding import EncodedBatch
from diffmask.tasks.text.verification import main_layer, verify_texts

if TYPE_CHECKING:
    from diffmask.tasks.recommender.news_recommender import NewsRecommender


THIS_CANDIDATE = "this candidate"
"""Label of a prediction that is the explained candidate."""


@dataclass(frozen=True, kw_only=True, repr=False)
class RankingExplanation(Explanation):
    """Explanation of one candidate's place in an impression; `at("title")` scores whole titles."""

    candidate: str
    """Title of the explained candidate."""
    rank: int
    """Its rank among the candidates, from 1."""
    candidates: tuple[str, ...]
    probabilities: tuple[float, ...]
    """Probability of each candidate in the model's softmax."""
    history: tuple[str, ...]
    """Titles that the user has read."""
    titles: tuple[Span, ...]
    """Spans of the explained titles in `text`."""
    includes_candidate: bool
    """Whether the first of them is the candidate's."""

    def at(self, granularity: str | Sequence[Span]) -> Explanation:
        """Return this explanation for `token`, `word`, `sentence` or `title`, or for given character spans."""
        if granularity != "title":
            return super().at(granularity)
        units = tuple(group_tokens(self.text, self.titles, self.tokens))
        return replace(self, units=units, granularity="title", verified=None, layer_verifier=None)

    def to_dict(self, threshold: float | None = None) -> dict[str, Any]:
        """Add the candidate, its rank, the candidates with their probabilities and the titles that were read."""
        offered = [
            {"title": title, "probability": p} for title, p in zip(self.candidates, self.probabilities, strict=True)
        ]
        ranking = {"candidate": self.candidate, "rank": self.rank, "candidates": offered, "history": list(self.history)}
        return {**ranking, **super().to_dict(threshold)}

    def heatmap(self, threshold: float | None = None) -> Heatmap:
        """Add the candidate, its rank and the titles that the user has read."""
        share = self.probabilities[self.candidates.index(self.candidate)]
        place = f"rank {self.rank} of {len(self.candidates)}, probability {share:.3f}"
        lines = [f"Candidate: {self.candidate} ({place})"]
        if len(self.titles) == self.includes_candidate:
            lines += [f"Read {number}: {title}" for number, title in enumerate(self.history, start=1)]
        plain = super().heatmap(threshold)
        if self.prediction.label != THIS_CANDIDATE:
            lines.append(plain.title)
        return replace(plain, title="\n".join(lines), gaps=self._named_gaps(plain.gaps))

    def _named_gaps(self, gaps: tuple[str, ...]) -> tuple[str, ...]:
        """Return the gaps between units with the name of each title before its first word."""
        named = list(gaps)
        for number, (first, last) in enumerate(self.titles):
            inside = [place for place, unit in enumerate(self.units) if first <= unit.span[0] < last]
            if inside:
                read = number + 1 - self.includes_candidate
                named[inside[0]] += f"Read {read}: " if read else "Candidate: "
        return tuple(named)


@dataclass(frozen=True)
class TitleTokens:
    """The maskable tokens of some titles that are joined by line breaks, and their columns in a row."""

    text: str
    spans: tuple[Span, ...]
    tokens: tuple[Token, ...]
    columns: tuple[int, ...]

    @staticmethod
    def of(table: TitleTable, titles: Sequence[str], shown: range) -> "TitleTokens":
        """Read the titles of a row; only those in `shown` may be masked."""
        text, column = "", 0
        spans: list[Span] = []
        tokens: list[Token] = []
        columns: list[int] = []
        for place, title in enumerate(titles):
            if place in shown:
                start = len(text) + 1 if spans else 0
                text = f"{text}\n{title}" if spans else title
                spans.append((start, start + len(title)))
                encoding, maskable = table.encodings[title], table.maskable(title)
                for index, (piece, (first, last)) in enumerate(zip(encoding.tokens, encoding.offsets, strict=True)):
                    if maskable[index]:
                        tokens.append(Token(piece, (start + first, start + last), 0, column + index))
                        columns.append(column + index)
            column += len(table.tokens(title))
        return TitleTokens(text, tuple(spans), tuple(tokens), tuple(columns))

    def unit_columns(self, units: Sequence[Unit]) -> list[list[int]]:
        """Return the columns of the tokens of each unit."""
        return [[self.columns[token] for token in unit.tokens] for unit in units]


def title_words(task: "NewsRecommender", row: ExplainedCandidate) -> ReadRow:
    """Return the words of a row's explained titles and the columns of their tokens."""
    titles = row.titles(task.explained, task.max_history)
    read = TitleTokens.of(task.titles, titles, range(len(titles)))
    units = split_units(read.text, None, read.tokens, "word")
    ends = [0, *(unit.span[1] for unit in units)]
    starts = [*(unit.span[0] for unit in units), len(read.text)]
    gaps = tuple(read.text[end:start] for end, start in zip(ends, starts, strict=True))
    return ReadRow(tuple(unit.text for unit in units), gaps, tuple(map(tuple, read.unit_columns(units))))


def explain_candidates(
    task: "NewsRecommender",
    explainer: Explainer,
    rows: Sequence[ExplainedCandidate],
    explain: Explained,
    *,
    verify: bool,
) -> list[Explanation]:
    """Return one explanation per row; with `verify` the words that are enough are searched for on the model."""
    batch = task.encode(rows, explain)
    # Class 0 of a ranking is the explained candidate, whether or not it has the highest score.
    attribution = explainer(batch, 0 if task.answer == "ranking" else None)
    with torch.no_grad():
        answer, scores = task.predict(batch), task.scores(batch)
    explained = [
        _RowExplanation(
            task,
            explainer,
            row,
            explain,
            batch[index : index + 1],
            attribution[index : index + 1],
            select_rows(answer, torch.tensor([index])),
            scores[index],
        )
        for index, row in enumerate(rows)
    ]
    explanations = [row_explanation.explanation() for row_explanation in explained]
    return [explanation.verify() for explanation in explanations] if verify else explanations


@dataclass(frozen=True)
class _RowExplanation:
    """Everything that the explanation of one row refers to."""

    task: "NewsRecommender"
    explainer: Explainer
    row: ExplainedCandidate
    explain: Explained
    batch: Batch
    attribution: Attribution
    answer: Distribution
    scores: Float[Tensor, " candidate"]
    """Scores of the candidates, the explained one first."""

    @cached_property
    def read(self) -> TitleTokens:
        titles = self.row.titles(self.task.explained, self.task.max_history)
        first = 1 if self.task.explained == "both" and self.explain == "history" else 0
        last = 1 if self.explain == "candidate" else len(titles)
        return TitleTokens.of(self.task.titles, titles, range(first, last))

    def explanation(self) -> Explanation:
        read, columns = self.read, list(self.read.columns)
        by_layer = self.attribution.by_layer
        scores = self.scores
        order = self.row.order()
        probabilities = scores[: len(order)].softmax(dim=0).tolist()
        titles = [self.row.impression.candidates[index].title for index in order]
        return RankingExplanation(
            text=read.text,
            pair=None,
            prediction=self.prediction(self.answer),
            tokens=read.tokens,
            units=split_units(read.text, None, read.tokens, "word"),
            token_scores=self.attribution.scores[0, columns],
            token_by_layer=None if by_layer is None else by_layer[0][:, columns],
            layers=self.attribution.layers,
            method=self.explainer.config.label if self.explainer.config else type(self.explainer).__name__,
            mask_effect=self.mask_effect,
            verifier=self.verification,
            main_layer=main_layer(self.explainer, self.attribution),
            candidate=titles[0],
            rank=1 + int((scores > scores[0]).sum()),
            candidates=tuple(titles),
            probabilities=tuple(probabilities),
            history=self.row.read(self.task.max_history),
            titles=read.spans,
            includes_candidate=self.explain != "history",
        )

    def prediction(self, answer: Distribution) -> Prediction:
        """Return the candidate with the highest probability, the click, or the score."""
        if isinstance(answer, Categorical):
            best = int(answer.logits[0].argmax())
            candidate = self.row.impression.candidates[self.row.order()[best]]
            label = f"'{candidate.title}'" if best else THIS_CANDIDATE
            return Prediction(label, float(answer.probs[0, best]))
        if isinstance(answer, Bernoulli):
            clicked = float(answer.probs[0])
            return Prediction("clicked" if clicked > 0.5 else "not clicked", max(clicked, 1 - clicked))
        return Prediction(f"score {float(answer.mean[0]):.3f}", None)

    def mask_effect(self, kept: Bool[Tensor, " token"], layer: str | None) -> tuple[float, Prediction]:
        """Return the divergence and the prediction if only these tokens are kept."""
        keep = torch.zeros_like(self.batch.maskable)
        keep[0, list(self.read.columns)] = kept.to(keep.device)
        with torch.no_grad():
            masked = self.explainer.predict_kept(self.batch, keep, layer)
        return float(divergence(self.answer, masked)[0]), self.prediction(masked)

    @property
    def encoded(self) -> EncodedBatch:
        """The batch of this row alone."""
        return EncodedBatch(self.batch, [0], [])

    @property
    def rows(self) -> list[int]:
        """The only row."""
        return [0]

    def units(self, units: Sequence[Unit]) -> TextUnits:
        """Return the columns of the tokens of each unit."""
        return TextUnits.of_row(0, self.read.unit_columns(units))

    def verification(self, units: tuple[Unit, ...], kind: str) -> Verification:
        """Search the smallest sufficient set of units on the model."""
        return verify_texts([self], [units], kind, logits(self.answer), self.attribution)[0]
