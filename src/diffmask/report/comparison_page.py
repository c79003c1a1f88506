"""One page about two models: the words whose importance changed, sign flips and examples. No torch, no scripts."""

from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from diffmask.results.word_shift import ExplainedText, ModelComparison, WordShift

SHOWN = 30
"""Words in the table."""
STYLE = (
    ":root{color-scheme:light dark}"
    "body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}"
    "table{border-collapse:collapse}td,th{padding:2px 10px;text-align:right}th:first-child{text-align:left}"
    ".bar{display:inline-block;height:.7em;background:#e07b12}.less{background:#3b7dd8}.sure{font-weight:bold}"
)


def comparison_page(comparison: "ModelComparison") -> str:
    """Return the page as text; everything that comes from data is escaped."""
    first, second = map(escape, comparison.names)
    title = f"{first} against {second}"
    parts = [
        f"<h1>{title}</h1>",
        f"<p>{comparison.texts} texts, explained to both models by {escape(comparison.method)}. "
        f"{len(comparison.significant)} of {len(comparison.words)} words changed by more than "
        f"{comparison.smallest_change:g} (bold; bootstrap over texts, corrected by Holm for all words).</p>",
        _table(comparison.words[:SHOWN], first, second),
        _flips(comparison.sign_flips),
        "<h2>Texts that changed most</h2>",
        *(_example(text, (first, second)) for text in comparison.examples),
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{title}</title><style>{STYLE}</style></head><body>\n" + "\n".join(parts) + "\n</body></html>\n"
    )


def _table(words: Sequence["WordShift"], first: str, second: str) -> str:
    names = ("word", first, second, "change", "95 %", "p", "texts", "")
    head = "".join(f"<th>{name}</th>" for name in names)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(map(_row, words))}</tbody></table>"


def _row(word: "WordShift") -> str:
    width, side = 100 * min(abs(word.difference), 1), " less" if word.difference < 0 else ""
    bar = f'<span class="bar{side}" style="width:{width:.0f}px">'
    cells = [
        f"{word.first:.2f}",
        f"{word.second:.2f}",
        f"{word.difference:+.2f}",
        f"{word.low:+.2f} to {word.high:+.2f}",
        f"{word.p_value:.2g}",
        str(word.texts),
        f"{bar}</span>",
    ]
    kind = ' class="sure"' if word.significant else ""
    return f"<tr{kind}><th>{escape(word.word)}</th>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"


def _flips(words: Iterable["WordShift"]) -> str:
    names = ", ".join(f"{escape(word.word)} ({word.first:+.2f} to {word.second:+.2f})" for word in words)
    return f"<p>Sign flips: {names}.</p>" if names else "<p>No word changes its sign.</p>"


def _example(text: "ExplainedText", names: tuple[str, str]) -> str:
    lines = []
    for name, scores, prediction in zip(names, (text.first, text.second), text.predictions, strict=True):
        words = " ".join(
            f'<span style="background:rgba({"240,140,20" if score > 0 else "60,125,216"},{min(abs(score), 1):.2f})">'
            f"{escape(word)}</span>"
            for word, score in zip(text.words, scores, strict=True)
        )
        lines.append(f"<p>{name}: {words} <small>({escape(prediction)})</small></p>")
    return f"<section>{''.join(lines)}</section><hr>"
