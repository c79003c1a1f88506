"""A Hugging Face classifier: its data in any form, every kind of head, and the model left unchanged."""

import errno
import warnings
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError
from torch.distributions import kl_divergence

from diffmask.core.distributions import divergence
from diffmask.errors import InputError, InputWarning, NumericsError, StoreError
from diffmask.methods.diffmask.base import MaskKind, SiteMaskMethod
from diffmask.methods.diffmask.gated import DiffMask
from diffmask.methods.diffmask.surrogate import SurrogateMask
from diffmask.tasks.classification import TextClassification
from diffmask.tasks.text.encoding import TextEncodingConfig
from support.tiny_models import byte_pairs, tiny_model, word_pieces

ROWS = [("the film is good", 1), ("a very dull mess , but it was fun !", 2), ("enjoyable", 0)]


@pytest.fixture(scope="module")
def task() -> TextClassification:
    return TextClassification(tiny_model("bert"), word_pieces(), train=ROWS)


def columns() -> dict[str, list[object]]:
    return {"text": [text for text, _ in ROWS], "label": [label for _, label in ROWS]}


def write_csv(folder: Path) -> Path:
    file = folder / "rows.csv"
    file.write_text("text,label\n" + "".join(f'"{text}",{label}\n' for text, label in ROWS))
    return file


def write_jsonl(folder: Path) -> Path:
    file = folder / "rows.jsonl"
    file.write_text("".join(f'{{"text": "{text}", "label": {label}}}\n' for text, label in ROWS))
    return file


def data_set(folder: Path) -> object:
    datasets = pytest.importorskip("datasets")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return datasets.Dataset.from_dict(columns())


def data_frame(folder: Path) -> object:
    return pytest.importorskip("pandas").DataFrame(columns())


@pytest.mark.parametrize("source", [write_csv, write_jsonl, lambda _: columns(), data_set, data_frame])
def test_every_form_of_the_same_data_is_the_same_batch(task: TextClassification, source, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    batch = task.load(source(tmp_path))
    expected = task.data["train"]
    assert torch.equal(batch.tokens, expected.tokens)
    assert torch.equal(batch.target, torch.tensor([1, 2, 0]))


def test_only_tokens_of_the_text_may_be_masked(task: TextClassification) -> None:
    words = task.describe(task.data["train"])
    kept = [
        [word for word, may in zip(row, mask.tolist(), strict=False) if may]
        for row, mask in zip(words, task.data["train"].maskable, strict=True)
    ]
    assert words[2] == ["[CLS]", "enjoy", "##able", "[SEP]"]
    assert kept[2] == ["enjoy", "##able"]
    assert kept[0] == ["the", "film", "is", "good"]


def test_an_unknown_word_may_be_masked_and_a_typed_special_token_may_not(task: TextClassification) -> None:
    batch = task.encode(["xyzzy [SEP] good"])
    assert task.describe(batch)[0] == ["[CLS]", "[UNK]", "[SEP]", "good", "[SEP]"]
    assert batch.maskable[0].tolist() == [False, True, False, True, False]


@pytest.mark.parametrize(
    ("segments", "expected"),
    [("both", ["good", "bad", "film"]), ("first", ["good"]), ("second", ["bad", "film"])],
)
def test_the_segments_of_a_pair_that_may_be_masked_are_a_choice(segments: str, expected: list[str]) -> None:
    encoding = TextEncodingConfig(segments=segments)  # type: ignore[arg-type]
    rows = [(("good", "bad film"), 0)]
    task = TextClassification(tiny_model("bert"), word_pieces(segments=True), train=rows, encoding=encoding)
    batch = task.data["train"]
    assert batch.token_inputs["token_type_ids"].tolist() == [[0, 0, 0, 1, 1, 1]]
    tokens = task.describe(batch)[0]
    assert [token for token, may in zip(tokens, batch.maskable[0].tolist(), strict=True) if may] == expected


def test_a_pairs_answer_is_the_bare_models() -> None:
    task = TextClassification(tiny_model("bert"), word_pieces(segments=True))
    with torch.no_grad():
        expected = task.model.eval()(**task.tokenizer("good", "bad film", return_tensors="pt")).logits
    assert torch.allclose(task.logits(task.encode([("good", "bad film")])), expected.log_softmax(-1), atol=1e-6)


def test_the_model_is_left_unchanged() -> None:
    model = tiny_model("bert").train()
    model.classifier.eval()
    model.bert.embeddings.requires_grad_(False)
    modes = [module.training for module in model.modules()]
    wants = [parameter.requires_grad for parameter in model.parameters()]
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    task = TextClassification(model, word_pieces(), train=ROWS)
    first, second = task.logits(task.data["train"]), task.logits(task.data["train"])
    assert torch.equal(first, second), "dropout is off while the model runs here"
    with pytest.raises(ArithmeticError):
        task.predict(task.data["train"], {"block1": _raises})
    assert [module.training for module in model.modules()] == modes
    assert [parameter.requires_grad for parameter in model.parameters()] == wants
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def _raises(state: torch.Tensor) -> torch.Tensor:
    raise ArithmeticError


def test_several_labels_at_once_are_independent_yes_or_no_answers() -> None:
    model = tiny_model("bert", problem_type="multi_label_classification", id2label={0: "a", 1: "b", 2: "c"})
    rows = [("the film is good", ["a", "c"]), ("bad", [0, 1, 0])]
    task = TextClassification(model, word_pieces(), train=rows)
    assert task.data["train"].target.tolist() == [[1, 0, 1], [0, 1, 0]]
    answer = task.predict(task.data["train"])
    changed = task.predict(task.data["train"], {"block1": lambda state: state * 0.9})
    assert torch.allclose(divergence(answer, changed), kl_divergence(answer, changed), atol=1e-5)


def test_a_numbers_divergence_is_half_the_squared_change() -> None:
    task = TextClassification(tiny_model("bert", labels=1), word_pieces(), train=[("good", 2.5), ("bad", -1.0)])
    batch = task.data["train"]
    changed = task.predict(batch, {"block1": lambda state: state * 0.5})
    moved = (task.predict(batch).mean - changed.mean).squeeze(-1)
    assert torch.allclose(divergence(task.predict(batch), changed), moved**2 / 2, atol=1e-5)
    assert batch.target.tolist() == [[2.5], [-1.0]]
    predicted = task.head.predictions(task.predict(batch))[0]
    assert predicted.probability is None
    assert float(predicted.label) == pytest.approx(float(task.logits(batch)[0]), rel=1e-3)


def test_the_score_is_the_share_of_right_answers() -> None:
    task = TextClassification(tiny_model("bert"), word_pieces())
    own = task.logits(task.encode([text for text, _ in ROWS])).argmax(dim=-1).tolist()
    wrong = (own[2] + 1) % 3
    rows = [(ROWS[0][0], own[0]), (ROWS[1][0], own[1]), (ROWS[2][0], wrong), ("film", None)]
    assert task.score(task.load(rows)) == pytest.approx(2 / 3)
    with pytest.raises(InputError, match="no row has a label"):
        task.score(task.encode(["good"]))


def test_labels_go_by_name_or_number_and_a_wrong_one_is_named(task: TextClassification) -> None:
    assert task.load([("good", "LABEL_2"), ("good", "1"), ("good", 0)]).target.tolist() == [2, 1, 0]
    with pytest.raises(InputError, match=r"'LABLE_2' is not a label of the model; nearest: 'LABEL_2'"):
        task.load([("good", "LABLE_2")])


def test_a_long_text_is_cut_with_a_warning_or_becomes_rows_that_overlap() -> None:
    model, tokenizer = tiny_model("bert"), word_pieces(max_tokens=8)
    text = "the film is good but the plot is bad and dull"
    with pytest.warns(InputWarning, match="1 of 2 texts have more than 8 tokens"):
        task = TextClassification(model, tokenizer, train=["good", text])
    assert task.data["train"].tokens.shape == (2, 8)
    encoding = TextEncodingConfig(long_texts="stride", overlap=2)
    rows = TextClassification(model, tokenizer, train=["good", text], encoding=encoding).describe
    batch = TextClassification(model, tokenizer, train=["good", text], encoding=encoding).data["train"]
    assert [" ".join(row[1:-1]) for row in rows(batch)] == [
        "good",
        "the film is good but the",
        "but the plot is bad and",
        "bad and dull",
    ]


def test_odd_texts_have_rows(task: TextClassification) -> None:
    odd = ["", " ", "🙂", "שלום good", "[SEP] [CLS]", "a\u0000b", "e\u0301", "good\n\nbad", "x" * 500]
    batch = task.encode(odd)
    assert len(batch) == len(odd)
    assert not batch.maskable[[0, 1, 4]].any()
    assert torch.isfinite(task.logits(batch)).all()


def test_a_text_without_any_token_still_has_a_row_that_nothing_can_be_masked_in() -> None:
    task = TextClassification(tiny_model("gpt2", vocab_size=300), byte_pairs())
    batch = task.encode(["", "good"])
    assert batch.present.tolist() == [[True], [True]]
    assert batch.maskable.tolist() == [[False], [True]]


def test_errors_name_the_missing_part(tmp_path: Path) -> None:
    tokenizer = byte_pairs()
    tokenizer.pad_token = None
    with pytest.raises(InputError, match=r"no padding token; set one"):
        TextClassification(tiny_model("gpt2", vocab_size=300), tokenizer)
    with pytest.raises(InputError, match="came without its tokenizer"):
        TextClassification(tiny_model("bert"))
    with pytest.raises(InputError, match=r"there is no folder '.*nothing'; give the folder of a model, or a hub id"):
        TextClassification(tmp_path / "nothing")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="cannot be loaded as a folder or a hub id"):
        TextClassification(tmp_path / "empty")
    with pytest.raises(InputError, match=r"row 0: there is no column 'text'; nearest: 'txt'"):
        TextClassification(tiny_model("bert"), word_pieces(), train=[{"txt": "good"}])
    with pytest.raises(InputError, match="padding changes the model's answer"):
        TextClassification(tiny_model("gpt2", pad_token_id=7), word_pieces())


def test_a_folder_is_the_model_in_it_and_a_model_without_a_classifier_is_refused(tmp_path: Path) -> None:
    model, tokenizer = tiny_model("bert"), word_pieces()
    model.save_pretrained(tmp_path / "whole")
    tokenizer.save_pretrained(tmp_path / "whole")
    model.bert.save_pretrained(tmp_path / "body")
    tokenizer.save_pretrained(tmp_path / "body")
    found = TextClassification(tmp_path / "whole")
    given = TextClassification(model, tokenizer)
    assert found.fingerprint() == given.fingerprint()
    with pytest.raises(InputError, match=r"has no trained classifier: classifier\.bias, classifier\.weight"):
        TextClassification(tmp_path / "body")


def test_a_model_that_answers_nan_stops() -> None:
    model = tiny_model("bert")
    task = TextClassification(model, word_pieces(), train=ROWS)
    model.classifier.bias.data[1] = torch.nan
    with pytest.raises(NumericsError, match="not finite for rows"):
        task.predict(task.data["train"])


@pytest.mark.filterwarnings("ignore::diffmask.errors.FitWarning")
@pytest.mark.parametrize("mask", ["inputs", "states"])
@pytest.mark.parametrize("method", [DiffMask, SurrogateMask])
@pytest.mark.parametrize("kind", ["bert", "albert", "xlnet", "llama"])
def test_masks_are_fitted_to_a_classifier(kind: str, method: type[SiteMaskMethod], mask: MaskKind) -> None:
    task = TextClassification(tiny_model(kind), word_pieces(), train=ROWS * 4)
    explainer = method(mask=mask, steps=5, batch_size=4, sites_per_step=4).fit(task)
    found = explainer(task.data["train"])
    assert found.layers == task.sites
    assert (found.scores[~task.data["train"].maskable] == 0).all()
    assert found.by_layer is not None
    if mask == "states" or method is DiffMask:
        assert (found.scores[task.data["train"].maskable] > 0).all()
        one = found.by_layer[:, -1] if mask == "inputs" else found.by_layer.mean(dim=1)
        torch.testing.assert_close(found.scores, one)
    else:  # predicted changes of the log-odds, of either sign
        assert found.scores.isfinite().all() and (found.scores[task.data["train"].maskable] != 0).any()


@pytest.mark.parametrize("kind", ["bert", "xlnet", "gpt2"])
def test_attention_between_a_short_text_s_tokens_is_what_it_is_alone(kind: str) -> None:
    task = TextClassification(tiny_model(kind, attn_implementation="eager"), word_pieces())
    together = task.encode(["the film is good", "a very dull mess , but it was fun !"])
    alone = task.encode(["the film is good"])
    tokens = alone.tokens.shape[1]
    found = task.attentions(together)[:1, :, :, :tokens, :tokens]
    torch.testing.assert_close(found, task.attentions(alone), atol=1e-5, rtol=1e-4)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in task.model.modules())


def test_attention_is_kept_on_a_fast_kernel_too_and_the_kernel_is_put_back() -> None:
    task = TextClassification(tiny_model("bert", attn_implementation="sdpa"), word_pieces())
    slow = TextClassification(tiny_model("bert", attn_implementation="eager"), word_pieces())
    slow.model.load_state_dict(task.model.state_dict())
    batch = task.encode(["the film is good"])
    torch.testing.assert_close(task.attentions(batch), slow.attentions(batch), atol=1e-5, rtol=1e-4)
    assert task.model.config._attn_implementation == "sdpa"


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), SafetensorError("I/O error")])
def test_a_classifier_that_cannot_be_saved_leaves_the_old_one_as_it_was(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = (TextClassification(tiny_model("bert", seed=seed), word_pieces()) for seed in (0, 1))
    old.save_pretrained(tmp_path / "clf")
    (tmp_path / "clf" / "notes.txt").write_text("mine")
    before = {file.name: file.read_bytes() for file in (tmp_path / "clf").iterdir()}

    def fail(*_: object) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(new.tokenizer, "save_pretrained", fail)
        with pytest.raises(StoreError, match="clf cannot be written: "):
            new.save_pretrained(tmp_path / "clf")
    assert {file.name: file.read_bytes() for file in (tmp_path / "clf").iterdir()} == before
    new.save_pretrained(tmp_path / "clf")
    assert (tmp_path / "clf" / "model.safetensors").read_bytes() != before["model.safetensors"]
    assert (tmp_path / "clf" / "notes.txt").read_text() == "mine"
    assert [file.name for file in tmp_path.iterdir()] == ["clf"]


@pytest.mark.parametrize("limit", [None, [512], "512"])
def test_a_tokenizer_whose_limit_is_not_a_number_is_refused(limit: object) -> None:
    tokenizer = word_pieces()
    tokenizer.model_max_length = limit  # type: ignore[assignment]  # as a damaged tokenizer_config.json has it
    with pytest.raises(InputError, match=r"model_max_length is .*, not a number; mend tokenizer_config\.json"):
        TextClassification(tiny_model("bert"), tokenizer, train=ROWS)
