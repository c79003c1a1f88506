"""The first hour of a new user: everyday files, objects and models are read, or refused in one line.

`WHERE` names, for each row of what new users tried and stumbled over, the test that holds it.
"""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import datasets
import pandas as pd
import pytest
import torch
from transformers import AutoModel, AutoModelForTokenClassification, pipeline
from typer.testing import CliRunner

import diffmask as dm
from diffmask.cli import app, main
from diffmask.core.explainer import Explainer
from diffmask.datasets.tables import read_inputs
from diffmask.errors import DiffMaskError, InputError
from diffmask.results.formatting import format_duration
from support.everyday import EXAMPLES, FILES, SEVERAL
from support.tiny_models import tiny_model, word_pieces

TESTS = Path(__file__).parent
TEXT = "the plot is highly enjoyable"
WHERE = {
    "1 a target is obeyed or refused": "tasks/test_targets.py::test_what_is_no_class_is_refused",
    "2 a data frame is read by its column": "test_first_hour.py::test_a_data_frame_of_five_texts_has_five_explanations",
    "3 long work speaks": "test_progress.py::test_a_log_has_a_forecast_and_a_line_even_during_one_long_item",
    "4 nothing is best that does not beat random": (
        "test_comparison.py::test_no_method_is_best_unless_it_was_shown_to_beat_random"
    ),
    "5 verdicts are plain sentences": (
        "test_comparison.py::test_the_verdict_names_methods_that_beat_random_ties_costs_and_limits"
    ),
    "6 encodings and separators": "test_first_hour.py::test_a_file_is_read_or_refused_in_one_line",
    "7 options are checked in the constructor": "test_first_hour.py::test_a_wrong_option_is_refused_when_it_is_given",
    "8 precisions, devices, compiled and quantised models": "test_first_hour.py::test_a_model_is_explained_or_refused",
    "9 other heads, pipelines and tuples": "tasks/test_model_objects.py::test_another_head_names_the_task",
    "10 no training rows": "test_quick.py::test_baselines_without_data",
    "11 pictures at any width": (
        "test_heatmap.py::test_no_line_is_wider_than_the_terminal_and_every_value_is_in_its_column"
    ),
    "12 finished tables are kept": "test_sharding.py::test_a_finished_table_is_not_overwritten_unless_forced",
    "12 finished explainers are kept": (
        "test_cli_text.py::test_a_finished_explainer_or_classifier_is_not_replaced_without_force"
    ),
    "13 what is no text is named": "data/test_inputs.py::test_what_is_no_text_is_named_with_its_row",
    "13 too little to learn from is named": "test_first_hour.py::test_too_little_to_learn_from_is_named",
    "14 wrong columns are refused at the door": (
        "test_first_hour.py::test_a_wrong_column_or_suffix_is_refused_before_the_model_is_loaded"
    ),
    "15 small pickles": "test_explanation.py::test_an_explanation_is_pickled_without_its_model",
    "15 readable objects": "test_first_hour.py::test_objects_are_one_readable_line",
    "16 one way to give options": "test_first_hour.py::test_a_column_is_an_option_or_an_override_of_every_command",
    "16 completion": "test_first_hour.py::test_a_shell_completes_commands_and_options",
    "16 roar says what it trains": "test_first_hour.py::test_roar_says_what_it_trains_before_it_trains",
    "17 a function of one's own that fails": (
        "test_benchmark.py::test_a_function_that_raises_is_left_out_with_its_reason_and_the_rest_goes_on"
    ),
    "18 a report on a phone": "report/test_phone.py::test_every_cell_names_its_metric_where_there_is_no_header",
}


@pytest.mark.parametrize("row", WHERE)
def test_every_row_has_its_test(row: str) -> None:
    file, _, name = WHERE[row].partition("::")
    assert f"\ndef {name}(" in (TESTS / file).read_text()


def test_all_eighteen_rows_are_there() -> None:
    assert {int(row.split()[0]) for row in WHERE} == set(range(1, 19))


def test_at_least_forty_everyday_things_are_tried() -> None:
    assert len(SEVERAL) + len(FILES) + len(MODELS) >= 40


@pytest.fixture(scope="module")
def task() -> dm.TextClassification:
    return dm.TextClassification(tiny_model("bert"), word_pieces())


@pytest.fixture(scope="module")
def explainer(task: dm.TextClassification) -> Explainer:
    return dm.LeaveOneOut().fit(task)


@pytest.mark.parametrize("kind", FILES)
def test_a_file_is_read_or_refused_in_one_line(kind: str, tmp_path: Path, task: dm.TextClassification) -> None:
    name, content, message = FILES[kind]
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    if not message:
        examples, single = read_inputs(path, task.to_example)
        assert [example.text for example in examples] == ["café", "good film"] and not single
        return
    with pytest.raises(InputError, match=message) as refused:
        read_inputs(path, task.to_example)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("kind", SEVERAL)
def test_an_object_with_texts_is_explained(kind: str, explainer: Explainer) -> None:
    found = explainer(SEVERAL[kind](), verify=False)
    assert [explanation.text for explanation in found] == [example.text for example in EXAMPLES]


def _int8(model: Any) -> Any:
    return torch.ao.quantization.quantize_dynamic(model, {torch.nn.Linear}, dtype=torch.qint8)


def _spread(model: Any) -> Any:
    model.hf_device_map = {"bert": 0, "classifier": "cpu"}
    return model


def _on_one_device(model: Any) -> Any:
    model.hf_device_map = {"": "cpu"}
    return model


def _named(name: str) -> Any:
    return type(name, (), {})()


MODELS: dict[str, tuple[Callable[[Any, Any], Any], str]] = {
    "model and tokenizer": (lambda model, tokenizer: (model, tokenizer), ""),
    "list of both": (lambda model, tokenizer: [model, tokenizer], ""),
    "pipeline": (lambda model, tokenizer: pipeline("text-classification", model=model, tokenizer=tokenizer), ""),
    "bfloat16": (lambda model, tokenizer: (model.to(torch.bfloat16), tokenizer), ""),
    "float16": (lambda model, tokenizer: (model.half(), tokenizer), ""),
    "compiled": (lambda model, tokenizer: (torch.compile(model), tokenizer), ""),
    "data parallel": (lambda model, tokenizer: (torch.nn.DataParallel(model), tokenizer), ""),
    "in training mode": (lambda model, tokenizer: (model.train(), tokenizer), ""),
    "device map of one device": (lambda model, tokenizer: (_on_one_device(model), tokenizer), ""),
    "device map of two devices": (
        lambda model, tokenizer: (_spread(model), tokenizer),
        "is spread over 0, cpu; load it on one device",
    ),
    "int8": (lambda model, tokenizer: (_int8(model), tokenizer), "explain the model before quantisation"),
    "without a head": (
        lambda model, tokenizer: (AutoModel.from_config(model.config), tokenizer),
        "found BertModel, which has no head; load the model by AutoModelForSequenceClassification",
    ),
    "without a tokenizer": (lambda model, tokenizer: model, "came without its tokenizer"),
    "SetFit": (lambda model, tokenizer: _named("SetFitModel"), "the head of this SetFitModel is NoneType"),
    "scikit-learn": (lambda model, tokenizer: _named("LogisticRegression"), "LogisticRegression is not a model; give"),
    "a folder that is not there": (lambda model, tokenizer: "./nowhere", "there is no folder './nowhere'"),
}


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_a_model_is_explained_or_refused(kind: str) -> None:
    build, message = MODELS[kind]
    given = build(tiny_model("bert"), word_pieces())
    if not message:
        assert dm.explain(given, TEXT).words == tuple(TEXT.split())
        return
    with pytest.raises(DiffMaskError, match=message) as refused:
        dm.explain(given, TEXT)
    assert "\n" not in str(refused.value)


def test_a_token_classifier_is_recognised_by_its_head() -> None:
    model = AutoModelForTokenClassification.from_config(tiny_model("bert").config)
    assert dm.explain((model, word_pieces()), "good film")[0].text == "good film"


def test_a_data_frame_of_five_texts_has_five_explanations(explainer: Explainer) -> None:
    texts = ["good", "dull", "a film", "bad", "great fun"]
    found = explainer(pd.DataFrame({"text": texts}))
    assert [one.text for one in found] == texts
    assert explainer({"text": "a film"}).words == ("a", "film")


def test_a_data_set_is_mapped(explainer: Explainer) -> None:
    def predict(rows: dict[str, list[str]]) -> dict[str, list[Any]]:
        found = explainer(rows["text"], verify=False)
        return {"prediction": [one.prediction.label for one in found], "scores": [one.scores.tolist() for one in found]}

    rows = datasets.Dataset.from_dict({"text": ["good film", "dull"]})
    mapped = rows.map(predict, batched=True, new_fingerprint="explained")
    assert [len(scores) for scores in mapped["scores"]] == [2, 1]
    assert mapped["scores"][1] == pytest.approx(explainer("dull", verify=False).scores.tolist(), abs=1e-5)


def test_a_wrong_option_is_refused_when_it_is_given() -> None:
    # In a process of its own: the shape checks of the tests would refuse the value first.
    script = (
        "import diffmask as dm\n"
        "for call in (lambda: dm.DiffMask(mask='words'), lambda: dm.LeaveOneOut().fit(None, seed='a')):\n"
        "    try: call()\n"
        "    except dm.errors.ConfigError as error: print(error)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment)
    assert run.stdout.splitlines() == [
        "diffmask: mask: Input should be 'inputs' or 'states'; found 'words'",
        "seed is a whole number from 0; got 'a'",
    ]


def test_too_little_to_learn_from_is_named(tmp_path: Path) -> None:
    model = tiny_model("bert"), word_pieces()
    with pytest.raises(InputError, match="1 training text; give at least two"):
        dm.SurrogateMask(steps=2).fit(dm.TextClassification(*model, train=["good"]))
    with pytest.raises(
        InputError, match=r"row 0: 'dull' is not a label of the model; .* A pair of texts without a label"
    ):
        dm.TextClassification(*model, train=[("good", "dull")])
    table = tmp_path / "two.csv"
    table.write_text("text,label\ngood,1\nbad,0\n")
    with pytest.raises(InputError, match="2 rows are too few to be split into train, valid and test"):
        dm.TextClassificationConfig(model="clf", data=str(table)).dataset()


def _refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str) -> str:
    monkeypatch.setattr(sys, "argv", ["diffmask", *words])
    with pytest.raises(SystemExit):
        main()
    return capsys.readouterr().err.strip()


def test_a_wrong_column_or_suffix_is_refused_before_the_model_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("reviews.csv").write_text("review;stars\ngood;1\n")
    # There is no folder 'clf': each error comes before the model is looked for.
    explain = ["explain", "clf", "--data", "reviews.csv"]
    wrong = _refused(monkeypatch, capsys, *explain, "--text-column", "reviews")
    assert wrong == "diffmask: reviews.csv: there is no column 'reviews'; nearest: 'review'; known: review, stars"
    assert "not an option of explain" in _refused(monkeypatch, capsys, *explain, "colunm=review")
    assert "scores are written as .parquet or .jsonl" in _refused(monkeypatch, capsys, *explain, "--out", "x.csv")


def test_objects_are_one_readable_line(task: dm.TextClassification, explainer: Explainer) -> None:
    assert repr(task) == "TextClassification(BertForSequenceClassification)"
    read = dm.TextClassification(task.model, task.tokenizer, train=["good", "bad"])
    assert repr(read) == "TextClassification(BertForSequenceClassification, 2 train rows)"
    assert repr(explainer) == "LeaveOneOutExplainer(leave-one-out of BertForSequenceClassification)"
    assert "e+" not in format_duration(100)


@pytest.mark.parametrize("verb", ["train", "fit", "benchmark", "explain"])
def test_a_column_is_an_option_or_an_override_of_every_command(verb: str) -> None:
    shown = CliRunner().invoke(app, [verb, "--help"], env={"COLUMNS": "200"}).output
    assert "--text-column" in shown and "KEY=VALUE" in shown


def test_a_shell_completes_commands_and_options() -> None:
    request = {"_DIFFMASK_COMPLETE": "complete_bash", "COMP_CWORD": "1", "COMP_WORDS": "diffmask be"}
    assert CliRunner().invoke(app, [], prog_name="diffmask", env=request).output.split() == ["benchmark"]
    request |= {"COMP_WORDS": "diffmask fit --mar", "COMP_CWORD": "2"}
    assert CliRunner().invoke(app, [], prog_name="diffmask", env=request).output.split() == ["--margin"]


def test_roar_says_what_it_trains_before_it_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from diffmask.metrics.roar.step import RoarStep

    monkeypatch.setattr(RoarStep, "score", lambda _: SimpleNamespace(score=1.0, rows=1))
    shown = CliRunner().invoke(app, ["roar", "--out", str(tmp_path)]).output
    assert "Training a BiLSTM on babi-1, seed 0, with nothing masked" in shown


def test_a_fit_is_displayed_with_its_problems(task: dm.TextClassification) -> None:
    explainer = dm.LeaveOneOut().fit(task)
    explainer.diagnostics = {"block1": {"margin": 0.1, "hard_divergence": 0.4, "problems": {"margin": "0.4 > 0.1 <"}}}
    page: str = explainer._repr_html_()
    assert "block1: 0.4 &gt; 0.1 &lt;" in page and "<td>0.400</td>" in page
    assert "leave-one-out of BertForSequenceClassification" in page
