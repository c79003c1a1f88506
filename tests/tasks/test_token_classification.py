"""Tagged words: spans, their score, and one explanation for every predicted entity."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForTokenClassification

from diffmask.core.distributions import logits
from diffmask.datasets.conll import load_conll, read_conll, span_f1, tag_spans, tagged_sentence
from diffmask.errors import InputError, TaskError
from diffmask.methods.gradients import Gradient
from diffmask.tasks.text.text_configs import FineTunedTokenClassificationConfig
from diffmask.tasks.token_classification import SPAN, TokenClassification, TokenEncodingConfig
from support.tiny_models import save_encoder, tiny_model, word_pieces

TAGS = ["O", "B-loc", "I-loc", "B-per", "I-per"]
ROWS = [(["the", "film", "is", "good"], ["O", "B-loc", "I-loc", "O"]), (["a", "dull", "mess"], ["O", "O", "B-per"])]


def make(rows: Any = ROWS, **choices: Any) -> TokenClassification:
    names = dict(enumerate(TAGS))
    model = tiny_model("bert", 5, head=AutoModelForTokenClassification, id2label=names)
    return TokenClassification(model, word_pieces(), train=rows, test=rows, encoding=TokenEncodingConfig(**choices))


def test_span_f1_is_that_of_seqeval() -> None:
    seqeval = pytest.importorskip("seqeval.metrics")
    source = torch.Generator().manual_seed(0)

    def sentences() -> list[list[str]]:
        return [[TAGS[i] for i in torch.randint(5, (7,), generator=source).tolist()] for _ in range(30)]

    for _ in range(5):
        predicted, gold = sentences(), sentences()
        assert span_f1(predicted, gold) == pytest.approx(seqeval.f1_score(gold, predicted))
    assert [(span.first, span.last) for span in tag_spans(["I-loc", "I-loc", "B-loc", "I-per"])] == [
        (0, 1), (2, 2), (3, 3)
    ]  # fmt: skip


def test_a_row_is_a_predicted_entity_and_its_answer_a_type() -> None:
    task = make()
    spans = task.predicted_spans([tagged_sentence(*row) for row in ROWS])
    batch = task.data["test"]
    assert len(batch) == sum(map(len, spans)) > 0
    assert task.kinds == ("O", "loc", "per") and logits(task.predict(batch)).shape == (len(batch), 3)
    assert batch.token_inputs[SPAN].sum(dim=1).tolist() == [s.last - s.first + 1 for row in spans for s in row]
    first = spans[0][0]
    assert task.kinds[int(batch.target[0])] == (ROWS[0][1][first.first].partition("-")[2] or "O")


def test_a_word_is_a_row_on_request_and_its_pieces_are_aligned() -> None:
    task = make([(["a", "highly", "enjoyable", "film"], ["O"] * 4)], unit="word")
    assert [row.nonzero().flatten().tolist() for row in task.data["test"].token_inputs[SPAN]] == [[1], [2], [4], [6]]
    assert task.ground_truth(task.data["test"])[2].nonzero().flatten().tolist() == [4, 5], "all pieces of 'enjoyable'"
    task.model.eval()
    values = task.token_logits(task.data["test"][:1]).log_softmax(-1)[0, 4]
    kinds = torch.stack([values[0], values[1:3].logsumexp(0), values[3:].logsumexp(0)])
    torch.testing.assert_close(logits(task.predict(task.data["test"][2:3]))[0], kinds, rtol=1e-4, atol=1e-4)


def test_every_entity_has_an_explanation() -> None:
    task = make()
    explainer = Gradient().fit(task)
    text = "the film is good and i loved it"
    found = explainer(text)
    assert len(found) == len(task.encode([text]))
    assert all(one.verified and one.prediction.label.partition(":")[0] in text for one in found)
    both = explainer([text, "a dull mess"], verify=False)
    assert [len(one) for one in both] == [len(found), len(explainer("a dull mess", verify=False))]
    torch.testing.assert_close(both[0][0].scores, found[0].scores, rtol=1e-4, atol=1e-5)


def test_bad_sentences_say_what_is_wrong(tmp_path: Path) -> None:
    task = make()
    with pytest.raises(InputError, match="is not a tag of the model"):
        make([(["a", "film"], ["O", "B-org"])])
    with pytest.raises(InputError, match="one tag per word"):
        make([(["a", "film"], ["O"])])
    with pytest.raises(InputError, match="sentence is empty"):
        Gradient().fit(task)(" ")
    with pytest.raises(TaskError, match="ROAR"):
        task.retrain({}, 0)
    (tmp_path / "train.conll").write_text("film\n")
    with pytest.raises(InputError, match="line 1"):
        list(read_conll(tmp_path / "train.conll"))


def test_a_tagger_learns_from_a_folder_of_files(tmp_path: Path) -> None:
    save_encoder(tmp_path / "encoder")
    words = {"film": "B-loc", "movie": "B-loc", "plot": "B-per", "mess": "B-per", "good": "O", "dull": "O"}
    sentences = "\n".join(f"the\tO\n{word}\t{tag}\nis\tO\n" for word, tag in words.items())
    for name in ("train", "dev"):
        (tmp_path / f"{name}.conll").write_text(sentences * 6)
    assert load_conll(tmp_path).names == ("O", "B-loc", "B-per")
    config = FineTunedTokenClassificationConfig(
        model=str(tmp_path / "encoder"), data=f"conll:{tmp_path}", epochs=12, batch_size=8, learning_rate=1e-2
    )
    task = config.load(0)
    assert task.score(task.data["test"]) > 0.9
