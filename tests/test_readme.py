"""Every Python block of the README runs as it stands, on small models in folders of the names that the README uses."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModelForQuestionAnswering

from diffmask.tasks.recommender.nrms_files import save_nrms
from support.news import trained
from support.tiny_language_models import tiny_language_model, word_tokenizer
from support.tiny_models import tiny_model, word_pieces

README = (Path(__file__).parent.parent / "README.md").read_text()
TEXTS = ["a good film", "the plot was a dull mess", "very good fun , not bad", "it was bad"] * 2
MODEL = Path("path-or-hub-id")


def classifier() -> None:
    tiny_model("bert").save_pretrained(MODEL)
    word_pieces().save_pretrained(MODEL)


def answers() -> None:
    tiny_model("bert", 2, head=AutoModelForQuestionAnswering).save_pretrained(MODEL)
    word_pieces(segments=True).save_pretrained(MODEL)
    passage = "the film is great . it was very good fun"
    question = {"id": "1", "question": "is it good ?", "answers": [{"text": "great", "answer_start": 12}]}
    content = {"data": [{"paragraphs": [{"context": passage, "qas": [question]}]}] * 32}
    Path("train-v1.1.json").write_text(json.dumps(content))


def language_model() -> None:
    tiny_language_model("llama").save_pretrained(MODEL)
    word_tokenizer().save_pretrained(MODEL)


def recommender() -> None:
    save_nrms(*trained(), "nrms")
    titles = [
        "Stocks fall",
        "Fed raises rates",
        "Cup final tonight",
        "Rain in the north",
        "A new phone",
        "Five recipes",
    ]
    for split, rows in (("train", 60), ("dev", 30)):
        folder = Path(f"MINDsmall_{split}")
        folder.mkdir()
        news = [f"N{number}\tnews\tnews\t{title}\t\t\t[]\t[]" for number, title in enumerate(titles)]
        (folder / "news.tsv").write_text("\n".join(news))
        seen = [f"{row}\tU{row}\t\tN{row % 6}\tN{(row + 1) % 6}-1 N{(row + 2) % 6}-0" for row in range(rows)]
        (folder / "behaviors.tsv").write_text("\n".join(seen))


PREPARE: dict[str, Callable[[], None]] = {
    "Explain one text": classifier,
    "Learn once, explain in one forward pass": classifier,
    "Other heads": answers,
    "Language models": language_model,
    "Why was this headline recommended?": recommender,
}
SECTIONS = {
    heading: re.findall(r"```py\n(.*?)```", body, flags=re.DOTALL)
    for heading, body in re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", README, flags=re.DOTALL | re.MULTILINE)
    if "```py\n" in body
}


def test_every_section_with_code_is_tested() -> None:
    assert set(SECTIONS) == set(PREPARE)


@pytest.mark.filterwarnings("ignore")  # random models and few rows: fits warn that their masks do not hold
@pytest.mark.parametrize("heading", SECTIONS)
def test_the_code_of_the_section_runs(
    heading: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    PREPARE[heading]()
    names: dict[str, Any] = {"texts": TEXTS}
    exec("import diffmask as dm", names)
    for block in SECTIONS[heading]:
        exec(compile(block, f"README.md, {heading}", "exec"), names)
    assert capsys.readouterr().out.strip()
