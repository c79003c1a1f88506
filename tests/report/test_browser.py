"""The page in a real browser: it loads cleanly, moves, filters, and nothing hostile runs."""

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from diffmask.report.payload import build_payload
from diffmask.results.benchmark_result import BenchmarkResult
from support.board import synthetic_board
from support.hostile import BIDI, WORDS, hostile_board

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = [pytest.mark.slow, pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine")]

TINT = "word => getComputedStyle(word).backgroundColor"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        yield running
        running.close()


@pytest.fixture(scope="module")
def board() -> BenchmarkResult:
    return synthetic_board(texts=40)


class Visit:
    """A page with everything it said and asked for."""

    def __init__(self, browser: Any, file: Path, **options: Any) -> None:
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.page = browser.new_page(**options)
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("dialog", self.refuse)
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.set_default_timeout(120_000)
        self.page.goto(file.as_uri())

    def refuse(self, dialog: Any) -> None:
        self.complaints.append(dialog.message)
        dialog.dismiss()

    def close(self) -> None:
        self.page.close()


@pytest.fixture(scope="module")
def file(board: BenchmarkResult, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return board.to_html(tmp_path_factory.mktemp("page") / "report.html")


@pytest.fixture
def visit(browser: Any, file: Path) -> Iterator[Visit]:
    """A desktop; whatever a test does there, the page never complains and never leaves its file."""
    visit = Visit(browser, file, viewport={"width": 1280, "height": 900})
    yield visit
    assert visit.complaints == []
    assert visit.requests == [file.as_uri()]
    visit.close()


def test_the_first_texts_are_shown_by_every_method(visit: Visit, board: BenchmarkResult) -> None:
    assert visit.page.locator(".text").count() == 10
    first = visit.page.locator(".text").first
    assert first.locator(".who > bdi").all_text_contents() == [method.name for method in board.methods]
    text = board.texts[0]
    whole = "".join(gap + word for gap, word in zip(text.gaps, text.words, strict=False)) + text.gaps[-1]
    assert first.locator(".words").all_text_contents() == [whole] * len(board.methods)


def test_the_slider_changes_the_colours_of_diffmask_in_every_text_and_of_nothing_else(visit: Visit) -> None:
    page = visit.page
    sliders = page.locator(".view input[type=range]")
    assert sliders.count() == 10
    tints = {method: page.locator(f'.view[data-method="{method}"] .word') for method in (3, 6)}
    before = {method: words.evaluate_all(f"all => all.map({TINT})") for method, words in tints.items()}
    sliders.first.focus()
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    after = {method: words.evaluate_all(f"all => all.map({TINT})") for method, words in tints.items()}
    assert after[3] == before[3]
    assert after[6] != before[6]
    assert sliders.evaluate_all("all => all.map(one => one.value)") == ["3"] * 10
    assert sliders.last.get_attribute("aria-valuetext") == "block1"
    assert page.locator(".view output").first.text_content() == "block1"


def test_the_values_of_a_layer_are_those_of_the_board(visit: Visit, board: BenchmarkResult) -> None:
    page = visit.page
    page.locator(".view input[type=range]").first.focus()
    page.keyboard.press("End")
    shown = page.locator('.view[data-text="0"][data-method="6"] .word').evaluate_all(
        "all => all.map(one => one.dataset.value)"
    )
    scale = max(max(layer) for layer in board.texts[0].by_layer["diffmask"])
    wanted = board.texts[0].by_layer["diffmask"][-1]
    assert [float(value.replace("−", "-")) for value in shown] == pytest.approx(wanted, abs=0.0056 * scale)


def test_the_filters_filter(visit: Visit, board: BenchmarkResult) -> None:
    page, count = visit.page, visit.page.locator("#count")
    page.select_option("#class", "positive")
    positive = [text for text in board.texts if text.prediction == "positive"]
    assert f"of {len(positive)} matching texts" in count.text_content()
    assert set(page.locator(".text header b").all_text_contents()) == {"positive"}
    page.select_option("#right", "wrong")
    wrong = [text for text in positive if text.gold != text.prediction]
    assert f"of {len(wrong)} matching text" in count.text_content()
    page.select_option("#class", "")
    page.select_option("#right", "")
    page.fill("#search", "HILARIOUS")
    laughing = [text for text in board.texts if "hilarious" in text.words]
    assert f"of {len(laughing)} matching texts" in count.text_content()
    page.fill("#search", "no such words")
    assert "No text matches; 40 in all" in count.text_content()
    assert page.locator(".text").count() == 0


def test_texts_on_which_methods_disagree_are_found_and_put_first(visit: Visit, board: BenchmarkResult) -> None:
    page = visit.page
    apart = [text["apart"] for text in json.loads(build_payload([board]).json)["texts"]]
    page.select_option("#order", "apart")
    assert page.locator(".text h3").first.text_content() == f"Text {1 + apart.index(max(apart))}"
    page.locator("#apart").fill("0.5")
    assert f"of {sum(value >= 0.5 for value in apart)} matching text" in page.locator("#count").text_content()
    assert page.locator("#apart-value").text_content() == "0.50"


def test_more_texts_come_and_methods_can_be_hidden(visit: Visit) -> None:
    page = visit.page
    page.click("#more")
    assert page.locator(".text").count() == 20
    page.click(".which summary")
    page.locator("#which label", has_text="random").click()
    assert page.locator('.view[data-method="0"]').count() == 0
    assert page.locator('.view[data-method="1"]').count() == 20


def test_the_keyboard_reaches_every_words_value(visit: Visit, board: BenchmarkResult) -> None:
    page = visit.page
    page.locator('.view[data-text="0"][data-method="2"] .word').first.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    focused = page.locator(":focus")
    assert focused.get_attribute("data-place") == "1"
    assert focused.evaluate("word => word.closest('.view').dataset.method") == "3"
    assert focused.get_attribute("aria-label").startswith(f"{board.texts[0].words[1]}: ")
    tip = page.locator("#tip")
    assert tip.is_visible()
    assert board.methods[3].name in tip.text_content() and focused.get_attribute("data-value") in tip.text_content()
    assert page.locator(".word.same").count() == len(board.methods)
    page.keyboard.press("Escape")
    assert not tip.is_visible()


def test_pointing_at_a_word_shows_its_value(visit: Visit) -> None:
    word = visit.page.locator(".word").nth(2)
    word.hover()
    assert word.get_attribute("data-value") in visit.page.locator("#tip").text_content()


def test_numbers_and_tables_are_there_for_those_who_do_not_see_colours(visit: Visit, board: BenchmarkResult) -> None:
    page = visit.page
    page.check("#numbers")
    assert page.locator(".word").first.evaluate("word => getComputedStyle(word, '::after').content") != "none"
    page.locator(".text details summary").first.click()
    rows = page.locator(".text details tbody tr")
    rows.first.wait_for()  # the table is made when the browser tells that it was opened
    assert rows.count() == len(board.texts[0].words)
    assert rows.first.locator("td").count() == len(board.methods)


def contrast(page: Any) -> float:
    """The least contrast of a word with its ground, by WCAG 2's formula; drawn to a canvas to resolve any notation."""
    return page.evaluate("""() => {
      const canvas = document.createElement("canvas"); canvas.width = canvas.height = 1;
      const pen = canvas.getContext("2d", {willReadFrequently: true});
      const light = (...layers) => {
        for (const layer of layers) { pen.fillStyle = layer; pen.fillRect(0, 0, 1, 1); }
        const [r, g, b] = [...pen.getImageData(0, 0, 1, 1).data].map(x => x / 255)
          .map(x => x <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4);
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
      };
      return Math.min(...[...document.querySelectorAll(".word")].map(word => {
        const style = getComputedStyle(word), card = getComputedStyle(word.closest(".text"));
        const pair = [light(style.color), light(card.backgroundColor, style.backgroundColor)].sort((a, b) => b - a);
        return (pair[0] + 0.05) / (pair[1] + 0.05);
      }));
    }""")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_word_can_be_read_on_its_colour(browser: Any, file: Path, scheme: str) -> None:
    visit = Visit(browser, file, color_scheme=scheme)
    assert contrast(visit.page) >= 4.5
    dark = visit.page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(18, 20, 23)"
    assert dark == (scheme == "dark")
    visit.close()


def test_a_phone_scrolls_one_way(browser: Any, file: Path) -> None:
    visit = Visit(browser, file, viewport={"width": 360, "height": 740})
    assert visit.page.evaluate("document.documentElement.scrollWidth") == 360
    visit.close()


def test_nothing_hostile_runs_and_all_of_it_is_shown(browser: Any, tmp_path: Path) -> None:
    file = hostile_board().to_html(tmp_path / "report.html")
    visit = Visit(browser, file, viewport={"width": 360, "height": 740})
    page = visit.page
    words = page.locator('.view[data-method="0"] .word')
    assert words.all_text_contents() == list(WORDS)
    page.locator(".view input[type=range]").focus()
    page.keyboard.press("ArrowRight")
    page.locator(".text details summary").click()
    for place in range(len(WORDS)):
        words.nth(place).focus()
    assert page.evaluate("window.hacked") is None
    assert page.evaluate("document.documentElement.scrollWidth") == 360
    assert visit.complaints == [] and visit.requests == [file.as_uri()]
    visit.close()


def test_marks_of_direction_do_not_reach_beyond_their_word(
    browser: Any, board: BenchmarkResult, tmp_path: Path
) -> None:
    words = ["left", BIDI, "middle", "right"]
    text = replace(
        board.texts[0], words=words, gaps=["", " ", " \u202e", " ", ""], scores={"gradient": [1.0, 2.0, 3.0, 4.0]},
        by_layer={}, layers={},
    )  # fmt: skip
    file = replace(board, texts=[text]).to_html(tmp_path / "report.html")
    visit = Visit(browser, file, viewport={"width": 1280, "height": 900})
    boxes = [visit.page.locator(".word").nth(place).bounding_box() for place in range(4)]
    edges = [edge for box in boxes for edge in (box["x"], box["x"] + box["width"])]
    # Grounds of neighbours may touch, but words never change places.
    assert all(earlier < later + 4 for earlier, later in pairwise(edges))
    visit.close()


def test_the_policy_stops_a_script_that_is_not_ours(browser: Any, file: Path) -> None:
    visit = Visit(browser, file)
    visit.page.evaluate("""() => {
      const script = document.createElement("script");
      script.textContent = "window.hacked = true";
      document.body.append(script);
      document.body.insertAdjacentHTML("beforeend", "<img src=x onerror='window.hacked = true'>");
    }""")
    assert visit.page.evaluate("window.hacked") is None
    assert any("Content Security Policy" in complaint for complaint in visit.complaints)
    visit.close()
