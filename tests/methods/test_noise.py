"""The method `noise-tolerance`: one layer or all of them, against the closed form of a linear model."""

import pytest
import torch

from diffmask.core.baseline_states import site_statistics
from diffmask.errors import SiteError
from diffmask.methods.noise.method import NoiseTolerance, NoiseToleranceExplainer
from support.linear import LinearTask
from support.transformer import TransformerTask


def explainer_of(method: NoiseTolerance, task: LinearTask | TransformerTask) -> NoiseToleranceExplainer:
    found = method.fit(task)
    assert isinstance(found, NoiseToleranceExplainer)
    return found


def test_a_linear_model_tolerates_noise_in_inverse_proportion_to_its_weights() -> None:
    # distortion = |w|^2 sum_t sigma_t^2, so that 2 |w|^2 sigma_t^2 = rate for every token: |w|^2 = 5.
    task = LinearTask([[1, 2, 3], [3, 1]])
    batch = task.data["test"]
    explainer = explainer_of(NoiseTolerance(rate=0.5, tolerance=0.02, max_steps=200), task)
    sigma = explainer.sigma(batch)
    torch.testing.assert_close(sigma[:, 0], (0.5 / 10) ** 0.5 * batch.present, rtol=0.03, atol=0)
    torch.testing.assert_close(explainer(batch).scores, (10 / 0.5) ** 0.5 * batch.present, rtol=0.03, atol=0)


def test_every_later_layer_is_explained_in_one_call() -> None:
    task = TransformerTask()
    batch = task.data["test"][:4]
    found = explainer_of(NoiseTolerance(targets=("*",), max_steps=20, samples=8), task)(batch)
    assert found.layers == ("block 0", "block 1", "output")
    assert found.by_layer is not None
    torch.testing.assert_close(found.scores, found.by_layer.mean(dim=1))
    assert (found.by_layer[batch.maskable[:, None].expand_as(found.by_layer)] > 0).all()


def test_noise_at_the_first_layer_has_the_closed_form() -> None:
    # The input of block 0 is e(x_t) + position: with deviations s over N = tokens x width numbers of the text,
    # distortion = sum_t sigma_t^2 sum_k s_k^-2 / N, so that sigma_t^2 = rate N / (2 sum_k s_k^-2).
    task = TransformerTask()
    batch = task.data["test"][:3].trim()
    sigma = explainer_of(NoiseTolerance(targets=("block 0",), tolerance=0.01, max_steps=300), task).sigma(batch)
    inverse = site_statistics(task, ["block 0"], rows=2000)["block 0"].deviation.pow(-2).sum()
    numbers = batch.present.sum(dim=1, keepdim=True) * 16
    expected = (numbers / (2 * inverse)).sqrt() * batch.maskable
    torch.testing.assert_close(sigma[:, 0], expected, rtol=0.03, atol=0)


def test_logits_and_sites_can_both_be_targets() -> None:
    task = TransformerTask()
    method = NoiseTolerance(site="block 1", targets=("output", "logits"), max_steps=5, samples=4)
    assert explainer_of(method, task)(task.data["test"][:3]).layers == ("output", "logits")


def test_a_site_before_the_noise_cannot_be_a_target() -> None:
    with pytest.raises(SiteError, match="'embedding' does not come after 'block 1'; targets after it: output, logits"):
        NoiseTolerance(site="block 1", targets=("embedding",)).fit(TransformerTask())
