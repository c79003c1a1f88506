"""NRMS written a second time as plain algebra; masks; its files; its training."""

from pathlib import Path
from typing import cast

import pytest
import torch
from torch import Tensor, nn

from diffmask.datasets.mind_generator import MindGenerator
from diffmask.errors import ConfigError, InputError, StoreError
from diffmask.tasks.recommender.news_recommender import NewsRecommender
from diffmask.tasks.recommender.nrms import NRMS, AdditiveAttention, NRMSConfig, SelfAttention, Slots
from diffmask.tasks.recommender.nrms_files import init_nrms, load_nrms, save_nrms, word_tokenizer
from diffmask.tasks.recommender.nrms_training import NRMSTraining, evaluate
from diffmask.tasks.text.known_tasks import is_recommender
from support.news import SMALL, impressions, titles, trained


def attend(layer: SelfAttention, states: Tensor) -> Tensor:
    """One unpadded row, head by head."""
    width = states.shape[1] // layer.heads
    query, key, value = layer.qkv(states).chunk(3, dim=1)
    heads = []
    for head in range(layer.heads):
        part = slice(head * width, (head + 1) * width)
        weights = torch.softmax(query[:, part] @ key[:, part].T / width**0.5, dim=1)
        heads.append(weights @ value[:, part])
    return layer.out(torch.cat(heads, dim=1))


def pool(layer: AdditiveAttention, states: Tensor) -> Tensor:
    weights = torch.softmax(layer.query(torch.tanh(layer.hidden(states)))[:, 0], dim=0)
    return weights @ states


@torch.no_grad()
def test_scores_equal_plain_algebra_without_any_padding() -> None:
    torch.manual_seed(0)
    model = NRMS(SMALL, nn.Embedding(9, SMALL.width)).eval()
    rows = [[3, 4, 5], [6], [7, 8, 3, 4], [5, 5]]

    def vector(tokens: list[int]) -> Tensor:
        return pool(
            model.word_attention, attend(cast(SelfAttention, model.word_mixer), model.encoder(torch.tensor(tokens)))
        )

    read = torch.stack([vector(rows[2]), vector(rows[3])])
    user = pool(model.history_attention, attend(model.history_mixer, read))
    expected = torch.stack([vector(rows[0]) @ user, vector(rows[1]) @ user])

    tokens = torch.tensor([[*row, *[0] * (4 - len(row))] for row in rows])
    present = torch.arange(4)[None] < torch.tensor([[len(row)] for row in rows])
    # A second user with an empty history pads the first one's.
    slots = Slots.of([[0, 1], [0]], [[2, 3], []])
    scores = model(tokens, present, torch.zeros(0, SMALL.width), slots)
    torch.testing.assert_close(scores[0], expected)
    assert scores[1, 0] == 0  # an empty history is a user vector of zeros
    torch.testing.assert_close(model.scores(model.encode(tokens, present), slots), scores)


def test_a_width_that_heads_do_not_divide_is_refused() -> None:
    with pytest.raises(ConfigError, match="5 heads do not divide"):
        NRMS(NRMSConfig(width=24, heads=5), nn.Embedding(4, 24))
    with pytest.raises(ConfigError, match="dropout"):
        NRMSConfig(dropout=1.0)


@torch.no_grad()
def test_a_convolution_sees_neighbouring_words_only() -> None:
    torch.manual_seed(0)
    model = NRMS(NRMSConfig(width=8, heads=2, words="convolution"), nn.Embedding(9, 8)).eval()
    present = torch.ones(1, 5, dtype=torch.bool)
    first, second = (model.word_states(torch.tensor([row]), present) for row in ([1, 2, 3, 4, 5], [1, 2, 3, 4, 8]))
    assert torch.equal(first[:, :3], second[:, :3]) and not torch.equal(first[:, 3], second[:, 3])


def test_training_learns_the_clicks() -> None:
    model, tokenizer = trained()
    task = NewsRecommender(model, tokenizer, test=impressions()["test"])
    result = evaluate(task, impressions()["test"])
    assert result.impressions == 100 and result.accuracy >= 0.9
    assert task.score(task.data["test"]) == pytest.approx(result.accuracy)


def small_task(seed: int = 0) -> NewsRecommender:
    data = MindGenerator(impressions=40).splits(1)
    model, tokenizer = init_nrms("words", titles(data["train"]), NRMSConfig(width=8, heads=2, query_width=8), seed)
    return NewsRecommender(model, tokenizer, train=data["train"], valid=data["valid"])


def test_a_killed_training_resumes_to_the_same_weights(tmp_path: Path) -> None:
    whole, killed, resumed = small_task(), small_task(), small_task()
    history = NRMSTraining(epochs=3, batch_size=16).train(whole, 0)
    folder = tmp_path / "checkpoints"

    class KilledError(Exception):
        pass

    class Killing(NRMSTraining):
        def _epoch(self, *arguments: object) -> None:
            if (folder / "epoch_2").exists():
                raise KilledError
            super()._epoch(*arguments)  # type: ignore[arg-type]  # the arguments of the overridden method

    with pytest.raises(KilledError):
        Killing(epochs=3, batch_size=16).train(killed, 0, folder)
    again = NRMSTraining(epochs=3, batch_size=16).train(resumed, 0, folder)
    assert [record["loss"] for record in again] == [record["loss"] for record in history]
    for name, value in whole.model.state_dict().items():
        assert torch.equal(value, resumed.model.state_dict()[name]), name
    # Another seed is another training: its checkpoints are not used.
    assert NRMSTraining(epochs=1, batch_size=16).train(small_task(1), 1, folder)[0]["loss"] != history[0]["loss"]


def test_early_stopping_keeps_the_best_epoch() -> None:
    task = small_task()
    history = NRMSTraining(epochs=9, batch_size=16, patience=1, learning_rate=1e-9).train(task, 0)
    assert len(history) < 9
    assert evaluate(task, task.impressions["valid"]).auc == max(record["auc"] for record in history)


def test_training_needs_a_choice(tmp_path: Path) -> None:
    task = small_task()
    task.impressions["train"] = []
    with pytest.raises(InputError, match="nothing to train on"):
        NRMSTraining().train(task)
    with pytest.raises(ConfigError, match="masked_fraction"):
        NRMSTraining(masked_fraction=2.0)


def test_a_recommender_is_saved_and_loaded(tmp_path: Path) -> None:
    model, tokenizer = trained()
    save_nrms(model, tokenizer, tmp_path / "nrms")
    assert is_recommender(tmp_path / "nrms") and not is_recommender(tmp_path)
    loaded, words = load_nrms(tmp_path / "nrms")
    assert words.get_vocab() == tokenizer.get_vocab() and loaded.config == model.config
    for name, value in model.state_dict().items():
        assert torch.equal(value, loaded.state_dict()[name])
    (tmp_path / "nrms" / "model.safetensors").write_bytes(b"")
    with pytest.raises(StoreError, match="does not fit"):
        load_nrms(tmp_path / "nrms")
    with pytest.raises(StoreError, match="holds no recommender"):
        load_nrms(tmp_path)


def test_words_are_the_tokens_of_a_recommender_without_an_encoder() -> None:
    tokenizer = word_tokenizer(["Stocks fall, again", "again and again"])
    assert tokenizer.convert_ids_to_tokens(tokenizer("AGAIN stocks rise")["input_ids"]) == ["again", "stocks", "[UNK]"]
    with pytest.raises(InputError, match="no words"):
        word_tokenizer([" "])
