"""Picture of an explanation: the coloured sentence, then words by layers; in a terminal, as HTML, as a figure."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from html import escape
from typing import Any

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text

from diffmask.errors import TaskError
from diffmask.results.formatting import format_decimal

LONGEST_WORD = 24
"""Cells that a word may take in the table of a terminal; the sentence above it shows longer words whole."""
SHORTEST_WORD = 12
"""Cells that a word keeps in a narrow terminal."""
MAX_WORDS = 60
"""Words in the table of a terminal; of a longer text the words with the largest values are listed."""


@dataclass(frozen=True, kw_only=True)
class Heatmap:
    """Plain values of a heat map."""

    title: str
    verdict: str
    """Sentence about the hard mask of the last column and its measured effect."""
    headings: tuple[str, ...]
    """Short names of the layers, or `score` alone."""
    words: tuple[str, ...]
    values: tuple[tuple[float, ...], ...]
    """One row per word, between 0 and 1; negative down to -1 if the word speaks against the explained class."""
    kept: tuple[bool, ...]
    """Whether the hard mask of the last column keeps the word."""
    masked: tuple[float, ...]
    """Share of words erased by each column's hard mask."""
    divergences: tuple[float, ...]
    """KL(original || masked) of each column's hard mask, in nats."""
    gaps: tuple[str, ...] = ()
    """Text before each word, and after the last one; by default one space between words."""
    legend: str = ""
    """Meaning of the columns and numbers."""

    @property
    def sentence(self) -> Iterator[tuple[str, int | None]]:
        """Yield the pieces of the text in order: gaps with None, words with their index."""
        gaps = self.gaps or ("", *[" "] * (len(self.words) - 1), "")
        for index, word in enumerate(self.words):
            yield gaps[index], None
            yield word, index
        yield gaps[-1], None

    @property
    def shades(self) -> tuple[float, ...]:
        """Value that colours each word in the sentence: that of the last column."""
        return tuple(row[-1] for row in self.values)


class HasHeatmap(ABC):
    """An explanation that is shown as a heat map: printed, as HTML, or as a figure."""

    @abstractmethod
    def heatmap(self, threshold: float | None = None) -> Heatmap:
        """Collect words, scores per layer and the measured effect of each layer's hard mask."""

    def show(self, threshold: float | None = None) -> None:
        """Print the coloured sentence and the heat map of words and layers; in a notebook, display them as HTML."""
        show_heatmap(self.heatmap(threshold))

    def to_html(self, threshold: float | None = None) -> str:
        """Return the heat map as an HTML fragment that reads on light and dark pages."""
        return render_heatmap(self.heatmap(threshold))

    def _repr_html_(self) -> str:
        return self.to_html()

    def plot(self, threshold: float | None = None) -> Any:
        """Draw the heat map as a matplotlib figure."""
        return plot_heatmap(self.heatmap(threshold))


def short_layer_name(layer: str) -> str:
    """Return a layer's name as a column heading.

    >>> [short_layer_name(name) for name in ("embedding", "block3", "output")]
    ['E', '3', 'out']
    """
    return {"embedding": "E", "output": "out"}.get(layer, layer.removeprefix("block"))


def describe_columns(layers: Sequence[str]) -> str:
    """Say what the columns of a heat map are.

    >>> describe_columns(["embedding", "block1", "block2", "output"])
    'Columns: E = word embeddings, 1 to 2 = input of that block, out = last output.'
    """
    blocks = [short_layer_name(layer) for layer in layers if layer.startswith("block")]
    span = blocks[0] if len(blocks) == 1 else f"{blocks[0]} to {blocks[-1]}" if blocks else ""
    parts = [
        *(["E = word embeddings"] if "embedding" in layers else []),
        *([f"{span} = input of that block"] if blocks else []),
        *(["out = last output"] if "output" in layers else []),
    ]
    return f"Columns: {', '.join(parts)}." if parts else ""


def show_heatmap(heatmap: Heatmap) -> None:
    """Print the picture in a terminal; display it as HTML in a notebook, which has a background of its own."""
    console = Console()
    if console.is_jupyter:
        from IPython.display import HTML, display  # type: ignore[import-not-found]  # present in every notebook

        display(HTML(render_heatmap(heatmap)))
    else:
        print_heatmap(heatmap, console)


def print_heatmap(heatmap: Heatmap, console: Console | None = None) -> None:
    """Print the sentence and the table; colours read on light and dark terminals, and brackets replace them."""
    out = console or Console()
    out.print(Text(heatmap.title))
    if heatmap.words:
        out.print()
        out.print(_sentence(heatmap, colour=out.color_system is not None and not out.no_color))
        out.print()
        for line in _table(heatmap, out.width):
            out.print(line, no_wrap=True, overflow="crop")
        if heatmap.legend:
            out.print()
            out.print(Text(heatmap.legend, style="dim"))
    out.print(Text(heatmap.verdict))


def _sentence(heatmap: Heatmap, colour: bool) -> Text:
    text = Text(overflow="fold")
    for piece, index in heatmap.sentence:
        if index is None:
            text.append(piece)
        elif colour:
            text.append(piece, style=_style(heatmap.shades[index], heatmap.kept[index]))
        else:
            text.append(f"[{piece}]" if heatmap.kept[index] else piece)
    return text


def _style(value: float, kept: bool = False) -> str:
    """Return a style by size and sign; every one reads on a black and on a white terminal."""
    size = abs(value)
    weight = "bold underline " if kept else ""
    strong, middle, ink = ("#f09030", "#ffc078", "#c06800") if value > 0 else ("#5b9cf0", "#a8ccff", "#2f74d0")
    if size >= 0.5:
        return f"{weight}#000000 on {strong if size >= 0.75 else middle}"
    return f"{weight}{ink}" if size >= 0.15 else weight.strip() or "none"


def _table(heatmap: Heatmap, width: int) -> Iterator[Text]:
    """Yield the lines of the table; columns that do not fit go into a second table below the first."""
    chosen = _largest_words(heatmap)
    labels = ["masked %", "KL", *(heatmap.words[index] for index in chosen)]
    label_width = min(max(map(cell_len, labels)), LONGEST_WORD, max(width - 8, 8))
    narrow = max(4, *(len(heading) + 1 for heading in heatmap.headings))
    if label_width + narrow * len(heatmap.headings) > width:
        label_width = min(label_width, max(width - narrow * len(heatmap.headings), SHORTEST_WORD))
    cell = narrow + (label_width + (narrow + 1) * len(heatmap.headings) <= width)
    blocks = -(-len(heatmap.headings) // max((width - label_width) // cell, 1))
    at_once = -(-len(heatmap.headings) // blocks)  # blocks of equal width
    for start in range(0, len(heatmap.headings), at_once):
        if start:
            yield Text()
        yield from _block(heatmap, chosen, range(start, min(start + at_once, len(heatmap.headings))), label_width, cell)
    if len(chosen) < len(heatmap.words):
        yield Text(f"{len(chosen)} of {len(heatmap.words)} words, those with the largest values", style="dim")


def _largest_words(heatmap: Heatmap) -> list[int]:
    """Return the indices of the words in the table, in the order of the text."""
    indices = range(len(heatmap.words))
    if len(heatmap.words) <= MAX_WORDS:
        return list(indices)
    size = [max(heatmap.kept[index], *(abs(value) for value in heatmap.values[index])) for index in indices]
    return sorted(sorted(indices, key=lambda index: -size[index])[:MAX_WORDS])


def _block(heatmap: Heatmap, chosen: Sequence[int], columns: range, label_width: int, cell: int) -> Iterator[Text]:
    yield Text(" " * label_width + "".join(f"{heatmap.headings[column]:>{cell}}" for column in columns))
    for index in chosen:
        line = Text(_fit(heatmap.words[index], label_width), style="bold" if heatmap.kept[index] else "")
        for column in columns:
            value = heatmap.values[index][column]
            number = _short_decimal(value)
            line.append(" " * (cell - len(number)), style="not bold")
            line.append(number, style=f"not bold {_style(value)}")
        yield line
    for label, numbers in (
        ("masked %", [f"{100 * heatmap.masked[column]:.0f}" for column in columns]),
        ("KL", [_short_decimal(heatmap.divergences[column]) for column in columns]),
    ):
        yield Text(_fit(label, label_width) + "".join(f"{number:>{cell}}" for number in numbers), style="dim")


def _fit(word: str, width: int) -> str:
    """Return a word in exactly `width` cells of a terminal; a long one is cut with an ellipsis."""
    word = " ".join(word.split())
    return set_cell_size(word, width) if cell_len(word) <= width else set_cell_size(word, width - 1) + "…"


def _short_decimal(value: float) -> str:
    """Return a number in at most four characters.

    >>> [_short_decimal(value) for value in (0.0, 0.854, -0.2, 1.0, 2.345, 12.3, -0.001)]
    ['.00', '.85', '-.20', '1.0', '2.3', '12', '.00']
    """
    digits = 2 if abs(value) < 0.995 else 1 if abs(value) < 9.95 else 0
    return format_decimal(value, digits).replace("0.", ".", 1) if digits == 2 else format_decimal(value, digits)


STYLE = (
    ".diffmask{font:14px/1.5 system-ui,sans-serif;color:inherit;max-width:60rem}"
    ".diffmask .scroll{overflow-x:auto}"
    ".diffmask table{border-collapse:collapse;margin:0}"
    ".diffmask td,.diffmask th{padding:1px 6px;text-align:right;font-weight:normal;border:0;background:none}"
    ".diffmask th[scope=row]{text-align:left;max-width:min(14rem,30vw)}"
    ".diffmask th[scope=row]{overflow:hidden;text-overflow:ellipsis;white-space:nowrap}"
    ".diffmask .sentence{font-size:16px;line-height:1.9;white-space:pre-wrap;overflow-wrap:anywhere}"
    ".diffmask .word{border-radius:3px;padding:1px 2px}"
    ".diffmask .kept{font-weight:bold;text-decoration:underline}"
    ".diffmask .legend,.diffmask tfoot{opacity:.75;font-size:12px}"
    "@media(max-width:480px){.diffmask .layers td,.diffmask .layers th{padding:1px 2px;font-size:11px}"
    ".diffmask .layers th[scope=row]{max-width:24vw}}"
)
"""Inherits the colours of the page and adds a transparent orange or blue, so it reads on light and dark pages."""


def render_heatmap(heatmap: Heatmap) -> str:
    """Return an HTML fragment; the text is escaped."""
    picture = ""
    if heatmap.words:
        legend = f'<p class="legend">{escape(heatmap.legend)}</p>' if heatmap.legend else ""
        picture = f'{_html_sentence(heatmap)}<div class="scroll">{_html_table(heatmap)}</div>{legend}'
    verdict = escape(heatmap.verdict).replace("\n", "<br>")
    return f'<div class="diffmask"><style>{STYLE}</style><p>{escape(heatmap.title)}</p>{picture}<p>{verdict}</p></div>'


def html_document(title: str, heatmaps: Sequence[Heatmap]) -> str:
    """Return a page with several heat maps that follows the reader's light or dark preference."""
    parts = "\n".join(f"<section>{render_heatmap(heatmap)}</section>" for heatmap in heatmaps)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{escape(title)}</title></head>"
        f'<body style="max-width:60rem;margin:2rem auto;padding:0 1rem"><h1>{escape(title)}</h1>\n'
        f"{parts}\n</body></html>\n"
    )


def _html_sentence(heatmap: Heatmap) -> str:
    pieces = []
    for piece, index in heatmap.sentence:
        if index is None:
            pieces.append(escape(piece))
            continue
        value, kept = heatmap.shades[index], heatmap.kept[index]
        name = "word kept" if kept else "word"
        pieces.append(
            f'<span class="{name}" style="{_background(value)}" title="{format_decimal(value, 2)}">'
            f"{escape(piece)}</span>"
        )
    return f'<p class="sentence" dir="auto">{"".join(pieces)}</p>'


def _background(value: float) -> str:
    """Return the CSS of a value: the page's ink on a weak colour, black ink on a strong one."""
    colour = "240,140,20" if value >= 0 else "90,160,250"
    level = min(abs(value), 1.0)
    return f"background:rgba({colour},{level:.2f}){';color:#000' if level >= 0.65 else ''}"


def _html_table(heatmap: Heatmap) -> str:
    layers = len(heatmap.headings) > 1  # narrow cells, so that a phone shows all layers
    number = _short_decimal if layers else partial(format_decimal, digits=2)
    head = "".join(f'<th scope="col">{escape(heading)}</th>' for heading in heatmap.headings)
    body = "".join(
        _row(word, values, kept, number)
        for word, values, kept in zip(heatmap.words, heatmap.values, heatmap.kept, strict=True)
    )
    shares = "".join(f"<td>{100 * masked:.0f}</td>" for masked in heatmap.masked)
    small = _short_decimal if layers else partial(format_decimal, digits=3)
    caused = "".join(f"<td>{small(divergence)}</td>" for divergence in heatmap.divergences)
    foot = f'<tr><th scope="row">masked, %</th>{shares}</tr><tr><th scope="row">KL, nats</th>{caused}</tr>'
    kind = ' class="layers"' if layers else ""
    return f"<table{kind}><thead><tr><td></td>{head}</tr></thead><tbody>{body}</tbody><tfoot>{foot}</tfoot></table>"


def _row(word: str, values: tuple[float, ...], kept: bool, number: Callable[[float], str]) -> str:
    cells = "".join(f'<td style="{_background(value)}">{number(value)}</td>' for value in values)
    name = ' class="kept"' if kept else ""
    return f'<tr><th scope="row" dir="auto"{name} title="{escape(word)}">{escape(word)}</th>{cells}</tr>'


def plot_heatmap(heatmap: Heatmap) -> Any:
    """Draw words by layers, as in De Cao et al. 2020; the figure is not attached to a window."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise TaskError("drawing needs matplotlib; pip install 'diffmask[plot]'") from None
    labels = [_label(word) for word in heatmap.words]
    longest = max(map(len, labels), default=0)
    size = (1.8 + 0.09 * longest + 0.4 * len(heatmap.headings), 1.2 + 0.25 * max(len(labels), 1))
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.add_subplot()
    # Over the whole figure: a title over narrow axes would be cut off.
    figure.suptitle(heatmap.title, x=0.02, ha="left", fontsize=10, wrap=True)
    axes.set_xlabel("layer" if len(heatmap.headings) > 1 else "")
    axes.set_xticks(range(len(heatmap.headings)), heatmap.headings)
    axes.set_yticks(range(len(labels)), labels)
    for tick, kept in zip(axes.get_yticklabels(), heatmap.kept, strict=False):
        tick.set_fontweight("bold" if kept else "normal")
    if heatmap.words:
        signed = min(min(row) for row in heatmap.values) < 0
        colours = "PuOr_r" if signed else "Oranges"
        image = axes.imshow(heatmap.values, aspect="auto", cmap=colours, vmin=-1 if signed else 0, vmax=1)
        figure.colorbar(image, ax=axes, label="needed" if len(heatmap.headings) > 1 else "score")
    return figure


def _label(word: str) -> str:
    """Shorten a word for an axis and escape dollars, which matplotlib takes for mathematics."""
    word = word if len(word) <= LONGEST_WORD else word[: LONGEST_WORD - 1] + "…"
    return word.replace("$", r"\$")
