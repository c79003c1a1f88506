"""Words, sentences and character spans of a text, as groups of its tokens.

A token belongs to every span it shares a character with; spans that share a token are merged. Only the tokenizer's
offsets are needed, so word pieces, byte pairs that carry their space, and sentence pieces are handled alike.

The score of a word is the maximum over its tokens. The words above a threshold are then exactly those with a token
above it, so erasing the other words erases no such token. A mean would hide one important piece of a long word; a sum
would favour words with many pieces.
"""

import re
import unicodedata
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from jaxtyping import Float
from torch import Tensor

from diffmask.errors import InputError, nearest

Span = tuple[int, int]
"""Start and end offsets in characters; the end is exclusive."""

JOINERS = "_\u200c\u200d"
SENTENCE_END = re.compile(r"[.!?\u2026\u3002\uff01\uff1f]+[\"')\]\u201d\u2019]*(?=\s|$)|\n+|(?<=[\u3002\uff01\uff1f])")

CLAUSE_END = re.compile(rf"[,;:()\[\]\u2013\u2014]+(?=\s|$)|(?<=\s)-+(?=\s)|{SENTENCE_END.pattern}")


@dataclass(frozen=True)
class Token:
    """A word piece and its character span."""

    piece: str
    """As the tokenizer spells it."""
    span: Span
    segment: int = 0
    """0 for the text, 1 for the second text of a pair."""
    copy: int = 0
    """Index among equal pieces of one character."""


@dataclass(frozen=True)
class Unit:
    """A word, a sentence or a span: its characters and the indices of its tokens."""

    text: str
    span: Span
    segment: int
    tokens: tuple[int, ...]


@dataclass(frozen=True)
class ReadRow:
    """The words of one row of a batch and the columns of their tokens."""

    words: tuple[str, ...]
    gaps: tuple[str, ...]
    """Text before each word, and after the last one."""
    columns: tuple[tuple[int, ...], ...]
    """Columns of the tokens of each word."""


def word_spans(text: str) -> list[Span]:
    """Find words: runs of letters, digits and marks; any other character except white space is a word of its own.

    >>> [text[a:b] for text in ["It's 5 o'clock!"] for a, b in word_spans(text)]
    ["It's", '5', "o'clock", '!']
    """
    spans: list[Span] = []
    for place, character in enumerate(text):
        if character.isspace():
            continue
        follows = bool(spans) and spans[-1][1] == place
        if follows and _continues(text, place):
            spans[-1] = (spans[-1][0], place + 1)
        else:
            spans.append((place, place + 1))
    return spans


def sentence_spans(text: str) -> list[Span]:
    """Find sentences: they end with a full stop, question or exclamation mark before white space, or with a line.

    >>> [text[a:b] for text in ["A mess. But I loved it!"] for a, b in sentence_spans(text)]
    ['A mess.', 'But I loved it!']
    """
    ends = [match.end() for match in SENTENCE_END.finditer(text)]
    cuts = [0, *ends, len(text)]
    return [span for span in (_strip_span(text, *pair) for pair in pairwise(cuts)) if span]


def clause_spans(text: str) -> list[Span]:
    """Find clauses: they end with a comma, semicolon, colon, bracket, dash or the end of a sentence.

    >>> [text[a:b] for text in ["A mess, but fun. I loved it!"] for a, b in clause_spans(text)]
    ['A mess,', 'but fun.', 'I loved it!']
    """
    cuts = [0, *(match.end() for match in CLAUSE_END.finditer(text)), len(text)]
    return [span for span in (_strip_span(text, *pair) for pair in pairwise(cuts)) if span]


def is_punctuation(text: str) -> bool:
    """Return whether a unit has no letter, digit or symbol, only punctuation.

    >>> [is_punctuation(word) for word in ("...", "!", "5", "o'clock", "+")]
    [True, True, False, False, False]
    """
    return all(unicodedata.category(character).startswith("P") for character in text)


def group_tokens(text: str, spans: Sequence[Span], tokens: Sequence[Token], segment: int = 0) -> list[Unit]:
    """Group tokens by span, in order; spans that overlap or share a token are merged."""
    apart = _merge_spans(spans)
    starts, ends = [first for first, _ in apart], [last for _, last in apart]
    members: list[list[int]] = [[] for _ in apart]
    bridges: list[Span] = []
    for index, token in enumerate(tokens):
        touched = range(bisect_right(ends, token.span[0]), bisect_left(starts, token.span[1]))
        if token.segment == segment and touched:
            members[touched[0]].append(index)
            bridges.append((starts[touched[0]], ends[touched[-1]]))
    units = []
    for first, last in _merge_spans(bridges):
        inside = range(bisect_left(starts, first), bisect_right(ends, last))
        indices = sorted(index for number in inside for index in members[number])
        units.append(Unit(text[first:last], (first, last), segment, tuple(indices)))
    return units


def unit_gaps(text: str, pair: str | None, units: Sequence[Unit]) -> tuple[str, ...]:
    """Return the text before each unit and after the last one; a line break separates the two texts of a pair.

    >>> unit_gaps("So, so good!", None, [Unit("so", (4, 6), 0, (0,)), Unit("good", (7, 11), 0, (1,))])
    ('So, ', ' ', '!')
    """
    texts = (text, pair or "")
    gaps, segment, end = [], 0, 0
    for unit in units:
        if unit.segment == segment:
            gaps.append(texts[segment][end : unit.span[0]])
        else:
            gaps.append(f"{texts[0][end:]}\n{texts[1][: unit.span[0]]}")
        segment, end = unit.segment, unit.span[1]
    rest = texts[segment][end:] + (f"\n{texts[1]}" if segment == 0 and pair else "")
    return (*gaps, rest)


def mark_span(gaps: Sequence[str], units: Sequence[Unit], span: tuple[int, int, int]) -> tuple[str, ...]:
    """Return the gaps with « before the first and » after the last unit inside a span (segment, start, end).

    >>> units = [Unit("so", (0, 2), 0, (0,)), Unit("good", (3, 7), 0, (1,))]
    >>> mark_span(("", " ", "!"), units, (0, 3, 7))
    ('', ' «', '»!')
    """
    segment, start, end = span
    inside = [
        index
        for index, unit in enumerate(units)
        if unit.segment == segment and unit.span[0] < end and unit.span[1] > start
    ]
    if not inside:
        return tuple(gaps)
    marked = list(gaps)
    marked[inside[0]] += "«"
    marked[inside[-1] + 1] = f"»{marked[inside[-1] + 1]}"
    return tuple(marked)


def _merge_spans(spans: Iterable[Span]) -> list[Span]:
    """Sort spans and merge overlapping ones."""
    merged: list[Span] = []
    for first, last in sorted(spans):
        if merged and first < merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], last))
        else:
            merged.append((first, last))
    return merged


def max_over_tokens(scores: Float[Tensor, "*layer token"], units: Sequence[Unit]) -> Float[Tensor, "*layer unit"]:
    """Return the maximum score over the tokens of each unit."""
    if not units:
        return scores.new_zeros(*scores.shape[:-1], 0)
    return torch.stack([scores[..., list(unit.tokens)].amax(dim=-1) for unit in units], dim=-1)


def _continues(text: str, place: int) -> bool:
    """Return whether a character belongs to the word before it."""
    before, here = text[place - 1], text[place]
    # A combining mark or a joiner belongs to the preceding character; an emoji after a joiner to the emoji before it.
    if unicodedata.category(here).startswith("M") or here in "\u200c\u200d" or before == "\u200d":
        return True
    if here in "'\u2019-":
        return _in_word(before) and place + 1 < len(text) and _in_word(text[place + 1])
    if before in "'\u2019-":
        return place > 1 and _in_word(text[place - 2]) and _in_word(here)
    return _in_word(before) and _in_word(here)


def _in_word(character: str) -> bool:
    letter = character.isalnum() or character in JOINERS or unicodedata.category(character).startswith("M")
    return letter and not "\u3400" <= character <= "\u9fff"


def _strip_span(text: str, first: int, last: int) -> Span | None:
    inner = text[first:last].strip()
    start = first + text[first:last].find(inner)
    return (start, start + len(inner)) if inner else None


def split_units(
    text: str, pair: str | None, tokens: Sequence[Token], granularity: str | Sequence[Span]
) -> tuple[Unit, ...]:
    """Split a text, and the second text of a pair, into units."""
    if granularity == "token":
        return tuple(Unit(token.piece, token.span, token.segment, (place,)) for place, token in enumerate(tokens))
    if not isinstance(granularity, str):
        return tuple(group_tokens(text, granularity, tokens))
    rules = {"word": word_spans, "clause": clause_spans, "sentence": sentence_spans}
    if granularity not in rules:
        raise InputError(f"'{granularity}' is not a granularity; {nearest(granularity, ['token', *rules])}")
    rule = rules[granularity]
    units = [*group_tokens(text, rule(text), tokens), *group_tokens(pair or "", rule(pair or ""), tokens, segment=1)]
    return tuple(units)
