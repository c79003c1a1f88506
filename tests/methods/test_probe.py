"""A probe reads standardised states."""

import torch

from diffmask.core.baseline_states import SiteStatistics
from diffmask.methods.diffmask.probe import Probe


def test_a_probe_is_a_bounded_layer_on_standardised_states() -> None:
    source = torch.Generator().manual_seed(0)
    mean, deviation = torch.randn(6, generator=source), torch.rand(6, generator=source) + 0.1
    probe = Probe([SiteStatistics(mean, deviation)], width=4, logit_range=3.0, start=0.0, init_scale=3.0)
    torch.nn.init.normal_(probe.vote.weight, generator=source)
    states = 5 * torch.randn(2, 3, 6, generator=source)
    standard = (states - mean) / deviation
    features = torch.tanh(standard @ probe.hidden.weight.T + probe.hidden.bias)
    expected = 3.0 * torch.tanh(features @ probe.vote.weight[0] + probe.vote.bias)
    assert torch.allclose(probe(states), expected, atol=1e-5)
    # Shifting and stretching states and statistics alike changes nothing.
    moved = Probe([SiteStatistics(10 * mean + 1, 10 * deviation)], width=4, logit_range=3.0, start=0.0, init_scale=3.0)
    moved.load_state_dict({**probe.state_dict(), "mean": moved.mean, "deviation": moved.deviation})
    assert torch.allclose(moved(10 * states + 1), expected, atol=1e-4)
