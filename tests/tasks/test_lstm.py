"""The compiled LSTM against torch's own, which it stands in for."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from diffmask.tasks import lstm
from diffmask.tasks.lstm import both_ways, both_ways_of_words

pytest.importorskip("numba", reason="the kernel is compiled by numba")
from diffmask.tasks import lstm_kernel

LENGTH = torch.tensor([3, 7, 1, 4])
PRESENT = torch.arange(7) < LENGTH[:, None]


@pytest.fixture(params=[8, 32])
def ways(request: pytest.FixtureRequest) -> tuple[nn.LSTM, nn.LSTM]:
    torch.manual_seed(0)
    return nn.LSTM(6, request.param, batch_first=True), nn.LSTM(6, request.param, batch_first=True)


@pytest.fixture
def embedding() -> nn.Embedding:
    torch.manual_seed(1)
    return nn.Embedding(5, 6, padding_idx=0)


@pytest.fixture
def tokens() -> Tensor:
    torch.manual_seed(2)
    return torch.randint(1, 5, (4, 7)) * PRESENT


def slopes(states: Tensor, *of: Tensor) -> tuple[Tensor, ...]:
    weight = torch.randn(states.shape, generator=torch.Generator().manual_seed(3))
    return torch.autograd.grad((states * weight)[PRESENT].sum(), of)


def test_states_and_slopes_are_those_of_torch(
    ways: tuple[nn.LSTM, nn.LSTM], embedding: nn.Embedding, tokens: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    learned = [embedding.weight, *ways[0].parameters(), *ways[1].parameters()]
    ours = both_ways(*ways, embedding(tokens), LENGTH)
    of_words = both_ways_of_words(*ways, embedding, tokens, LENGTH)
    found, found_of_words = slopes(ours, *learned), slopes(of_words, *learned)
    monkeypatch.setattr(lstm, "compiles", lambda: False)
    theirs = both_ways(*ways, embedding(tokens), LENGTH)
    torch.testing.assert_close(ours[PRESENT], theirs[PRESENT], rtol=1e-5, atol=2e-6)
    torch.testing.assert_close(of_words[PRESENT], theirs[PRESENT], rtol=1e-5, atol=2e-6)
    expected = slopes(theirs, *learned)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=2e-5)
    torch.testing.assert_close(found_of_words, expected, rtol=1e-4, atol=2e-5)


def test_a_width_that_is_no_multiple_of_four_is_read_by_torch(tokens: Tensor, embedding: nn.Embedding) -> None:
    ways = [nn.LSTM(6, 5, batch_first=True) for _ in range(2)]
    assert both_ways(ways[0], ways[1], embedding(tokens), LENGTH).shape == (4, 7, 10)


def test_what_is_not_a_number_stays_none(
    ways: tuple[nn.LSTM, nn.LSTM], embedding: nn.Embedding, tokens: Tensor
) -> None:
    embedded = embedding(tokens).detach()
    embedded[1, 2] = torch.nan
    states = both_ways(*ways, embedded, LENGTH)
    width = ways[0].hidden_size
    assert states[1, 2:, :width].isnan().all() and states[1, :3, width:].isnan().all()
    assert states[0].isfinite().all() and states[1, :2, :width].isfinite().all()


def test_tanh_is_exact_to_the_last_digits() -> None:
    x = np.linspace(-20, 20, 4001, dtype=np.float32)
    ours = np.array([lstm_kernel.tanh(value) for value in x])
    assert np.abs(ours - np.tanh(x.astype(np.float64))).max() < 5e-7
