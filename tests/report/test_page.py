"""The page of a benchmark holds every number, as text, and needs nothing else."""

import json
import math
import re
from dataclasses import replace
from itertools import chain
from typing import Any

import html5lib
import pytest

from diffmask.report.page import csp_hash, render_page
from diffmask.results.benchmark_result import BenchmarkResult
from diffmask.results.formatting import format_count, format_duration, format_number
from support.board import synthetic_board
from support.hostile import CLOSING, SCRIPT, WORDS, hostile_board

SPACE = "{http://www.w3.org/1999/xhtml}"


@pytest.fixture(scope="module")
def board() -> BenchmarkResult:
    return synthetic_board(texts=4)


@pytest.fixture(scope="module")
def page(board: BenchmarkResult) -> str:
    return render_page([board])


def parsed(page: str) -> Any:
    """The document, or the first mistake in it."""
    return html5lib.HTMLParser(strict=True).parse(page)


def text_of(page: str) -> str:
    return "".join(parsed(page).find(f"{SPACE}body").itertext())


def data_of(page: str) -> Any:
    (block,) = (one for one in parsed(page).iter(f"{SPACE}script") if one.get("type") == "application/json")
    return json.loads(block.text)


def test_every_measured_number_is_on_the_page(board: BenchmarkResult, page: str) -> None:
    text = text_of(page)
    estimates = chain.from_iterable(method.estimates.values() for method in board.methods)
    numbers = {format_number(value) for found in estimates for value in (found.mean, found.low, found.high)}
    numbers |= {format_number(value) for one in board.comparisons for value in (one.difference, one.low, one.high)}
    numbers |= {format_number(value) for curve in board.curves for value in (*curve.y, *curve.low, *curve.high)}
    numbers |= {f"{value:.2f}" for rows in board.agreement.values() for row in rows for value in row}
    numbers |= {format_count(method.cost["forwards"]) for method in board.methods}
    numbers |= {format_duration(method.cost["seconds"]) for method in board.methods}
    assert not {number for number in numbers if number not in text}


def test_words_of_the_verdict_the_limits_and_the_measures_are_on_the_page(board: BenchmarkResult, page: str) -> None:
    text = text_of(page)
    said = [*board.verdict, *board.warnings, *(metric.interpretation for metric in board.metrics)]
    said += [metric.limitation for metric in board.metrics] + [method.name for method in board.methods]
    assert not [sentence for sentence in said if sentence not in text]
    assert text.index(board.verdict[0]) < text.index("Methods by metric")


def test_the_scores_of_the_script_are_those_of_the_board_to_a_thousandth_of_the_largest(
    board: BenchmarkResult, page: str
) -> None:
    data = data_of(page)
    assert data["methods"] == [method.name for method in board.methods]
    for text, found in zip(board.texts, data["texts"], strict=True):
        assert found["words"] == list(text.words)
        for name, scores in zip(data["methods"], found["scores"], strict=True):
            layers = [text.scores[name], *text.by_layer.get(name, [])]
            for wanted, packed in zip(layers, [scores["all"], *scores.get("layers", [])], strict=True):
                size = max(abs(score) for row in layers for score in row)
                given = [score * scores["scale"] / 1000 for score in packed]
                assert given == pytest.approx(wanted, abs=0.00061 * size)


def test_hostile_text_is_text_everywhere() -> None:
    page = render_page([hostile_board()])
    document = parsed(page)
    scripts = list(document.iter(f"{SPACE}script"))
    assert [script.get("type") for script in scripts] == ["application/json", None]
    assert not [name for one in document.iter() for name in one.attrib if str(name).lower().startswith("on")]
    assert not list(document.iter(f"{SPACE}img"))
    text = text_of(page)
    assert f"title {SCRIPT}" in text and f"verdict {CLOSING}" in text
    assert data_of(page)["texts"][0]["words"] == list(WORDS)


def test_half_a_surrogate_pair_does_not_stop_the_page(board: BenchmarkResult) -> None:
    odd = replace(board.texts[0], words=["\ud83d", *board.texts[0].words[1:]])
    page = render_page([replace(board, title="\ud83d", texts=[odd])])
    assert page.encode("utf-8")
    assert data_of(page)["texts"][0]["words"][0] == "\ud83d"


def test_the_policy_allows_our_script_and_style_and_nothing_else(page: str) -> None:
    document = parsed(page)
    (policy,) = (one for one in document.iter(f"{SPACE}meta") if one.get("http-equiv") == "Content-Security-Policy")
    (style,) = document.iter(f"{SPACE}style")
    (script,) = (one for one in document.iter(f"{SPACE}script") if one.get("type") is None)
    assert policy.get("content") == (
        f"default-src 'none'; script-src '{csp_hash(script.text)}'; style-src '{csp_hash(style.text)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    # What the policy would block must not be there to be missed.
    assert not [one for one in document.iter() if "style" in one.attrib]


def test_the_page_asks_nothing_of_the_network(page: str) -> None:
    assert not re.findall(r"https?://|@import|url\(|src=|fetch\(|XMLHttpRequest", page)
    assert all(link.startswith("#") for link in re.findall(r'href="([^"]*)"', page))


@pytest.mark.parametrize("repeat", [1, 20], ids=["sentences", "long reviews"])
def test_200_texts_8_methods_and_8_layers_stay_under_5_megabytes(repeat: int) -> None:
    page = render_page([synthetic_board(texts=200, methods=8, layers=8, repeat=repeat)])
    assert len(page.encode()) < 5_000_000
    (block,) = re.findall(r'<script type="application/json" id="data">(.*)</script>', page)
    kept = json.loads(block)["texts"]
    assert len(kept) == 200
    bare = sum("layers" not in text["scores"][6] for text in kept)
    assert (f"{bare} texts are shown without their layers" in page) == (bare > 0)


def test_texts_that_do_not_fit_are_left_out_and_counted() -> None:
    board = synthetic_board(texts=2)
    huge = replace(board.texts[0], words=["é" * 2_150_000], gaps=["", ""], by_layer={}, layers={},
                   scores={name: [1.0] for name in board.texts[0].scores})  # fmt: skip
    page = render_page([replace(board, texts=[huge, huge])])
    assert len(page.encode()) < 5_000_000
    assert "1 of the 2 texts is left out" in page


def test_best_is_bold_and_a_tie_is_a_tie(page: str) -> None:
    cells = [one for one in parsed(page).iter(f"{SPACE}td") if one.get("class") in ("best", "tie")]
    best = ["".join(cell.itertext()) for cell in cells if cell.get("class") == "best"]
    assert len(best) == 1
    assert all((cell.find(f".//{SPACE}strong") is not None) == (cell.get("class") == "best") for cell in cells)
    assert all("tie for best" in "".join(cell.itertext()) for cell in cells if cell.get("class") == "tie")


def test_problems_of_a_fit_are_shown_with_their_place(page: str) -> None:
    text = text_of(page)
    assert "1 problem found" in text
    assert re.search(r"output: margin\. masks change the answer by 0\.118 nats", text)


def test_an_empty_board_has_a_page() -> None:
    empty = BenchmarkResult(title="nothing", verdict=["Too few rows."], warnings=[], metrics=[], methods=[],
                  comparisons=[], curves=[], agreement={}, texts=[], manifest={})  # fmt: skip
    page = render_page([empty])
    assert "Too few rows." in text_of(page)
    assert "<script" not in page


def test_numbers_that_are_none_are_said_in_words(board: BenchmarkResult) -> None:
    odd = replace(board.methods[0].estimates["flip"], mean=math.inf, low=math.nan)
    first = replace(board.methods[0], estimates={"flip": odd}, cost={"seconds": math.nan, "break_even": math.inf})
    text = replace(board.texts[0], scores={"random": [math.nan] * len(board.texts[0].words)}, by_layer={})
    page = render_page([replace(board, methods=[first, *board.methods[1:]], texts=[text])])
    assert "∞" in text_of(page) and "not a number" in text_of(page)
    assert data_of(page)["texts"][0]["scores"][0]["all"][0] is None


def test_a_screen_reader_finds_landmarks_names_and_headers(page: str) -> None:
    document = parsed(page)
    names = {tag: len(list(document.iter(f"{SPACE}{tag}"))) for tag in ("main", "nav", "h1", "footer")}
    assert names == {"main": 1, "nav": 1, "h1": 1, "footer": 1}
    identities = [one.get("id") for one in document.iter() if one.get("id")]
    assert len(identities) == len(set(identities))
    referred = [one.get("aria-labelledby") for one in document.iter() if one.get("aria-labelledby")]
    assert set(referred) <= set(identities)
    assert all(one.get("aria-label") for one in document.iter("{http://www.w3.org/2000/svg}svg") if one.get("role"))
    assert all(one.get("scope") in ("row", "col") for one in document.iter(f"{SPACE}th"))
    for control in chain(document.iter(f"{SPACE}input"), document.iter(f"{SPACE}select")):
        assert any(control in label.iter() for label in document.iter(f"{SPACE}label"))
