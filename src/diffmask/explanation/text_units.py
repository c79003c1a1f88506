"""From word pieces to what a reader reads: words, sentences, or any spans of characters.

A token belongs to every span it shares a character with; spans that share a token are one. This needs nothing but the
tokenizer's offsets, so it is the same for word pieces, byte pairs that carry their space, and sentence pieces, and for
tokenizers that take a whole text as one word.

The score of a word is the largest of its tokens': a word is needed where any of its pieces is. So the words over a
threshold are exactly those with a token over it, and erasing the others erases no token over it. A mean would let a
long word hide the one piece that matters; a sum would favour words in many pieces.
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

Span = tuple[int, int]
"""First character, and the one after the last."""

JOINERS = "_\u200c\u200d"
SENTENCE_END = re.compile(r"[.!?\u2026\u3002\uff01\uff1f]+[\"')\]\u201d\u2019]*(?=\s|$)|\n+|(?<=[\u3002\uff01\uff1f])")


@dataclass(frozen=True)
class Token:
    """A word piece and where it stands."""

    piece: str
    """As the tokenizer spells it."""
    span: Span
    segment: int = 0
    """0 for the text, 1 for the second text of a pair."""
    copy: int = 0
    """Which of several pieces of one character that are spelt the same."""


@dataclass(frozen=True)
class Unit:
    """A word, a sentence or a span: its characters, and the places of its tokens."""

    text: str
    span: Span
    segment: int
    tokens: tuple[int, ...]


@dataclass(frozen=True)
class ReadRow:
    """One row of a batch as a person reads it."""

    words: tuple[str, ...]
    gaps: tuple[str, ...]
    """What stands before each word, and after the last."""
    columns: tuple[tuple[int, ...], ...]
    """For each word the columns of its tokens."""


def word_spans(text: str) -> list[Span]:
    """Runs of letters, digits and marks; any other character that is not a space stands alone.

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
    """Pieces that end with a full stop, a question or exclamation mark before a space, or with a line.

    >>> [text[a:b] for text in ["A mess. But I loved it!"] for a, b in sentence_spans(text)]
    ['A mess.', 'But I loved it!']
    """
    ends = [found.end() for found in SENTENCE_END.finditer(text)]
    cuts = [0, *ends, len(text)]
    return [span for span in (_strip_span(text, *pair) for pair in pairwise(cuts)) if span]


def group_tokens(text: str, spans: Sequence[Span], tokens: Sequence[Token], segment: int = 0) -> list[Unit]:
    """The spans that have tokens, in order; those that share one, or overlap, are joined."""
    apart = _merge_spans(spans)
    starts, ends = [first for first, _ in apart], [last for _, last in apart]
    members: list[list[int]] = [[] for _ in apart]
    bridges: list[Span] = []
    for place, token in enumerate(tokens):
        touched = range(bisect_right(ends, token.span[0]), bisect_left(starts, token.span[1]))
        if token.segment == segment and touched:
            members[touched[0]].append(place)
            bridges.append((starts[touched[0]], ends[touched[-1]]))
    units = []
    for first, last in _merge_spans(bridges):
        inside = range(bisect_left(starts, first), bisect_right(ends, last))
        own = sorted(place for number in inside for place in members[number])
        units.append(Unit(text[first:last], (first, last), segment, tuple(own)))
    return units


def _merge_spans(spans: Iterable[Span]) -> list[Span]:
    """Spans in order, overlapping ones made one."""
    found: list[Span] = []
    for first, last in sorted(spans):
        if found and first < found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], last))
        else:
            found.append((first, last))
    return found


def max_over_tokens(scores: Float[Tensor, "*layer token"], units: Sequence[Unit]) -> Float[Tensor, "*layer unit"]:
    """The score of each unit: the largest of its tokens'."""
    if not units:
        return scores.new_zeros(*scores.shape[:-1], 0)
    return torch.stack([scores[..., list(unit.tokens)].amax(dim=-1) for unit in units], dim=-1)


def _continues(text: str, place: int) -> bool:
    """Whether a character belongs to the word before it."""
    before, here = text[place - 1], text[place]
    # A mark or a joiner belongs to what it follows, and an emoji after a joiner to the emoji before it.
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
