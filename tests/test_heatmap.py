"""The picture of an explanation reads at any width, with any word, with and without colour."""

import io

import pytest
from rich.cells import cell_len
from rich.console import Console

from diffmask.explanation.heatmap import Heatmap, html_document, plot_heatmap, print_heatmap, render_heatmap

LONG = "Donaudampfschifffahrtselektrizitätenhauptbetriebswerk"
WORDS = ("A", "fast", ",", LONG, "映画", "$5", ".")


def heatmap(layers: int, words: tuple[str, ...] = WORDS) -> Heatmap:
    headings = ("E", *map(str, range(1, layers)), "out") if layers else ("score",)
    columns = len(headings)
    return Heatmap(
        title="Prediction: positive (0.998)",
        verdict="Without 6 of 7 words the model predicts positive (0.990); KL(original || masked) = 0.010 nats.",
        headings=headings,
        words=words,
        values=tuple(tuple((row + column) % 10 / 10 for column in range(columns)) for row in range(len(words))),
        kept=tuple(index == 1 for index in range(len(words))),
        masked=(0.8571,) * columns,
        divergences=(-1e-9,) * columns,
        gaps=("", *[" "] * (len(words) - 1), ""),
        legend="Columns: E = word embeddings.",
    )


def printed(picture: Heatmap, width: int, **options: object) -> list[str]:
    out = io.StringIO()
    print_heatmap(picture, Console(file=out, width=width, **options))  # type: ignore[arg-type]
    return out.getvalue().splitlines()


@pytest.mark.parametrize("layers", [0, 6, 12, 24, 48])
@pytest.mark.parametrize("width", [40, 60, 80, 200])
def test_no_line_is_wider_than_the_terminal_and_every_value_is_in_its_column(layers: int, width: int) -> None:
    picture = heatmap(layers)
    lines = printed(picture, width)
    assert max(map(cell_len, lines)) <= width
    rows = [line.split()[1:] for line in lines if line.startswith("fast ")]
    found = [float(cell) for row in rows for cell in row]
    assert found == pytest.approx(picture.values[1])
    headings = [line.split() for line in lines if line.startswith("    ")]
    assert [name for row in headings for name in row] == list(picture.headings)


def test_the_sentence_is_whole_and_kept_words_are_marked_without_colour() -> None:
    text = "".join(printed(heatmap(6), 60)[2:4])
    assert text.startswith(f"A [fast] , {LONG}")


def test_no_color_is_obeyed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    text = "\n".join(printed(heatmap(6), 60, force_terminal=True))
    assert "[fast]" in text
    assert "38;" not in text and "48;" not in text


def test_colours_do_not_depend_on_the_terminals_background() -> None:
    text = "\n".join(printed(heatmap(6), 60, force_terminal=True, color_system="truecolor"))
    # Ink is given wherever a background is: never white on white or black on black.
    assert "48;2;240;144;48" in text
    assert all("38;2;0;0;0" in style for style in text.split("\x1b[") if "48;2" in style.partition("m")[0])
    assert "[fast]" not in text


def test_zero_has_no_sign() -> None:
    for text in ("\n".join(printed(heatmap(6), 80)), render_heatmap(heatmap(6))):
        assert "-0.00" not in text and "-.00" not in text


def test_a_long_text_lists_the_words_with_the_largest_values() -> None:
    lines = printed(heatmap(0, tuple(f"word{index}" for index in range(300))), 80)
    assert "60 of 300 words, those with the largest values" in lines
    rows = [line.split()[0] for line in lines if len(line.split()) == 2]
    assert "word9" in rows and "word1" in rows and "word10" not in rows


def test_words_against_the_class_are_blue() -> None:
    picture = Heatmap(
        title="", verdict="", headings=("score",), words=("good", "bad"), values=((1.0,), (-0.6,)),
        kept=(True, False), masked=(0.5,), divergences=(0.1,),
    )  # fmt: skip
    assert "rgba(90,160,250,0.60)" in render_heatmap(picture)
    assert plot_heatmap(picture).axes[0].images[0].get_clim() == (-1, 1)


def test_a_long_word_leaves_room_for_the_columns_of_a_figure() -> None:
    figure = plot_heatmap(heatmap(6))
    figure.canvas.draw()
    box = figure.axes[0].get_window_extent()
    assert box.width > 0.4 * figure.bbox.width
    assert figure.axes[0].get_yticklabels()[3].get_text() == f"{LONG[:23]}…"


def test_a_page_of_heat_maps_scrolls_inside() -> None:
    page = html_document("Words & layers", [heatmap(48)])
    assert "<title>Words &amp; layers</title>" in page
    assert '<div class="scroll"><table class="layers">' in page
