"""Python code of a model's repository does not run unless the caller says so, and a file cannot say so."""

import json
import sys
from pathlib import Path

import pytest

from diffmask.core.config import parse
from diffmask.errors import ConfigError, InputError
from diffmask.tasks.classification import TextClassification
from diffmask.tasks.text.pretrained import load_classifier, load_tokenizer
from diffmask.tasks.text.retraining import FineTuningSource
from diffmask.tasks.text.text_configs import FineTunedClassificationConfig, TextClassificationConfig
from support.tiny_models import tiny_model, word_pieces

CODE = """
from pathlib import Path
from transformers import BertConfig, BertForSequenceClassification

Path(r"{mark}").write_text("the code ran")

class OwnConfig(BertConfig):
    model_type = "own-bert"

class OwnModel(BertForSequenceClassification):
    config_class = OwnConfig
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A classifier whose configuration names classes in a Python file beside it."""
    home = tmp_path / "own"
    tiny_model("bert").save_pretrained(home)
    word_pieces().save_pretrained(home)
    config = json.loads((home / "config.json").read_text())
    config |= {
        "model_type": "own-bert",
        "auto_map": {"AutoConfig": "own.OwnConfig", "AutoModelForSequenceClassification": "own.OwnModel"},
    }
    (home / "config.json").write_text(json.dumps(config))
    (home / "own.py").write_text(CODE.format(mark=mark(home)))
    return home


def mark(home: Path) -> Path:
    """The file that the code writes when it runs."""
    return home.parent / "ran"


@pytest.fixture(autouse=True)
def no_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> str:
        raise AssertionError("a prompt on stdin")

    monkeypatch.setattr("builtins.input", refuse)
    monkeypatch.setattr(sys, "stdin", None)


def test_code_of_a_model_is_refused_and_does_not_run(folder: Path) -> None:
    refused = [
        lambda: TextClassification(folder),
        lambda: load_classifier(folder),
        lambda: TextClassificationConfig(model=str(folder), data="rotten-tomatoes").build(0),
        lambda: FineTuningSource(folder).init_classifier(("no", "yes"), None, 0),
    ]
    for load in refused:
        with pytest.raises(InputError, match=r"Python code of its own, which was not run; .*--trust-remote-code"):
            load()
    assert not mark(folder).exists()


def test_code_of_a_tokenizer_is_refused_and_does_not_run(folder: Path) -> None:
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings |= {"tokenizer_class": "OwnTokenizer", "auto_map": {"AutoTokenizer": ["own.OwnTokenizer", None]}}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    with pytest.raises(InputError):
        load_tokenizer(folder)
    assert not mark(folder).exists()


def test_a_known_architecture_is_loaded_without_the_code_of_its_repository(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "bert"}))
    model, _ = load_classifier(folder)
    assert type(model).__module__.startswith("transformers.")
    assert not mark(folder).exists()


def test_the_caller_can_trust_the_code(folder: Path) -> None:
    model, tokenizer = load_classifier(folder, trust_remote_code=True)
    assert type(model).__name__ == "OwnModel"
    assert mark(folder).read_text() == "the code ran"
    assert TextClassification(model, tokenizer).sites[0] == "embedding"


def test_trust_is_neither_saved_nor_read_from_a_file() -> None:
    for config in (
        TextClassificationConfig(model="clf", data="table.csv", trust_remote_code=True),
        FineTunedClassificationConfig(trust_remote_code=True),
    ):
        assert "trust_remote_code" not in config.to_dict()
        assert not parse("task", config.to_dict(), "here").trust_remote_code
        with pytest.raises(ConfigError, match="here: trust_remote_code is not read from files; pass --trust-remote"):
            parse("task", config.to_dict() | {"trust_remote_code": True}, "here")
    source = FineTuningSource("encoder", trust_remote_code=True)
    assert "trust_remote_code" not in source.to_dict()
    stated = type("Config", (), {"diffmask_finetuning_source": source.to_dict() | {"trust_remote_code": True}})
    assert not FineTuningSource.of(stated).trust_remote_code
