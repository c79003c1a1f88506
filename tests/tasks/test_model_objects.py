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
from diffmask.workspace.quick import is_model_folder
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
    model.save_pretrained(tmp_path / "base")
    word_pieces().save_pretrained(tmp_path / "base")
    adapted.peft_config["default"].base_model_name_or_path = str(tmp_path / "base")
    adapted.save_pretrained(tmp_path / "adapter")  # no config and no tokenizer: both are those of the base
    assert is_model_folder(str(tmp_path / "adapter"))
    assert torch.allclose(dm.explain(tmp_path / "adapter", TEXT).scores, found.scores, atol=1e-4)


def sentence_encoder(folder: Path) -> Any:
    """A small encoder with mean pooling, as sentence-transformers loads it from a folder."""
    package = pytest.importorskip("sentence_transformers")
    tiny_model("bert").bert.save_pretrained(folder)
    word_pieces().save_pretrained(folder)
    return package.SentenceTransformer(str(folder), device="cpu")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("head", ["scikit-learn", "setfit"])
def test_setfit_has_the_probabilities_of_setfit(head: str, classes: int, tmp_path: Path) -> None:
    setfit = pytest.importorskip("setfit")
    linear_model = pytest.importorskip("sklearn.linear_model")
    body = sentence_encoder(tmp_path)
    texts = ["the film is good", "a very dull mess", "enjoyable", "it was fun !", "bad acting", "the plot"]
    trained = linear_model.LogisticRegression().fit(body.encode(texts), [index % classes for index in range(6)])
    own = setfit.SetFitHead(in_features=len(body.encode(TEXT)), out_features=classes, device="cpu")
    labels = ["negative", "neutral", "positive"][:classes]
    model = setfit.SetFitModel(body, trained if head == "scikit-learn" else own, labels=labels)
    found = dm.explain(model, TEXT)
    expected = torch.as_tensor(model.predict_proba([TEXT])[0])
    assert found.prediction.label == labels[int(expected.argmax())]
    assert found.prediction.probability == pytest.approx(float(expected.max()), abs=1e-4)


@pytest.mark.filterwarnings("ignore")
def test_sentence_transformers_classify_only_as_cross_encoders(model: Any, tmp_path: Path) -> None:
    package = pytest.importorskip("sentence_transformers")
    with pytest.raises(InputError, match="SentenceTransformer has no classifier, it embeds texts"):
        dm.explain(sentence_encoder(tmp_path / "encoder"), TEXT)
    model.save_pretrained(tmp_path / "classifier")
    word_pieces().save_pretrained(tmp_path / "classifier")
    found = dm.explain(package.CrossEncoder(str(tmp_path / "classifier"), device="cpu"), TEXT)
    assert torch.allclose(found.scores, dm.explain((model, word_pieces()), TEXT).scores, atol=1e-4)


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

    with pytest.raises(InputError, match="the head of this SetFitModel is NoneType; one linear layer"):
        dm.explain(SetFitModel(), TEXT)
