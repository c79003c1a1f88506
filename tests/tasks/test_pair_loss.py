"""The compiled loss of a small model of pairs against torch's: the same model, written once more as modules."""

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from diffmask.tasks.bilstm.model import PairBiLSTM
from diffmask.tasks.bilstm.pair_loss import pair_logits, pair_loss

pytest.importorskip("numba", reason="the kernel is compiled by numba")


@pytest.fixture(params=[(8, 36), (32, 5)])
def model(request: pytest.FixtureRequest) -> PairBiLSTM:
    width, classes = request.param
    torch.manual_seed(0)
    return PairBiLSTM(torch.randn(12, 6), width, classes)


@pytest.fixture
def inputs() -> dict[str, Tensor]:
    """Rows of 7, 3 and 2 tokens, the last of which may not be attended to at all."""
    source = torch.Generator().manual_seed(1)
    present = torch.arange(7) < torch.tensor([[7], [3], [2]])
    asked = torch.arange(4) < torch.tensor([[2], [4], [3]])
    tokens = torch.randint(3, 12, (3, 7), generator=source) * present
    tokens[:, 0] = 1
    attended = present & (tokens >= 3)
    attended[2] = False
    return {
        "tokens": tokens,
        "present": present,
        "attended": attended,
        "pair": torch.randint(3, 12, (3, 4), generator=source) * asked,
        "pair_present": asked,
    }


TARGET = torch.tensor([4, 0, 2])


def gradients(model: PairBiLSTM, loss: Tensor) -> dict[str, Tensor]:
    names, values = zip(*model.named_parameters(), strict=True)
    return dict(zip(names, torch.autograd.grad(loss, values), strict=True))


def test_loss_and_gradients_of_all_weights_equal_torch_s(model: PairBiLSTM, inputs: dict[str, Tensor]) -> None:
    ours, theirs = pair_loss(model, inputs, TARGET), cross_entropy(model(**inputs), TARGET)
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(gradients(model, 3 * ours), gradients(model, 3 * theirs), rtol=1e-4, atol=1e-6)


def test_a_second_batch_does_not_depend_on_the_first(model: PairBiLSTM, inputs: dict[str, Tensor]) -> None:
    rows = {name: value[1:2] for name, value in inputs.items()}
    pair_loss(model, inputs, TARGET)
    alone = cross_entropy(model(**rows), TARGET[1:2])
    torch.testing.assert_close(
        gradients(model, pair_loss(model, rows, TARGET[1:2])), gradients(model, alone), rtol=1e-4, atol=1e-6
    )


def test_logits_equal_those_of_the_modules(model: PairBiLSTM, inputs: dict[str, Tensor]) -> None:
    torch.testing.assert_close(pair_logits(model, inputs), model(**inputs).detach(), rtol=1e-5, atol=1e-6)


def test_nan_weights_give_nan_logits(model: PairBiLSTM, inputs: dict[str, Tensor]) -> None:
    model.pooling.score.weight.data[0, 0] = torch.nan
    logits = pair_logits(model, inputs)
    assert logits[:2].isnan().all()
    assert logits[2].isfinite().all()  # It attends to nothing.


def test_the_model_uses_the_kernel_if_it_is_supported(model: PairBiLSTM, inputs: dict[str, Tensor]) -> None:
    assert type(model.loss(inputs, TARGET).grad_fn).__name__ == "_PairLossBackward"
    wide = PairBiLSTM(torch.randn(12, 6), 68, 5)
    assert type(wide.loss(inputs, TARGET).grad_fn).__name__ == "NllLossBackward0"
    torch.testing.assert_close(wide.inference_logits(inputs), wide(**inputs))
