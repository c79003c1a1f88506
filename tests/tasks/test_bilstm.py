"""The BiLSTM with attention against torch's packed sequences, its published sizes, and its training."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import f1_score, roc_auc_score
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.utils.data import DataLoader

from diffmask.core.batch import Batch
from diffmask.core.distributions import target_score
from diffmask.core.scores import auroc_score, macro_f1_score
from diffmask.core.task import Task
from diffmask.core.training import generator
from diffmask.datasets import babi
from diffmask.datasets.tokenizers import MASK, SPECIAL_TOKENS, TokenizedExample, Vocabulary
from diffmask.methods.attention import Attention
from diffmask.methods.gradients import Gradient, state_gradient
from diffmask.tasks.bilstm.bilstm_config import BiLSTMConfig
from diffmask.tasks.bilstm.bilstm_task import BiLSTMClassification, encode
from diffmask.tasks.bilstm.bilstm_training import batches_of_any_length, batches_of_one_length, draw_loader_seed
from diffmask.tasks.bilstm.lstm import bidirectional_states
from diffmask.tasks.bilstm.model import BiLSTMEncoder, PairBiLSTM, SingleBiLSTM

Cut = Callable[[Batch, int, torch.Generator], Iterator[Batch]]
SMALL = BiLSTMConfig(data="babi-1", rows=120, epochs=1)
WORDS = Vocabulary((*SPECIAL_TOKENS, *(f"word{number}" for number in range(20))))


@pytest.fixture(scope="module")
def task() -> BiLSTMClassification:
    loaded = SMALL.load(seed=0)
    assert isinstance(loaded, BiLSTMClassification)
    return loaded


def test_both_directions_are_those_of_a_packed_bidirectional_lstm() -> None:
    encoder, whole = BiLSTMEncoder(5, 4), nn.LSTM(5, 4, batch_first=True, bidirectional=True)
    for name, value in encoder.forward_lstm.named_parameters():
        getattr(whole, name).data = value.data
    for name, value in encoder.backward_lstm.named_parameters():
        getattr(whole, f"{name}_reverse").data = value.data
    lengths = torch.randint(1, 7, (40,))  # More rows than run together.
    embedded, present = torch.randn(40, 6, 5), torch.arange(6) < lengths[:, None]
    states = bidirectional_states(encoder.forward_lstm, encoder.backward_lstm, embedded, lengths)
    packed, (last, _) = whole(pack_padded_sequence(embedded, lengths, batch_first=True, enforce_sorted=False))
    expected, _ = pad_packed_sequence(packed, batch_first=True)
    torch.testing.assert_close(states[present], expected[present])
    torch.testing.assert_close(encoder.last_states(states, present), torch.cat([last[0], last[1]], dim=-1))


def parameters(model: nn.Module) -> int:
    return sum(value.numel() for name, value in model.named_parameters() if "embedding" not in name)


def test_the_models_have_the_published_numbers_of_parameters() -> None:
    assert parameters(SingleBiLSTM(torch.zeros(10, 300), 128, 2)) == 473_858
    assert parameters(PairBiLSTM(torch.zeros(10, 300), 128, 3)) == 1_012_739
    babi = PairBiLSTM(torch.zeros(25, 50), 32, 36)
    assert parameters(babi) == 52_548
    assert sum(value.numel() for value in babi.parameters()) == 55_048


def test_a_seed_begins_with_the_published_weights() -> None:
    np.random.seed(3)
    vectors = [np.random.randn(50) for _ in range(24)]  # None for padding.
    torch.manual_seed(3)
    text, question, of_text, of_question, score, *_ = published_modules()
    model, _ = SMALL.init_model(WORDS, classes=36, paired=True, seed=3)
    assert isinstance(model, PairBiLSTM)
    for embedding in (model.embedding, model.question_embedding):
        torch.testing.assert_close(embedding.weight, torch.tensor(np.vstack([np.zeros(50), *vectors])).float())
    for encoder, published in ((model.encoder, text), (model.question_encoder, question)):
        torch.testing.assert_close(encoder.forward_lstm.weight_hh_l0, published.weight_hh_l0, rtol=0, atol=0)
        torch.testing.assert_close(encoder.backward_lstm.bias_hh_l0, published.bias_hh_l0_reverse, rtol=0, atol=0)
    pooling = model.pooling
    assert pooling.question is not None
    for ours, theirs in ((pooling.state, of_text), (pooling.question, of_question), (pooling.score, score)):
        assert (ours.weight == theirs.weight).all()


def test_a_retrained_model_begins_with_the_published_second_weights() -> None:
    np.random.seed(3)
    np.random.randn(24, 50)  # The first model's vectors.
    second_vectors = np.random.randn(24, 50)
    torch.manual_seed(3)
    published_modules()
    for _ in range(3):  # Loaders of three splits, each of which draws a seed for its worker.
        iter(DataLoader([0.0]))  # type: ignore[arg-type]  # a list will do
    text = nn.LSTM(50, 32, batch_first=True, bidirectional=True)
    model, _ = SMALL.init_model(WORDS, classes=36, paired=True, seed=3, earlier=1)
    assert isinstance(model, PairBiLSTM)
    torch.testing.assert_close(model.embedding.weight[1:], torch.tensor(second_vectors).float())
    torch.testing.assert_close(model.encoder.forward_lstm.weight_ih_l0, text.weight_ih_l0, rtol=0, atol=0)


def test_a_seed_sees_the_published_batches() -> None:
    rows = encode([TokenizedExample((f"w{place}",), (), 0) for place in range(130)], Vocabulary(("",) * 5))
    rows = replace(rows, target=torch.arange(130))
    torch.manual_seed(3)
    published_modules()
    shuffled: DataLoader[Any] = DataLoader(range(130), batch_size=50, shuffle=True)  # type: ignore[arg-type]
    validation: DataLoader[Any] = DataLoader(range(40))  # type: ignore[arg-type]  # a range will do
    _, source = SMALL.init_model(WORDS, classes=36, paired=True, seed=3)
    for _epoch in range(3):
        batches = list(batches_of_any_length(rows, 50, source))
        for published, ours in zip(shuffled, batches, strict=True):
            assert ours.target.tolist() == published.tolist()
        iter(validation)
        draw_loader_seed(source)


def test_an_epoch_draws_what_the_published_loaders_drew() -> None:
    _, source = SMALL.init_model(WORDS, classes=36, paired=True, seed=3)
    torch.set_rng_state(source.get_state())
    SMALL.training.train(SMALL.build(3), source)
    next(iter(DataLoader(range(9), shuffle=True)))  # type: ignore[arg-type]  # a range will do
    iter(DataLoader(range(9)))  # type: ignore[arg-type]
    assert source.get_state().equal(torch.get_rng_state())


def test_batches_are_drawn_by_the_generator_of_the_weights(task: BiLSTMClassification) -> None:
    for trained, earlier in ((task, 0), (task.retrain(task.data, seed=0), 1)):
        model, source = SMALL.init_model(task.vocabulary, len(task.names), task.paired, 0, earlier)
        again = BiLSTMClassification(SMALL, task.vocabulary, task.names, model, task.data)
        SMALL.training.train(again, source)
        assert again.fingerprint() == trained.fingerprint()


def test_initial_vectors_come_from_a_file_and_special_tokens_begin_at_zero(tmp_path: Path) -> None:
    file = tmp_path / "crawl.vec"
    file.write_text("3 2\nword0 1 2\n[MASK] 9 9\nunseen 3 4\n")
    config = replace(SMALL, vectors=str(file))
    model, _ = config.init_model(WORDS, classes=36, paired=True, seed=0)
    assert isinstance(model, PairBiLSTM)
    expected = torch.zeros(25, 2)
    expected[5] = torch.tensor([1.0, 2.0])
    assert model.embedding.weight.equal(expected) and model.question_embedding.weight.equal(expected)
    assert "crawl vectors" in config.label and str(tmp_path) not in config.label


def published_modules() -> list[Any]:
    """The modules of the published model of pairs, in its order."""
    readers = [nn.LSTM(50, 32, batch_first=True, bidirectional=True) for _ in range(2)]
    attention = [nn.Linear(64, 32), nn.Linear(64, 32), nn.Linear(32, 1, bias=False)]
    return [*readers, *attention, nn.Linear(64, 32), nn.Linear(64, 32), nn.Linear(32, 36)]


def test_the_two_embeddings_of_a_pair_are_learned_apart() -> None:
    model, _ = SMALL.init_model(WORDS, classes=36, paired=True, seed=0)
    assert isinstance(model, PairBiLSTM)
    assert model.embedding.weight.data_ptr() != model.question_embedding.weight.data_ptr()
    assert model.embedding.weight.requires_grad and model.embedding.padding_idx == 0


def test_special_tokens_and_padding_get_no_attention_and_the_rest_sums_to_one(task: BiLSTMClassification) -> None:
    batch = task.data["test"]
    weights = task.attentions(batch)[:, 0, 0, 0]
    assert (weights[~batch.maskable] == 0).all()
    torch.testing.assert_close(weights.sum(dim=1), torch.ones(len(batch)))
    assert Attention().fit(task)(batch[:3]).scores.shape == batch.tokens[:3].shape


def test_a_row_answers_the_same_alone_and_among_longer_ones(task: BiLSTMClassification) -> None:
    batch = task.data["test"]
    short = int(batch.present.sum(dim=1).argmin())
    alone = task.logits(batch[short : short + 1].trim())
    torch.testing.assert_close(alone, task.logits(batch)[short : short + 1], rtol=1e-4, atol=1e-5)


def test_the_gradient_is_that_of_the_unnormalised_logit(task: BiLSTMClassification) -> None:
    batch = task.data["test"][:2].trim()
    scores = task.logits(batch)
    torch.testing.assert_close(
        target_score(task.predict(batch), batch.target, "logit"), scores[torch.arange(2), batch.target]
    )
    steep = state_gradient(task, batch, batch.target, "embedding", "logit")
    weight = task.model.get_submodule("embedding").weight
    dense = (steep @ weight.T).norm(dim=-1)  # type: ignore[operator]  # it is a tensor
    scores = Gradient(one_hot=True, quantity="logit").fit(task)(batch, batch.target).scores
    torch.testing.assert_close(scores[batch.maskable], dense[batch.maskable], rtol=1e-4, atol=1e-5)


def test_the_truth_is_the_supporting_fact(task: BiLSTMClassification) -> None:
    batch = task.data["test"]
    words, truth = task.describe(batch[:1])[0], task.ground_truth(batch[:1])[0]
    evidence = [word for word, needed in zip(words, truth.tolist(), strict=False) if needed]
    assert evidence[-1] == task.names[int(batch.target[0])]
    assert evidence[0] == task.vocabulary.words[int(batch.inputs["pair"][0, 3])]


def test_retraining_starts_afresh_on_the_other_rows(task: BiLSTMClassification) -> None:
    again, once_more = task.retrain(task.data, seed=0), task.retrain(task.data, seed=0)
    assert again.fingerprint() == once_more.fingerprint()
    assert again.fingerprint() != task.fingerprint()
    other = task.retrain(task.data, seed=1)
    assert other.fingerprint() != again.fingerprint()


def test_it_keeps_the_contract_of_a_frozen_task(task: BiLSTMClassification) -> None:
    assert not task.model.training
    assert not any(value.requires_grad for value in task.model.parameters())
    assert isinstance(task, Task) and task.mask_token == MASK


def test_a_model_that_has_not_begun_to_learn_trains_for_all_epochs() -> None:
    still = replace(SMALL.training, epochs=9, patience=2, learning_rate=1e-12)
    assert len(still.train(SMALL.build(0), generator(0))) == 9


def test_training_stops_without_improvement_and_keeps_the_first_of_the_best_epochs() -> None:
    hasty = replace(SMALL.training, epochs=60, patience=2, learning_rate=0.02)
    fresh = SMALL.build(0)
    scores = hasty.train(fresh, generator(0))
    best = scores.index(max(scores))
    assert hasty.patience <= len(scores) - 1 - best < 59
    assert len(scores) < 60
    stopped = SMALL.build(0)
    replace(hasty, epochs=best + 1).train(stopped, generator(0))
    assert fresh.fingerprint() == stopped.fingerprint()


@pytest.mark.parametrize("cut", [batches_of_one_length, batches_of_any_length])
def test_every_row_is_seen_once_an_epoch(cut: Cut) -> None:
    batch = some_stories()
    seen = torch.cat([part.present.sum(dim=1) for part in cut(batch, 8, generator(0))])
    assert sorted(seen.tolist()) == sorted(batch.present.sum(dim=1).tolist())


def test_stories_are_learned_from_in_batches_of_all_lengths() -> None:
    def lengths(cut: Cut) -> float:
        lengths = [len(part.present.sum(dim=1).unique()) for part in cut(some_stories(), 20, generator(0))]
        return sum(lengths) / len(lengths)

    assert not SMALL.training.by_length
    assert lengths(batches_of_any_length) > 2 * lengths(batches_of_one_length)


def some_stories() -> Batch:
    texts = [question.tokenized() for question in babi.generate_questions(1, 60, seed=0)]
    return encode(texts, Vocabulary.of(texts))


def test_unknown_words_may_be_masked_and_have_one_number() -> None:
    texts = [TokenizedExample(("a", "b"), None, 0), TokenizedExample(("a", "c"), None, 1)]
    batch = encode([TokenizedExample(("z", "a"), None, 1)], Vocabulary.of(texts, min_count=2))
    assert batch.tokens.tolist() == [[1, 4, 5, 2]]
    assert batch.maskable.tolist() == [[False, True, True, False]]


def test_scores_are_those_of_scikit_learn() -> None:
    source = generator(0)
    logits, target = torch.randn(50, 2, generator=source), torch.randint(2, (50,), generator=source)
    assert macro_f1_score(logits.argmax(1), target) == pytest.approx(
        f1_score(target, logits.argmax(1), average="macro")
    )
    assert auroc_score(logits[:, 1] - logits[:, 0], target) == pytest.approx(
        roc_auc_score(target, logits[:, 1] - logits[:, 0])
    )
