"""The compiled LSTM against torch's."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from diffmask.tasks.bilstm import lstm
from diffmask.tasks.bilstm.lstm import bidirectional_states

pytest.importorskip("numba", reason="the kernel is compiled by numba")
from diffmask.tasks.bilstm import lstm_kernel

LENGTH = torch.tensor([3, 7, 1, 4])
PRESENT = torch.arange(7) < LENGTH[:, None]


@pytest.fixture(params=[8, 32])
def lstms(request: pytest.FixtureRequest) -> tuple[nn.LSTM, nn.LSTM]:
    torch.manual_seed(0)
    forward_lstm, backward_lstm = (nn.LSTM(6, request.param, batch_first=True).requires_grad_(False) for _ in range(2))
    return forward_lstm, backward_lstm


@pytest.fixture
def embedded() -> Tensor:
    torch.manual_seed(1)
    return torch.randn(4, 7, 6, requires_grad=True)


def gradient(states: Tensor, of: Tensor) -> Tensor:
    weight = torch.randn(states.shape, generator=torch.Generator().manual_seed(3))
    (gradients,) = torch.autograd.grad((states * weight)[PRESENT].sum(), of)
    return gradients


def test_states_and_gradients_equal_torch_s(
    lstms: tuple[nn.LSTM, nn.LSTM], embedded: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = bidirectional_states(*lstms, embedded, LENGTH)
    gradients = gradient(ours, embedded)
    monkeypatch.setattr(lstm, "has_numba", lambda: False)
    theirs = bidirectional_states(*lstms, embedded, LENGTH)
    torch.testing.assert_close(ours[PRESENT], theirs[PRESENT], rtol=1e-5, atol=2e-6)
    torch.testing.assert_close(gradients, gradient(theirs, embedded), rtol=1e-4, atol=2e-5)
    assert (gradients[~PRESENT] == 0).all()


def test_a_trainable_lstm_runs_in_torch(lstms: tuple[nn.LSTM, nn.LSTM], embedded: Tensor) -> None:
    forward_lstm, backward_lstm = (lstm_layer.requires_grad_(True) for lstm_layer in lstms)
    bidirectional_states(forward_lstm, backward_lstm, embedded, LENGTH)[PRESENT].sum().backward()
    assert all(value.grad is not None and value.grad.abs().sum() > 0 for value in (*forward_lstm.parameters(),))


def test_a_width_that_is_no_multiple_of_four_runs_in_torch(embedded: Tensor) -> None:
    lstms = [nn.LSTM(6, 5, batch_first=True).requires_grad_(False) for _ in range(2)]
    assert bidirectional_states(lstms[0], lstms[1], embedded, LENGTH).shape == (4, 7, 10)


def test_nan_stays_nan(lstms: tuple[nn.LSTM, nn.LSTM], embedded: Tensor) -> None:
    broken = embedded.detach().clone()
    broken[1, 2] = torch.nan
    states = bidirectional_states(*lstms, broken, LENGTH)
    width = lstms[0].hidden_size
    assert states[1, 2:, :width].isnan().all() and states[1, :3, width:].isnan().all()
    assert states[0].isfinite().all() and states[1, :2, :width].isfinite().all()


def test_tanh_is_exact_to_the_last_digits() -> None:
    x = np.linspace(-20, 20, 4001, dtype=np.float32)
    ours = np.array([lstm_kernel.tanh(value) for value in x])
    assert np.abs(ours - np.tanh(x.astype(np.float64))).max() < 5e-7
