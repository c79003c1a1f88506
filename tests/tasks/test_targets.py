"""A class to explain is given by name or index, for all texts or one per text; what is no class is refused."""

import numpy as np
import pytest
import torch

from diffmask.core.explainer import Explainer
from diffmask.errors import InputError
from diffmask.methods.attention import Attention
from diffmask.methods.gradients import Gradient, InputXGradient, IntegratedGradients
from diffmask.methods.leave_one_out import LeaveOneOut
from diffmask.tasks.classification import TextClassification
from support.tiny_models import tiny_model, word_pieces

TEXT = "the plot is highly enjoyable"
NAMES = {0: "negative", 1: "neutral", 2: "positive"}


@pytest.fixture(scope="module")
def task() -> TextClassification:
    model = tiny_model("bert")
    model.config.id2label = NAMES
    return TextClassification(model, word_pieces())


@pytest.fixture(scope="module")
def explainer(task: TextClassification) -> Explainer:
    return LeaveOneOut().fit(task)


def class_log_odds(task: TextClassification, text: str, index: int) -> float:
    with torch.no_grad():
        logits = task.model.eval()(**task.tokenizer(text, return_tensors="pt")).logits[0]
    probability = logits.softmax(-1)[index]
    return float((probability / (1 - probability)).log())


@pytest.mark.parametrize("index", NAMES)
def test_scores_are_those_of_the_chosen_class(task: TextClassification, explainer: Explainer, index: int) -> None:
    found = explainer(TEXT, index)
    whole = class_log_odds(task, TEXT, index)
    without = class_log_odds(task, "the [MASK] is highly enjoyable", index)
    assert float(found.scores[1]) == pytest.approx(whole - without, abs=1e-5)
    assert found.target.label == NAMES[index]
    assert found.target.probability == pytest.approx(1 / (1 + np.exp(-whole)), abs=1e-5)
    assert explainer(TEXT, NAMES[index]).scores.tolist() == found.scores.tolist()
    assert explainer(TEXT, target=np.int64(index)).scores.tolist() == found.scores.tolist()


def test_one_class_per_text_and_several_classes_of_one_text(explainer: Explainer) -> None:
    texts = [TEXT, "a dull mess", TEXT]
    each = explainer(texts, target=["negative", 2, "positive"])
    assert [found.target.label for found in each] == ["negative", "positive", "positive"]
    assert torch.allclose(each[0].scores, explainer(TEXT, 0).scores, atol=1e-5)
    several = explainer(TEXT, target=["negative", "positive"])
    assert [found.text for found in several] == [TEXT, TEXT]
    assert torch.allclose(several[1].scores, each[2].scores, atol=1e-5)
    assert [found.target.label for found in explainer(texts, target=np.array([0, 1, 2]))] == list(NAMES.values())


def test_only_the_prediction_is_verified(explainer: Explainer) -> None:
    predicted = explainer(TEXT).prediction.label
    for name in NAMES.values():
        found = explainer(TEXT, name)
        assert (found.verified is not None) == (name == predicted)
        assert (f"; explained: {name}" in found.heatmap().title) == (name != predicted)
    other = next(name for name in NAMES.values() if name != predicted)
    assert "no set of words was verified" in explainer(TEXT, other).heatmap().verdict
    with pytest.raises(InputError, match="a verified set keeps the prediction"):
        explainer(TEXT, other).verify()


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (7, "target 7 is not a class of the model; its classes are 0 negative, 1 neutral, 2 positive"),
        (-1, "target -1 is not a class of the model; its classes are 0 negative"),
        ("posit", "target 'posit' is not a class of the model; its classes are 0 negative"),
        (True, "a target is the name or the index of a class; got True"),
        (0.5, "a target is the name or the index of a class; got 0.5"),
        ([0, "nonsense"], "target 'nonsense' is not a class of the model"),
    ],
)
def test_what_is_no_class_is_refused(explainer: Explainer, target: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        explainer(TEXT, target)


def test_the_number_of_targets_is_that_of_the_texts(explainer: Explainer) -> None:
    with pytest.raises(InputError, match="3 targets for 2 inputs; give one class, or one per input"):
        explainer([TEXT, TEXT], target=[0, 1, 2])


def test_a_method_without_classes_explains_the_prediction_only(task: TextClassification) -> None:
    explainer = Attention().fit(task)
    predicted = explainer(TEXT).prediction.label
    assert explainer(TEXT, predicted).scores.tolist() == explainer(TEXT).scores.tolist()
    other = next(name for name in NAMES.values() if name != predicted)
    with pytest.raises(InputError, match=f"text 0: attention explains the whole prediction, .* target='{other}' out"):
        explainer(TEXT, other)


@pytest.mark.parametrize("method", [Gradient(), InputXGradient(), IntegratedGradients(n_steps=2)])
def test_gradients_depend_on_the_class(task: TextClassification, method: Gradient) -> None:
    explainer = method.fit(task)
    scores = [explainer(TEXT, index, verify=False).scores for index in NAMES]
    assert not torch.allclose(scores[0], scores[1]) and not torch.allclose(scores[1], scores[2])


def test_one_label_of_several_is_explained_by_its_own_log_odds() -> None:
    model = tiny_model("bert")
    model.config.problem_type = "multi_label_classification"
    task = TextClassification(model, word_pieces())
    found = LeaveOneOut().fit(task)(TEXT, "LABEL_1")
    with torch.no_grad():
        logits = [
            float(task.model.eval()(**task.tokenizer(text, return_tensors="pt")).logits[0, 1])
            for text in (TEXT, "the [MASK] is highly enjoyable")
        ]
    assert float(found.scores[1]) == pytest.approx(logits[0] - logits[1], abs=1e-5)
    with pytest.raises(InputError, match="give quantity='log-odds', not 'log-probability'"):
        Gradient().fit(task)(TEXT, "LABEL_1")


def test_numbers_have_no_classes() -> None:
    task = TextClassification(tiny_model("bert", num_labels=1), word_pieces())
    with pytest.raises(InputError, match="the model predicts numbers, not classes"):
        LeaveOneOut().fit(task)(TEXT, 0)
