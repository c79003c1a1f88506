"""The table behind every picture of an explanation: words down, layers across."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Grid:
    """Everything a picture shows, as plain values."""

    title: str
    verdict: str
    """What the last hard mask claims, and what it does."""
    headings: tuple[str, ...]
    """Short names of the layers, or `score` alone."""
    words: tuple[str, ...]
    values: tuple[tuple[float, ...], ...]
    """One row a word, between 0 and 1."""
    kept: tuple[bool, ...]
    """Whether the word survives the last hard mask."""
    masked: tuple[float, ...]
    """Share of words that each column's hard mask erases."""
    divergences: tuple[float, ...]
    """What each column's hard mask does to the answer, in nats."""


def short(layer: str) -> str:
    """A layer's name as a heading.

    >>> [short(name) for name in ("embedding", "block3", "output")]
    ['E', '3', 'out']
    """
    return {"embedding": "E", "output": "out"}.get(layer, layer.removeprefix("block"))
