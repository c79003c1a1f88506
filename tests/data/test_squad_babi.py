"""bABI stories as questions on passages, and folders of SQuAD files."""

import json
from pathlib import Path

import pytest

from diffmask.datasets.babi import parse_questions
from diffmask.datasets.loading import load_data
from diffmask.datasets.squad import babi_question
from diffmask.datasets.tables import Columns
from diffmask.errors import InputError

STORY = ["1 Mary moved to the bathroom.", "2 John went to the hallway.", "3 Where is Mary? \tbathroom\t1"]


def test_a_story_is_a_passage_whose_facts_are_evidence() -> None:
    (question,) = parse_questions(STORY)
    example = babi_question(question)
    assert example.text == "Where is Mary?" and example.pair is not None
    assert example.pair == "Mary moved to the bathroom. John went to the hallway."
    assert example.pair[slice(*example.label.span)] == "bathroom"
    assert [example.pair[slice(*span)] for span in example.evidence] == ["Mary moved to the bathroom."]


def test_a_folder_of_squad_files_is_split_by_passage(tmp_path: Path) -> None:
    def write(name: str, count: int) -> None:
        paragraphs = [
            {"context": f"{name} has {number} words .", "qas": [{"question": "how many ?", "answers": []}] * 2}
            for number in range(count)
        ]
        (tmp_path / name).write_text(json.dumps({"data": [{"paragraphs": paragraphs}]}))

    write("train-v2.json", 20)
    with pytest.raises(InputError, match="others to test on"):
        load_data(f"squad:{tmp_path}", Columns())
    write("dev-v2.json", 3)
    data = load_data(f"squad:{tmp_path}", Columns())
    assert (len(data.train), len(data.valid), len(data.test)) == (36, 4, 6)
    assert not {row.pair for row in data.train} & {row.pair for row in data.valid}
