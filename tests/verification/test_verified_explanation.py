"""Explanations that a person reads are verified, and say so; predictions say that they are none."""

import io
import json
from dataclasses import replace

import pytest
import torch
from rich.console import Console

from diffmask.core.explainer import Explainer
from diffmask.errors import InputError
from diffmask.explanation.explanation import Explanation
from diffmask.explanation.heatmap import print_heatmap
from diffmask.explanation.verified_set import Prediction, VerifiedSet
from diffmask.methods.diffmask.surrogate import SurrogateMask
from diffmask.methods.gradients import Gradient
from diffmask.tasks.classification import TextClassification
from diffmask.tasks.text.encoding import TextEncodingConfig
from support.tiny_models import tiny_model, word_pieces

pytestmark = pytest.mark.filterwarnings("ignore::diffmask.errors.FitWarning")

TEXTS = ["the plot is highly enjoyable, but xyzzy <b>acting</b>!", "a very dull mess. it was fun !", "good"]
ROWS = [("the film is good", 1), ("a very dull mess , but it was fun !", 2), ("enjoyable", 0)]
MARGIN = 0.003
"""A model with random weights hardly changes its answer: a small margin needs some words."""


@pytest.fixture(scope="module")
def explainer() -> Explainer:
    task = TextClassification(tiny_model("bert"), word_pieces(), train=ROWS * 4)
    return SurrogateMask(steps=10, batch_size=8, margin=MARGIN).fit(task)


@pytest.fixture(scope="module")
def explanations(explainer: Explainer) -> list[Explanation]:
    return explainer(TEXTS)


def kl_of(explanation: Explanation, kept: tuple[bool, ...]) -> tuple[float, bool]:
    """KL and same prediction with only these units kept, by the explanation's own measure."""
    tokens = torch.ones(len(explanation.tokens), dtype=torch.bool)
    for unit, stays in zip(explanation.units, kept, strict=True):
        tokens[list(unit.tokens)] = stays
    divergence, prediction = explanation.mask_effect(tokens, None)
    return divergence, prediction.label == explanation.prediction.label


def test_every_text_is_verified_and_the_set_holds_when_it_is_measured_again(explanations: list[Explanation]) -> None:
    for explanation in explanations:
        verified = explanation.verified
        assert verified
        assert verified.margin == MARGIN
        divergence, same = kl_of(explanation, verified.kept)
        assert same
        assert divergence == pytest.approx(verified.kl, abs=1e-5)
        assert divergence <= MARGIN + 1e-5


def test_no_word_of_a_verified_set_can_be_dropped(explanations: list[Explanation]) -> None:
    assert any(explanation.verified and explanation.verified.words for explanation in explanations)
    for explanation in explanations:
        assert explanation.verified is not None
        kept = explanation.verified.kept
        for place in (place for place, stays in enumerate(kept) if stays):
            divergence, same = kl_of(explanation, (*kept[:place], False, *kept[place + 1 :]))
            assert not same or divergence > MARGIN - 1e-5


def test_the_hard_mask_is_the_verified_set_unless_a_threshold_is_given(explanations: list[Explanation]) -> None:
    for explanation in explanations:
        assert explanation.verified is not None
        assert explanation.hard_mask().kept == explanation.verified.kept
        assert explanation.hard_mask().divergence == pytest.approx(explanation.verified.kl, abs=1e-5)
        assert all(explanation.hard_mask(-1.0).kept)


def test_without_verification_an_explanation_says_that_it_is_a_prediction(explainer: Explainer) -> None:
    explanation = explainer(TEXTS[0], verify=False)
    assert explanation.verified is None
    out = io.StringIO()
    print_heatmap(explanation.heatmap(), Console(file=out, width=120))
    assert "Predicted, not verified." in out.getvalue()


def test_a_verified_explanation_says_so(explanations: list[Explanation]) -> None:
    explanation = next(one for one in explanations if one.verified and one.verified.words)
    out = io.StringIO()
    print_heatmap(explanation.heatmap(), Console(file=out, width=400))
    assert "Enough: " in out.getvalue()
    assert "same prediction, no word can be dropped" in out.getvalue()
    assert "verified" in explanation.to_html()
    plain = json.loads(json.dumps(explanation.to_dict()))
    assert plain["verified"]["sentence"].startswith("enough: ")


def test_one_text_gives_what_a_list_gives(explainer: Explainer, explanations: list[Explanation]) -> None:
    alone = explainer(TEXTS[1])
    assert alone.verified is not None and explanations[1].verified is not None
    assert alone.verified.kept == explanations[1].verified.kept


def test_sentences_can_be_verified_in_place_of_words(explanations: list[Explanation]) -> None:
    explanation = explanations[1].at("sentence")
    assert explanation.verified is None
    again = explanation.verify()
    assert again.verified
    assert len(again.verified.kept) == 2


def test_a_long_text_that_is_read_as_several_rows_is_verified_as_one() -> None:
    reading = TextEncodingConfig(max_tokens=8, long_texts="stride", overlap=2)
    task = TextClassification(tiny_model("bert"), word_pieces(), train=ROWS * 4, encoding=reading)
    explanation = Gradient().fit(task)(TEXTS[0])
    assert explanation.verified
    assert len(explanation.verified.kept) == len(explanation.words)
    divergence, _ = kl_of(explanation, explanation.verified.kept)
    assert divergence == pytest.approx(explanation.verified.kl, abs=1e-5)


def test_an_empty_text_needs_nothing(explainer: Explainer) -> None:
    verified = explainer("").verified
    assert verified
    assert verified.words == ()
    assert verified.sentence.startswith("no word is needed: the model answers LABEL_")


def test_an_explanation_without_its_model_cannot_be_verified(explanations: list[Explanation]) -> None:
    with pytest.raises(InputError, match="cannot be verified"):
        replace(explanations[0], verifier=None).verify()


def test_a_set_that_breaks_is_falsy_and_says_so() -> None:
    broken = VerifiedSet(
        words=("not",),
        kept=(True,),
        kl=0.2,
        margin=0.1,
        same_prediction=False,
        minimal=False,
        rows=3,
        prediction=Prediction("a", 0.5),
    )
    assert not broken
    assert str(broken) == "verified: KL .2 > .1, another prediction, a smaller set may exist"


@pytest.fixture(scope="module", params=["inputs", "states"])
def layered(request: pytest.FixtureRequest) -> Explanation:
    task = TextClassification(tiny_model("bert"), word_pieces(), train=ROWS * 4)
    return SurrogateMask(steps=10, batch_size=8, margin=MARGIN, mask=request.param).fit(task)(TEXTS[:2])[1]


def test_every_layer_holds_when_it_is_measured_again_and_sets_shrink(layered: Explanation) -> None:
    assert len(layered.verified_layers) == len(layered.layers)
    previous = (True,) * len(layered.words)
    for name, layer in zip(layered.layers, layered.verified_layers, strict=True):
        tokens = layered._tokens_of(torch.tensor(layer.kept))
        divergence, prediction = layered.mask_effect(tokens, name)
        assert divergence == pytest.approx(layer.kl, abs=1e-5)
        assert divergence <= MARGIN + 1e-5
        assert prediction.label == layered.prediction.label == layer.prediction.label
        assert all(before or not now for before, now in zip(previous, layer.kept, strict=True))
        previous = layer.kept


def test_the_claim_is_the_set_of_the_main_layer(layered: Explanation) -> None:
    assert layered.main_layer is not None
    main = layered.verified_layers[layered.layers.index(layered.main_layer)]
    assert layered.verified is not None
    assert main.kept == layered.verified.kept
    assert layered.heatmap().kept == layered.verified.kept


def test_every_column_of_the_heat_map_and_of_plain_values_is_verified(layered: Explanation) -> None:
    checks = [layered.hard_mask(layer=layer) for layer in layered.layers]
    assert [check.kept for check in checks] == [layer.kept for layer in layered.verified_layers]
    heatmap = layered.heatmap()
    assert heatmap.divergences == tuple(layer.kl for layer in layered.verified_layers)
    for column, layer in enumerate(layered.verified_layers):
        assert tuple(row[column] > 0.5 for row in heatmap.values) == layer.kept
    plain = json.loads(json.dumps(layered.to_dict()))
    assert [layer["kept"] for layer in plain["verified_layers"]] == [list(check.kept) for check in checks]


def test_a_layer_drops_a_word_where_its_verified_set_first_lacks_it(layered: Explanation) -> None:
    for word, dropped in enumerate(layered.dropped_at()):
        seen = [layer.kept[word] for layer in layered.verified_layers]
        assert dropped == (None if all(seen) else layered.layers[seen.index(False)])


def test_a_verified_mask_needs_no_further_pass_of_the_model(layered: Explanation) -> None:
    layered.verified_layers  # noqa: B018  runs the model once

    def refuse(*_: object) -> tuple[float, Prediction]:
        raise AssertionError("the model ran")

    quiet = replace(layered, mask_effect=refuse)
    assert quiet.hard_mask().divergence == layered.verified.kl if layered.verified else False


def test_a_set_of_states_says_which_layer_it_is_about() -> None:
    task = TextClassification(tiny_model("bert"), word_pieces(), train=ROWS * 4)
    explanation = SurrogateMask(steps=4, batch_size=8, margin=MARGIN, mask="states").fit(task)(TEXTS[0])
    assert explanation.main_layer == "embedding"
    assert explanation.verified is not None and explanation.verified.state_layer is None
    last = explanation.verified_layers[-1]
    assert last.state_layer == explanation.layers[-1]
    assert explanation.layers[-1] in last.sentence
    assert "whatever the text says" not in last.sentence


def test_clauses_are_units(explanations: list[Explanation]) -> None:
    explanation = explanations[0].at("clause")
    assert explanation.words == ("the plot is highly enjoyable,", "but xyzzy <b>acting</b>!")
    again = explanation.verify()
    assert again.verified and again.verified.unit == "clause"
