"""Models as people have them: they are explained like the plain one, or one sentence says what to do."""

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoConfig,
    AutoModelForQuestionAnswering,
    AutoModelForTokenClassification,
    pipeline,
)

import diffmask as dm
from diffmask.errors import InputError
from support.tiny_models import SIZES, tiny_model, word_pieces

TEXT = "the plot is highly enjoyable"


@pytest.fixture(scope="module")
def model() -> Any:
    return tiny_model("bert").eval()


@pytest.fixture(scope="module")
def scores(model: Any) -> torch.Tensor:
    return dm.explain((model, word_pieces()), TEXT).scores


def test_a_pipeline(model: Any, scores: torch.Tensor) -> None:
    pipe = pipeline("text-classification", model=model, tokenizer=word_pieces())
    found = dm.explain(pipe, TEXT)
    assert torch.allclose(found.scores, scores)
    assert found.prediction.label == pipe(TEXT)[0]["label"]
    assert dm.TextClassification(pipe).model is model


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_compiled_model_is_unwrapped(model: Any, scores: torch.Tensor) -> None:
    compiled = torch.compile(model)
    task = dm.TextClassification(compiled, word_pieces())
    assert task.model is model
    assert torch.allclose(dm.explain(task, TEXT).scores, scores)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("method", [dm.LeaveOneOut(), dm.IntegratedGradients(n_steps=3), dm.Gradient()])
def test_half_precision_is_explained_in_single_precision(model: Any, dtype: torch.dtype, method: dm.Method) -> None:
    half = deepcopy(model).to(dtype)
    found = dm.explain((half, word_pieces()), TEXT, method)
    assert {parameter.dtype for parameter in half.parameters()} == {dtype}, "the caller's model is left as it was"
    single = dm.explain((deepcopy(half).float(), word_pieces()), TEXT, method)
    assert torch.equal(found.scores, single.scores)


def test_a_half_precision_folder(model: Any, tmp_path: Path) -> None:
    deepcopy(model).to(torch.bfloat16).save_pretrained(tmp_path)
    word_pieces().save_pretrained(tmp_path)
    assert next(dm.TextClassification(tmp_path).model.parameters()).dtype == torch.float32


def test_a_device_is_chosen_or_refused(model: Any) -> None:
    assert dm.TextClassification(model, word_pieces(), device="cpu").device.type == "cpu"
    if not torch.cuda.is_available():
        with pytest.raises(InputError, match=r"device 'cuda' cannot be used: .*; use device='cpu' or leave it out"):
            dm.TextClassification(deepcopy(model), word_pieces(), device="cuda")
    with pytest.raises(InputError, match="device 'gpu' cannot be used"):
        dm.TextClassification(model, word_pieces(), device="gpu")


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_a_dynamically_quantised_model_is_refused_in_one_sentence(model: Any) -> None:
    small = torch.ao.quantization.quantize_dynamic(deepcopy(model), {torch.nn.Linear}, dtype=torch.qint8)
    with pytest.raises(InputError, match="padding changes its answers; explain the model before quantisation"):
        dm.TextClassification(small, word_pieces())


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning", "ignore::FutureWarning")
def test_lora(model: Any, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(task_type="SEQ_CLS", r=2, target_modules=["query"], init_lora_weights=False)
    adapted = peft.get_peft_model(deepcopy(model), config).eval()
    found = dm.explain((adapted, word_pieces()), TEXT)
    merged = deepcopy(adapted).merge_and_unload()
    assert torch.allclose(found.scores, dm.explain((merged, word_pieces()), TEXT).scores, atol=1e-4)


HEADS = {
    "QuestionAnswering": (AutoModelForQuestionAnswering, "BertForQuestionAnswering"),
    "TokenClassification": (AutoModelForTokenClassification, "BertForTokenClassification"),
}


@pytest.mark.parametrize("task", ["QuestionAnswering", "TokenClassification"])
@pytest.mark.parametrize("saved", [False, True])
def test_another_head_names_the_task(task: str, saved: bool, tmp_path: Path) -> None:
    auto, name = HEADS[task]
    other: Any = auto.from_config(AutoConfig.for_model("bert", vocab_size=60, **SIZES))
    if saved:
        other.save_pretrained(tmp_path)
        word_pieces().save_pretrained(tmp_path)
        other = tmp_path
    expected = f"found {name}; use dm.{task}" if task in dm.__all__ else f"found {name}; this head is not supported yet"
    with pytest.raises(InputError, match=expected):
        dm.TextClassification(other, None if saved else word_pieces())


def test_what_is_no_model_is_named() -> None:
    with pytest.raises(InputError, match="int is not a model; give a folder, a hub id, a transformers pipeline"):
        dm.explain(5, TEXT)

    class SetFitModel:
        """Has the name that users of SetFit see."""

    with pytest.raises(InputError, match="SetFitModel keeps its classifier outside of the encoder"):
        dm.explain(SetFitModel(), TEXT)
