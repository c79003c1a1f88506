"""Sites are found by running the model; their states are the hidden states that the model itself returns."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from diffmask.errors import SiteError
from diffmask.tasks.classification import TextClassification
from diffmask.tasks.text.inspection import find_sites
from support.tiny_models import FAMILIES, tiny_model, word_pieces

TEXTS = ["the film is good", "a very dull mess , but it was fun !", "enjoyable", "not bad and not good , very not"]
KINDS = [family.kind for family in FAMILIES]
LAST_STATE_IS_NORMALISED = {"gpt2", "llama", "qwen2", "modernbert"}
"""Their last hidden state is the last block's output after a further normalisation."""


@pytest.fixture(scope="module", params=KINDS)
def task(request: pytest.FixtureRequest) -> TextClassification:
    return TextClassification(tiny_model(request.param), word_pieces(), train=TEXTS)


def bare(task: TextClassification, text: str, **options: Any) -> Any:
    """The model as its owner calls it: one text, no padding."""
    with torch.no_grad():
        return task.model.eval()(**task.tokenizer(text, return_tensors="pt"), **options)


def test_an_identity_edit_keeps_the_bare_model_s_logits(task: TextClassification) -> None:
    edited = task.predict(task.encode(TEXTS), {site: lambda state: state * 1.0 for site in task.sites})
    expected = torch.cat([bare(task, text).logits for text in TEXTS])
    assert torch.allclose(edited.logits, expected.log_softmax(dim=-1), atol=1e-5)  # type: ignore[attr-defined]


def test_the_states_are_the_model_s_hidden_states(task: TextClassification) -> None:
    _, states = task.trace(task.encode(TEXTS[:1]))
    hidden_states = bare(task, TEXTS[0], output_hidden_states=True).hidden_states
    states_by_site = [states[site] for site in task.sites[1:]]
    if task.model.config.model_type == "xlnet":
        hidden_states = [state if state.shape[0] == 1 else state.transpose(0, 1) for state in hidden_states]
    assert len(hidden_states) == len(states_by_site)
    compared = len(hidden_states) - (task.model.config.model_type in LAST_STATE_IS_NORMALISED)
    for ours, theirs in zip(states_by_site[:compared], hidden_states[:compared], strict=True):
        assert torch.allclose(ours, theirs[:, : ours.shape[1]], atol=1e-5)


def test_another_words_embedding_at_the_first_site_is_another_word(task: TextClassification) -> None:
    batch, other = task.encode(["the film is good"]), task.encode(["the film is bad"])
    column = int((batch.tokens != other.tokens).nonzero()[0, 1])
    vector = task.model.get_input_embeddings().weight[other.tokens[0, column]]

    def swap(state: torch.Tensor) -> torch.Tensor:
        return torch.cat([state[:, :column], vector.expand(1, 1, -1), state[:, column + 1 :]], dim=1)

    swapped = task.predict(batch, {"embedding": swap})
    assert torch.allclose(swapped.logits, task.predict(other).logits, atol=1e-5)  # type: ignore[attr-defined]


def second_row(state: torch.Tensor) -> torch.Tensor:
    """Add one to the second row's states."""
    return state + torch.eye(len(state))[1][:, None, None]


def test_an_edit_reaches_its_own_row_and_no_earlier_site(task: TextClassification) -> None:
    batch = task.encode(TEXTS)
    answer, states = task.trace(batch)
    others = torch.arange(len(TEXTS)) != 1
    for index, site in enumerate(task.sites):
        recorder = Recorder()
        changed = task.predict(batch, {**{name: recorder.record(name) for name in task.sites}, site: second_row})
        assert all(torch.equal(recorder.states[earlier], states[earlier]) for earlier in task.sites[:index])
        assert torch.allclose(changed.logits[others], answer.logits[others], atol=1e-5)  # type: ignore[attr-defined]


class Recorder:
    """States, as edits that change nothing saw them."""

    def __init__(self) -> None:
        self.states: dict[str, torch.Tensor] = {}

    def record(self, site: str) -> Callable[[torch.Tensor], torch.Tensor]:
        return lambda state: self.states.setdefault(site, state)


def test_padding_changes_nothing(task: TextClassification) -> None:
    batch = task.encode(TEXTS)
    longer = batch.pad(batch.tokens.shape[1] + 3, task.pad_token)
    assert torch.allclose(task.logits(batch), task.logits(longer), atol=1e-5)


def test_a_block_called_three_times_is_three_sites() -> None:
    task = TextClassification(tiny_model("albert"), word_pieces())
    assert [task.site(site).call for site in task.sites] == [None, 0, 1, 2, 2]
    batch = task.encode(["the film is good"])
    _, states = task.trace(batch)
    recorder = Recorder()
    task.predict(
        batch, {"block1": recorder.record("block1"), "block2": torch.zeros_like, "block3": recorder.record("block3")}
    )
    assert torch.equal(recorder.states["block1"], states["block1"])
    assert not torch.allclose(recorder.states["block3"], states["block3"])


class Shared(nn.Module):
    """Embeds its input twice, as an encoder and a decoder would."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, 4)
        self.blocks = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        state = self.embedding(ids) + self.embedding(ids)
        for block in self.blocks:
            state = block(state)
        return state.mean(dim=1)


def test_an_embedding_called_twice_is_an_error_that_says_so() -> None:
    model = Shared()
    with pytest.raises(SiteError, match="'embedding' is called 2 times"):
        find_sites(model, model.embedding, model)


class Leaky(nn.Module):
    """Its blocks are not all there is: the embedding goes around them."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, 4)
        self.blocks = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        state = skipped = self.embedding(ids)
        for block in self.blocks:
            state = block(state)
        return (state + skipped).mean(dim=1)


def test_blocks_that_information_can_bypass_are_refused() -> None:
    model = Leaky()
    with pytest.raises(SiteError, match=r"the input of 'blocks\.0' is not all that the model knows"):
        find_sites(model, model.embedding, model)


def test_another_number_of_blocks_than_stated_is_refused() -> None:
    model = tiny_model("bert")
    model.config.num_hidden_layers = 3
    with pytest.raises(SiteError, match="2 blocks found where the model's configuration states 3"):
        TextClassification(model, word_pieces())


def test_a_model_without_blocks_is_an_error_that_says_what_to_do() -> None:
    model = nn.Sequential(nn.Embedding(20, 4), nn.Linear(4, 2))
    with pytest.raises(SiteError, match=r"no blocks found in Sequential.*own_task\.md"):
        find_sites(model, model[0], model)


def test_a_model_that_cannot_run_says_why() -> None:
    model = tiny_model("gpt2", pad_token_id=None)
    with pytest.raises(SiteError, match="Cannot handle batch sizes > 1 if no padding token is defined"):
        TextClassification(model, word_pieces())
