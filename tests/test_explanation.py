"""What a reader is given for a text, and that its claims are measured on that very text."""

import io
import json
import pickle
from html.parser import HTMLParser

import pytest
import torch
from rich.console import Console

from diffmask.core.explainer import Explainer
from diffmask.errors import InputError, TaskError
from diffmask.explanation.explanation import Explanation
from diffmask.explanation.heatmap import print_heatmap
from diffmask.methods.diffmask.surrogate import SurrogateMask
from diffmask.methods.gradients import IntegratedGradients
from diffmask.tasks.classification import TextClassification
from diffmask.tasks.text.encoding import TextEncodingConfig
from diffmask.tasks.toy import CountingTask
from support.tiny_models import byte_pairs, tiny_model, word_pieces

pytestmark = pytest.mark.filterwarnings("ignore::diffmask.errors.FitWarning")

TEXT = "the plot is highly enjoyable, but xyzzy <b>acting</b>!"
ROWS = [("the film is good", 1), ("a very dull mess , but it was fun !", 2), ("enjoyable", 0)]
FIT = SurrogateMask(steps=30, batch_size=8, margin=0.3, sites_per_step=4)


@pytest.fixture(scope="module")
def explainer() -> Explainer:
    return FIT.fit(TextClassification(tiny_model("bert"), word_pieces(), train=ROWS * 4))


@pytest.fixture(scope="module")
def explanation(explainer: Explainer) -> Explanation:
    return explainer(TEXT)


def test_scores_are_the_attributions_of_the_batch_by_word(explainer: Explainer, explanation: Explanation) -> None:
    found = explainer(explainer.task.encode([TEXT]))  # type: ignore[attr-defined]
    assert explanation.words[:6] == ("the", "plot", "is", "highly", "enjoyable", ",")
    # [CLS] the plot is high ##ly enjoy ##able ,
    pieces = [[1], [2], [3], [4, 5], [6, 7], [8]]
    assert explanation.scores[:6].tolist() == [float(found.scores[0, piece].max()) for piece in pieces]
    for layer in range(len(found.layers)):
        expected = [float(found.by_layer[0, layer, piece].max()) for piece in pieces]
        assert explanation.by_layer is not None
        assert explanation.by_layer[layer, :6].tolist() == expected


def test_the_prediction_is_the_models(explainer: Explainer, explanation: Explanation) -> None:
    task = explainer.task
    with torch.no_grad():
        logits = task.model.eval()(**task.tokenizer(TEXT, return_tensors="pt")).logits[0]  # type: ignore[attr-defined]
    assert explanation.prediction.label == f"LABEL_{int(logits.argmax())}"
    assert explanation.prediction.probability == pytest.approx(float(logits.softmax(-1).max()), abs=1e-5)


def test_the_divergence_is_the_one_that_mask_really_causes(explainer: Explainer, explanation: Explanation) -> None:
    assert explanation.by_layer is not None
    mask = explanation.hard_mask(float(explanation.by_layer[0].median()), "embedding")
    assert 0 < sum(mask.kept) < len(mask.kept), "a mask that keeps all or nothing shows nothing"
    batch = explainer.task.encode([TEXT])  # type: ignore[attr-defined]
    state = explainer.baselines[0].detach()  # type: ignore[index, union-attr]
    gone = {place for unit, kept in zip(explanation.units, mask.kept, strict=True) if not kept for place in unit.tokens}

    def erase(states: torch.Tensor) -> torch.Tensor:
        # [CLS] stands before the first token that may be masked.
        rows = [state if place - 1 in gone else states[0, place] for place in range(states.shape[1])]
        return torch.stack(rows)[None]

    before = explainer.task.predict(batch)
    after = explainer.task.predict(batch, {"embedding": erase})
    assert mask.divergence == pytest.approx(float(torch.distributions.kl_divergence(before, after)), abs=1e-5)
    assert mask.prediction.probability == pytest.approx(float(after.probs.max()), abs=1e-5)  # type: ignore[attr-defined]


def test_a_threshold_below_every_score_masks_nothing_and_changes_nothing(explanation: Explanation) -> None:
    mask = explanation.hard_mask(-1.0)
    assert mask.masked_share == 0
    assert mask.divergence == pytest.approx(0, abs=1e-6)
    assert mask.prediction.label == explanation.prediction.label


def test_a_word_is_dropped_at_the_first_layer_from_which_it_stays_dropped(explanation: Explanation) -> None:
    assert explanation.by_layer is not None
    for place, layer in enumerate(explanation.dropped_at(0.5)):
        needed = [bool(value > 0.5) for value in explanation.by_layer[:, place]]
        last = max((index for index, value in enumerate(needed) if value), default=-1)
        assert layer == (explanation.layers[last + 1] if last + 1 < len(needed) else None)


def test_granularities_are_groups_of_the_same_tokens(explanation: Explanation) -> None:
    assert len(explanation.at("token").scores) == len(explanation.tokens)
    whole = explanation.at("sentence")
    assert whole.scores.tolist() == [float(explanation.token_scores.max())]
    assert explanation.at([(0, 8)]).words == ("the plot",)
    with pytest.raises(InputError, match="'words' is not a granularity; nearest: 'word'"):
        explanation.at("words")


def test_a_list_of_texts_is_a_list_and_each_is_as_it_is_alone(explainer: Explainer, explanation: Explanation) -> None:
    several = explainer(["good", TEXT, ""])
    assert [type(one) for one in several] == [Explanation] * 3
    assert torch.allclose(several[1].scores, explanation.scores, atol=1e-5)
    assert explainer([]) == []


@pytest.mark.parametrize("text", ["", "  ", "[SEP] [PAD]", "good", "🙂", "שלום good", "good\nbad", "é" * 200])
@pytest.mark.filterwarnings("ignore::diffmask.errors.InputWarning")
def test_odd_texts_have_answers(explainer: Explainer, text: str) -> None:
    found = explainer(text)
    assert bool(found.words) == bool(text.replace("[SEP]", "").replace("[PAD]", "").strip())
    json.dumps(found.to_dict())
    found.to_html()
    print_heatmap(found.heatmap(), Console(file=io.StringIO()))
    assert found.plot().axes


def test_a_pairs_words_know_their_segment() -> None:
    rows = [(("good", "bad film"), 0), (("the film", "good"), 1)] * 4
    task = TextClassification(
        tiny_model("bert"), word_pieces(segments=True), train=rows, encoding=TextEncodingConfig(segments="second")
    )
    found = FIT.fit(task)(("good movie", "dull film"))
    assert [(unit.text, unit.segment) for unit in found.units] == [("dull", 1), ("film", 1)]


def test_a_long_text_in_overlapping_rows_is_one_explanation() -> None:
    encoding = TextEncodingConfig(long_texts="stride", overlap=2)
    task = TextClassification(tiny_model("bert"), word_pieces(max_tokens=8), train=ROWS * 4, encoding=encoding)
    explainer = FIT.fit(task)
    text = "the film is good but the plot is bad and dull"
    found = explainer(text)
    assert found.words == tuple(text.split())
    rows = explainer(task.encode([text]))
    # "but the" stand in both of the first rows: places 5 and 6 of the first, 1 and 2 of the second.
    expected = torch.maximum(rows.scores[0, 5:7], rows.scores[1, 1:3])
    assert torch.allclose(found.scores[4:6], expected)
    probabilities = task.logits(task.encode([text])).softmax(dim=-1).mean(dim=0)
    assert found.prediction.probability == pytest.approx(float(probabilities.max()), abs=1e-5)
    assert found.hard_mask(-1.0).divergence == pytest.approx(0, abs=1e-6)


class Texts(HTMLParser):
    """The texts and the tags of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.words: list[str] = []
        self.tags: set[str] = set()
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.add(tag)

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def test_nothing_of_the_text_is_markup_on_the_page(explainer: Explainer) -> None:
    found = explainer("<script>alert(1)</script> & good")
    for view in (found, found.at("sentence"), found.at("token")):
        page = Texts(view.to_html())
        assert "script" not in page.tags
        assert set(view.words) <= set(page.words)
    assert found._repr_html_() == found.to_html()


def _pieces(explanation: Explanation) -> list[tuple[str, bool]]:
    """The text in pieces, and whether each is a word that is kept."""
    end, pieces = 0, []
    for unit, kept in zip(explanation.units, explanation.hard_mask().kept, strict=True):
        pieces += [(TEXT[end : unit.span[0]], False), (unit.text, kept)]
        end = unit.span[1]
    return [*pieces, (TEXT[end:], False)]


def test_the_terminal_shows_every_word_its_layers_and_the_check(explanation: Explanation) -> None:
    out = io.StringIO()
    print_heatmap(explanation.heatmap(), Console(file=out, width=120))
    lines = out.getvalue().splitlines()
    assert lines[0].startswith("Prediction: LABEL_")
    assert lines[2] == "".join(f"[{word}]" if kept else word for word, kept in _pieces(explanation))
    assert lines[4].split() == ["E", "1", "2", "out"]
    assert explanation.by_layer is not None
    row = next(line for line in lines[4:] if line.startswith("enjoyable"))
    assert [float(cell) for cell in row.split()[1:]] == pytest.approx(explanation.by_layer[:, 4].tolist(), abs=0.006)
    assert f"KL(original || masked) = {explanation.hard_mask().divergence:.3f} nats" in out.getvalue()


def test_the_figure_has_a_cell_for_every_word_and_layer(explanation: Explanation) -> None:
    axes = explanation.plot().axes[0]
    assert axes.images[0].get_array().shape == (len(explanation.words), len(explanation.layers))
    assert [tick.get_text() for tick in axes.get_yticklabels()] == list(explanation.words)


def test_the_dictionary_is_plain_and_whole(explanation: Explanation) -> None:
    plain = json.loads(json.dumps(explanation.to_dict()))
    assert plain["words"] == list(explanation.words)
    assert [TEXT[first:last] for first, last in plain["spans"]] == plain["words"]
    assert plain["mask"]["divergence"] == explanation.hard_mask().divergence


def test_a_method_without_layers_has_scores_only() -> None:
    task = TextClassification(tiny_model("gpt2", vocab_size=300), byte_pairs(), train=["good bad"] * 4)
    found = IntegratedGradients(n_steps=4).fit(task)("bad good, ok")
    assert found.by_layer is None
    assert found.words == ("bad", "good", ",", "ok")
    assert found.hard_mask(0.0).kept.count(True) >= 3
    with pytest.raises(InputError, match="has no scores per layer"):
        found.dropped_at()
    found.to_html()


def test_a_task_that_reads_no_texts_says_so(toy_task: CountingTask) -> None:
    with pytest.raises(TaskError, match="explaining a str: CountingTask reads batches only"):
        IntegratedGradients(site="hidden", n_steps=2).fit(toy_task)("text")


def test_an_explanation_is_pickled_without_its_model(explanation: Explanation) -> None:
    stored = pickle.dumps(explanation)
    assert len(stored) < 50_000
    loaded = pickle.loads(stored)
    assert loaded.heatmap() == explanation.heatmap()
    assert loaded.to_dict() == explanation.to_dict()
    with pytest.raises(InputError, match="loaded without its model"):
        loaded.hard_mask(-1.0)
    with pytest.raises(InputError, match="has lost its model"):
        loaded.verify()


def test_an_explainer_is_one_line(explainer: Explainer) -> None:
    assert repr(explainer).startswith("SurrogateMaskExplainer(surrogate-mask ")
    assert repr(explainer).count("\n") == 0 and "BertForSequenceClassification" in repr(explainer)
