"""Task of a news recommender: a row is one impression and one of its candidates."""

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Literal, cast, get_args

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn
from torch.distributions import Bernoulli, Distribution, Normal

from diffmask.core.answers import RankingAnswer
from diffmask.core.batch import Batch, map_by_length, spread_indices
from diffmask.core.capabilities import RowText
from diffmask.core.hooks import Edit, Site, frozen
from diffmask.core.task import Task
from diffmask.datasets.mind import Candidate, Impression, read_impressions
from diffmask.errors import InputError, nearest
from diffmask.explanation.collection import ExplanationList
from diffmask.explanation.explanation import Explanation
from diffmask.explanation.text_units import ReadRow
from diffmask.results.records import write_text
from diffmask.tasks.recommender.explain_impressions import explain_candidates, title_words
from diffmask.tasks.recommender.nrms import NRMS, Slots
from diffmask.tasks.recommender.nrms_files import load_nrms, save_nrms
from diffmask.tasks.recommender.titles import (
    Explained,
    ExplainedCandidate,
    TitleGrid,
    TitleTable,
    VectorCache,
    encode_rows,
    slots_of,
)
from diffmask.tasks.text.encoding import TextEncoder, TextEncodingConfig, token_strings
from diffmask.tasks.text.inspection import find_sites
from diffmask.tasks.text.pretrained import max_input_tokens

Answer = Literal["ranking", "score", "click"]
"""Distribution over the candidates, score of the explained one, or probability that it is clicked."""
ExplainedRows = Literal["clicked", "all"]
Impressions = str | Path | Sequence[Impression]

NO_CANDIDATE = -30.0
"""Logit of padding in the answer of impressions with fewer candidates: a probability of 1e-13."""
TITLES_AT_ONCE = 512


class NewsRecommender(Task, RowText):
    """Recommender with its impressions. Class 0 of an answer is the explained candidate.

    Args:
        model: The recommender, or its folder.
        tokenizer: The model's fast tokenizer; needed only if `model` is a module.
        train, valid, test: Impressions of each split: a folder in MIND's format, a pairwise table, or a list.
        explain: Titles whose words are explained: the candidate's, those of the history, or both.
        answer: The explained answer. `ranking`: softmax over the impression's candidates. `score`: the candidate's
            score as a Normal with the deviation of validation scores. `click`: whether it, and no other, is clicked.
        rows: Candidates that are explained in each impression: the clicked ones (all if none is), or all.
        negatives: Unclicked candidates per click among the training rows of `rows="clicked"`. Without them a method
            sees only titles that their users want, and cannot learn that the same words are not needed for others.
        max_rows: Largest number of rows per split, evenly spaced.
    """

    model: Any
    attention_masked = True
    has_context: ClassVar[bool] = True
    placeholder: ClassVar[ExplainedCandidate] = ExplainedCandidate(
        Impression(candidates=(Candidate(title="a"), Candidate(title="b")), history=("c",)), 0
    )
    comparison_fields: ClassVar[Mapping[str, Any]] = MappingProxyType({"candidate": "all", "explain": "candidate"})

    def __init__(
        self,
        model: str | Path | nn.Module,
        tokenizer: Any = None,
        *,
        train: Impressions | None = None,
        valid: Impressions | None = None,
        test: Impressions | None = None,
        explain: Explained = "both",
        answer: Answer = "ranking",
        rows: ExplainedRows = "clicked",
        negatives: int = 1,
        max_rows: int | None = None,
    ) -> None:
        _require_choice("explain", explain, get_args(Explained))
        _require_choice("answer", answer, get_args(Answer))
        _require_choice("rows", rows, get_args(ExplainedRows))
        if negatives < 0:
            raise InputError(f"negatives={negatives} must not be negative")
        if isinstance(model, nn.Module):
            if not isinstance(model, NRMS) or tokenizer is None:
                raise InputError("a recommender is given as its folder, or as an NRMS module with its tokenizer")
            recommender, self.name_or_path = model, ""
        else:
            (recommender, tokenizer), self.name_or_path = load_nrms(model), str(model)
        self.tokenizer, self.explained, self.answer, self.rows = tokenizer, explain, answer, rows
        self.negatives = negatives
        self.mask_token, self.pad_token = tokenizer.mask_token_id, tokenizer.pad_token_id
        self.device = recommender.embedding.weight.device
        self.titles = TitleTable(_text_encoder(recommender, tokenizer))
        self._cache = VectorCache()
        with frozen(recommender):
            super().__init__(recommender, _sites(recommender), {})
        self.training_history: list[dict[str, Any]] = []
        """One record per epoch, after a training."""
        self.impressions: dict[str, list[Impression]] = {}
        """Impressions by split."""
        self.sources: dict[str, list[ExplainedCandidate]] = {}
        """Impression and candidate of each row, by split."""
        for split, source in (("train", train), ("valid", valid), ("test", test)):
            if source is not None:
                self.add_split(split, source, max_rows)

    def add_split(self, split: str, source: Impressions, max_rows: int | None = None) -> None:
        """Read the impressions of a split and encode its rows."""
        impressions = read_impressions(source) if isinstance(source, str | Path) else list(source)
        chosen = [row for impression in impressions for row in self._explained_rows(impression)]
        if split == "train" and self.rows == "clicked":
            chosen += [row for impression in impressions for row in self._negative_rows(impression)]
            # Whatever part of the rows is used has clicked and unclicked candidates.
            random.Random("negatives").shuffle(chosen)
        if not chosen:
            raise InputError(f"no impression of '{split}' can be explained: each needs two candidates and a history")
        self.impressions[split] = impressions
        self.sources[split] = [chosen[index] for index in spread_indices(len(chosen), max_rows or len(chosen))]
        self.data[split] = self.encode(self.sources[split])

    def _explained_rows(self, impression: Impression) -> list[ExplainedCandidate]:
        if len(impression.candidates) < 2 or (self.explained == "history" and not impression.history):
            return []
        every = self.rows == "all" or not impression.clicked
        candidates = range(len(impression.candidates)) if every else impression.clicked
        return [ExplainedCandidate(impression, index) for index in candidates]

    def _negative_rows(self, impression: Impression) -> list[ExplainedCandidate]:
        """Draw unclicked candidates of an impression; the same ones every time."""
        if not impression.clicked or (self.explained == "history" and not impression.history):
            return []
        others = [index for index in range(len(impression.candidates)) if index not in impression.clicked]
        count = min(len(others), self.negatives * len(impression.clicked))
        drawn = random.Random(f"{impression.id} {impression.user}").sample(others, count)
        return [ExplainedCandidate(impression, index) for index in drawn]

    @property
    def max_history(self) -> int:
        """Titles of a history that the model reads."""
        return cast(int, self.model.config.max_history)

    def encode(self, rows: Sequence[ExplainedCandidate], explain: Explained | None = None) -> Batch:
        """Return rows as a batch; `explain` restricts the words that may be masked."""
        batch = encode_rows(rows, self.titles, self.explained, self.max_history, self.pad_token).to(self.device)
        if explain in (None, self.explained):
            return batch
        if self.explained != "both":
            raise InputError(
                f"this task explains the {self.explained}; NewsRecommender(..., explain='both') also explains {explain}"
            )
        in_candidate = batch.token_inputs["title"] == 1
        chosen = in_candidate if explain == "candidate" else ~in_candidate
        return replace(batch, maskable=batch.maskable & chosen)

    def placeholder_batch(self) -> Batch:
        """Return one made-up impression, from which methods without training rows learn the width of states."""
        return self.encode([self.placeholder])

    def predict(self, batch: Batch, edits: Mapping[str, Edit] | None = None) -> Distribution:
        """Run the model with some sites edited; edits see the tokens of all explained titles of a row."""
        if not edits:
            return super().predict(batch)
        self._context(batch)  # before the hooks of the edits are attached
        grid = TitleGrid.of(batch)
        return super().predict(batch, {name: grid.adapt_edit(edit) for name, edit in edits.items()})

    def forward(self, batch: Batch) -> Distribution:
        """Run the frozen recommender."""
        with frozen(self.model):
            return self._distribution(self._scores(batch), batch)

    def _scores(self, batch: Batch) -> Float[Tensor, "row candidate"]:
        grid = TitleGrid.of(batch)
        context, slots = self._slots(batch, grid)
        return self.model(*self._grid(batch, grid), context, slots)

    def _grid(self, batch: Batch, grid: TitleGrid) -> tuple[Tensor, Tensor]:
        return grid.to_grid(batch.tokens, self.pad_token), grid.to_grid(batch.present, False)

    def _slots(self, batch: Batch, grid: TitleGrid) -> tuple[Float[Tensor, "title width"], Slots]:
        vectors, lines = self._context(batch)
        return vectors, slots_of(batch, grid, lines, grid.lines)

    def _context(self, batch: Batch) -> tuple[Float[Tensor, "title width"], Int[Tensor, "row slot"]]:
        """Return the vectors of the titles that are not explained, from the cache where it has them."""
        weights = tuple((value.data_ptr(), value._version) for value in self.model.parameters())
        vectors, lines = self._cache.look_up(batch.inputs["context"], weights, self._encode_tokens)
        return vectors.to(self.device), lines.to(self.device)

    @torch.no_grad()
    def _encode_tokens(self, titles: list[tuple[int, ...]]) -> Float[Tensor, "title width"]:
        parts = []
        with frozen(self.model):
            for start in range(0, len(titles), TITLES_AT_ONCE):
                chunk = titles[start : start + TITLES_AT_ONCE]
                width = max(map(len, chunk))
                tokens = torch.tensor([[*title, *[self.pad_token] * (width - len(title))] for title in chunk])
                present = torch.arange(width)[None] < torch.tensor([[len(title)] for title in chunk])
                parts.append(self.model.encode(tokens.to(self.device), present.to(self.device)))
        return torch.cat(parts)

    def _distribution(self, scores: Float[Tensor, "row candidate"], batch: Batch) -> Distribution:
        offered = batch.inputs["candidates"] != 0
        visible = scores.float().masked_fill(~offered, -torch.inf)
        if self.answer == "score":
            deviation = self.model.score_deviation.to(visible)
            return Normal(visible[:, 0], deviation.expand(len(visible)), validate_args=False)
        if self.answer == "click":
            return Bernoulli(logits=visible[:, 0] - visible[:, 1:].logsumexp(dim=1), validate_args=False)
        logits = visible.log_softmax(dim=1).masked_fill(~offered, NO_CANDIDATE)
        return RankingAnswer(logits=logits, validate_args=False)

    def distribution(self, values: Float[Tensor, "row *feature"]) -> Distribution:
        """Return the answer with these logits."""
        if self.answer == "ranking":
            return RankingAnswer(logits=values, validate_args=False)
        if self.answer == "click":
            return Bernoulli(logits=values, validate_args=False)
        deviation = self.model.score_deviation.to(values)
        return Normal(values * deviation, deviation.expand(len(values)), validate_args=False)

    @torch.no_grad()
    def scores(self, batch: Batch) -> Float[Tensor, "row candidate"]:
        """Return the model's scores, the explained candidate first; -inf for padding."""
        with frozen(self.model):
            return self._scores(batch).masked_fill(batch.inputs["candidates"] == 0, -torch.inf)

    @torch.no_grad()
    def score(self, batch: Batch) -> float:
        """Return the share of rows whose highest score is the first clicked candidate."""

        def right(rows: Batch) -> Tensor:
            return (self.scores(rows).argmax(dim=1) == rows.target).float()

        return float(map_by_length(right, batch, 128).mean())

    @torch.no_grad()
    def attentions(self, batch: Batch) -> Float[Tensor, "row layer head query key"]:
        """Return the attention that pools words to a title, times that of the title in the history if it is read."""
        grid = TitleGrid.of(batch)
        tokens, present = self._grid(batch, grid)
        with frozen(self.model):
            words = self.model.word_states(tokens, present)
            weights = self.model.word_attention.weights(words, present)
            context, slots = self._slots(batch, grid)
            titles = torch.cat([self.model.title_vectors(words, present), context])
            read = self.model.history_mixer(titles[slots.history], slots.read)
            shares = self.model.history_attention.weights(read, slots.read)
        shown = titles.new_ones(len(titles)).index_put((slots.history[slots.read],), shares[slots.read])
        return grid.to_rows(weights * shown[: len(weights), None])[:, None, None, None]

    def explain(
        self,
        explainer: Any,
        inputs: Any = None,
        target: Any = None,
        verify: bool = True,
        **fields: Any,
    ) -> Explanation | list[Explanation]:
        """Return the explanation of one impression, or of a list of them.

        An impression is given by `history`, the titles that the user has read, and `candidates`, the titles on offer,
        as named fields or as a mapping; or as an `Impression`. `candidate` is the index of the explained one, by
        default the one with the highest score; "all" explains every one. `explain` is `candidate`, `history` or `both`.
        """
        if target is not None:
            raise InputError("a recommender explains one candidate: give candidate=INDEX instead of target")
        items = inputs if isinstance(inputs, list) else [inputs]
        requests = [_request({**_fields(item), **fields}) for item in items]
        explanations: dict[int, Explanation] = {}
        numbered = list(enumerate((request, row) for request in requests for row in self._rows(request)))
        for explain in dict.fromkeys(request.get("explain", self.explained) for request in requests):
            _require_choice("explain", explain, get_args(Explained))
            chosen = [number for number, (request, _) in numbered if request.get("explain", self.explained) == explain]
            rows = [numbered[number][1][1] for number in chosen]
            explanations |= zip(chosen, explain_candidates(self, explainer, rows, explain, verify=verify), strict=True)
        explanation_list = ExplanationList(explanations[number] for number, _ in numbered)
        return explanation_list if isinstance(inputs, list) or len(explanation_list) > 1 else explanation_list[0]

    def _rows(self, request: Mapping[str, Any]) -> list[ExplainedCandidate]:
        impression = request["impression"]
        explained, count = request.get("candidate"), len(impression.candidates)
        if explained == "all":
            return [ExplainedCandidate(impression, index) for index in range(count)]
        if explained is None:
            explained = int(self.rank(impression).argmax())
        if not isinstance(explained, int) or not 0 <= explained < count:
            raise InputError(f"candidate={explained!r} is not an index of the {count} candidates")
        return [ExplainedCandidate(impression, explained)]

    @torch.no_grad()
    def rank(self, impression: Impression) -> Float[Tensor, " candidate"]:
        """Return the scores of an impression's candidates, in their order."""
        titles = [*impression.history[-self.max_history :], *(candidate.title for candidate in impression.candidates)]
        self.titles.add(titles)
        vectors = self._encode_tokens([tuple(self.titles.tokens(title)) for title in titles])
        read = len(titles) - len(impression.candidates)
        slots = Slots.of([range(read, len(titles))], [range(read)])
        with frozen(self.model):
            return self.model.scores(vectors, slots)[0]

    def describe(self, batch: Batch) -> list[list[str]]:
        """Return the word pieces of each row."""
        return token_strings(self.tokenizer, batch)

    def read_row(self, split: str, row: int) -> ReadRow:
        """Return the words of a row's explained titles."""
        if split not in self.sources:
            return super().read_row(split, row)
        return title_words(self, self.sources[split][row])

    def outcomes(self, target: Shaped[Tensor, "row *event"]) -> list[str | None]:
        """Return `this candidate` for class 0, and numbers for the others."""
        return ["this candidate" if value == 0 else f"candidate {int(value)}" for value in target.tolist()]

    def subset(self, split: str, rows: Int[Tensor, " row"]) -> "NewsRecommender":
        """Return the task with only the given rows of a split."""
        task = cast(NewsRecommender, super().subset(split, rows))
        if split in self.sources:
            task.sources = {**self.sources, split: [self.sources[split][row] for row in rows.tolist()]}
        return task

    def save_pretrained(self, folder: str | Path, notes: dict[str, Any] | None = None) -> None:
        """Write the recommender and, after a training, its history; `NewsRecommender(folder)` reads the recommender."""
        save_nrms(self.model, self.tokenizer, folder, notes)
        if self.training_history:
            write_text(Path(folder) / "training_history.json", json.dumps(self.training_history, indent=1))


FIELDS = ("history", "candidates", "candidate", "explain")


def _fields(item: Any) -> dict[str, Any]:
    if item is None:
        return {}
    if isinstance(item, Impression):
        return {"impression": item}
    if not isinstance(item, Mapping):
        raise InputError(
            f"a recommender explains an impression, not a {type(item).__name__}: give history=[...], candidates=[...]"
        )
    return dict(item)


def _request(fields: dict[str, Any]) -> dict[str, Any]:
    """Check the fields of one impression."""
    for name in fields:
        if name not in (*FIELDS, "impression"):
            raise InputError(f"'{name}' is not a field of an impression; {nearest(name, FIELDS)}")
    if "impression" not in fields:
        candidates = _titles("candidates", fields.get("candidates", ()))
        history = _titles("history", fields.get("history", ()))
        offered = tuple(Candidate(title=title) for title in candidates)
        fields["impression"] = Impression(candidates=offered, history=history)
    if len(fields["impression"].candidates) < 2:
        raise InputError("an impression has at least two candidates: their ranking is explained")
    if not fields["impression"].history and fields.get("explain") in ("history", "both"):
        raise InputError("the history is empty: there are no read titles to explain; use explain='candidate'")
    return fields


def _titles(name: str, titles: Any) -> tuple[str, ...]:
    if isinstance(titles, str) or not all(isinstance(title, str) for title in titles):
        raise InputError(f"{name} is a list of titles, found {titles!r}")
    for place, title in enumerate(titles):
        if not title.strip():
            raise InputError(f"{name}[{place}] is an empty title")
    return tuple(titles)


def _require_choice(name: str, value: str, known: Sequence[str]) -> None:
    if value not in known:
        raise InputError(f"{name}='{value}' is unknown; {nearest(str(value), known)}")


def _text_encoder(model: NRMS, tokenizer: Any) -> TextEncoder:
    limit = max_input_tokens(model.encoder, tokenizer)
    return TextEncoder(tokenizer, TextEncodingConfig(max_tokens=model.config.max_tokens), limit)


def _sites(model: NRMS) -> dict[str, Site]:
    """Return the sites of the encoder, the mixed words, and the words with what they are matched with."""
    tail = {"words": Site("word_mixer"), "match": Site("match")}
    if isinstance(model.encoder, nn.Embedding):
        return {"embedding": Site("encoder"), **tail}

    def vectors(ids: Tensor) -> Tensor:
        return model.encode(ids, torch.ones_like(ids, dtype=torch.bool))

    depth = getattr(model.encoder.config, "num_hidden_layers", None)
    return {**find_sites(model, model.embedding, vectors, depth), **tail}
