"""Captum's methods as methods of this package."""

import math
import os
import subprocess
import sys
from typing import Any

import pytest
import torch

from diffmask.core.config import parse
from diffmask.errors import ConfigError, ExtraError
from diffmask.methods.gradients import IntegratedGradients
from support.linear import VALUES, LinearTask
from support.lookup import LookupTask
from support.transformer import TransformerTask

ROWS = [[1, 2, 3], [3, 1], [2]]


def method(name: str, **options: Any) -> Any:
    return parse("method", {"name": f"captum:{name}", **options}, "test")


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("FeatureAblation", {}),
        ("Occlusion", {"window": 1}),
        ("ShapleyValueSampling", {"n_samples": 2}),
        ("KernelShap", {"n_samples": 200}),
        ("IntegratedGradients", {"signed": True}),
        ("DeepLift", {"signed": True}),
        ("GradientShap", {"signed": True}),
    ],
)
def test_on_a_sum_each_score_is_the_contribution(name: str, options: dict[str, Any]) -> None:
    task = LinearTask(ROWS)
    batch = task.data["test"]
    scores = method(name, baseline="zero", **options).fit(task)(batch, 1).scores
    torch.testing.assert_close(scores, torch.tensor(VALUES)[batch.tokens], atol=1e-3, rtol=1e-3)


def test_on_a_sum_input_times_gradient_is_the_contribution() -> None:
    task = LinearTask(ROWS)
    batch = task.data["test"]
    scores = method("InputXGradient", signed=True).fit(task)(batch, 1).scores
    torch.testing.assert_close(scores, torch.tensor(VALUES)[batch.tokens])


def test_saliency_is_the_sum_of_absolute_gradients() -> None:
    task = LinearTask(ROWS)
    batch = task.data["test"]
    torch.testing.assert_close(method("Saliency").fit(task)(batch, 1).scores, 3.0 * batch.present)


def test_lime_orders_the_tokens_of_a_sum() -> None:
    task = LinearTask([[1, 2, 3]])
    scores = method("Lime", baseline="zero", n_samples=200).fit(task)(task.data["test"], 1).scores[0]
    assert scores.argsort().tolist() == [1, 0, 2]


def test_layer_integrated_gradients_end_at_the_mask_token() -> None:
    task = LinearTask(ROWS)
    batch = task.data["test"]
    scores = method("LayerIntegratedGradients", signed=True).fit(task)(batch, 1).scores
    torch.testing.assert_close(scores, (torch.tensor(VALUES)[batch.tokens] - VALUES[4]) * batch.present)


@pytest.mark.parametrize("site", ["embedding", "block 1", "output"])
def test_our_integrated_gradient_is_captums_at_any_site(site: str) -> None:
    task = TransformerTask()
    batch = task.data["test"][:8]
    theirs = method("IntegratedGradients", site=site, baseline="mean", n_steps=64).fit(task)(batch).scores
    ours = IntegratedGradients(site=site, baseline="mean", n_steps=300).fit(task)(batch).scores
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


def test_shapley_values_share_what_only_two_tokens_do_together() -> None:
    # Logit 3 with both tokens 0 and 1, else 0; token 2 does nothing: values 1.5, 1.5, 0.
    task = LookupTask(3, {frozenset([0, 1]): 3.0, frozenset([0, 1, 2]): 3.0}, default=0.0)
    batch = task.data["test"]
    exact = torch.tensor([[1.5, 1.5, 0.0]])
    kernel = method("KernelShap", n_samples=500).fit(task)(batch, 1).scores
    torch.testing.assert_close(kernel, exact, atol=0.2, rtol=0)
    sampled = method("ShapleyValueSampling", n_samples=300).fit(task)(batch, 1).scores
    torch.testing.assert_close(sampled, exact, atol=4 * 1.5 / math.sqrt(300), rtol=0)
    ablated = method("FeatureAblation").fit(task)(batch, 1).scores
    torch.testing.assert_close(ablated, torch.tensor([[3.0, 3.0, 0.0]]))


def test_an_unknown_name_suggests_the_nearest() -> None:
    with pytest.raises(ConfigError, match="there is no method 'captum:Limes'; nearest: 'captum:Lime'"):
        method("Limes")
    with pytest.raises(ConfigError, match="'n_sample' is not an option of method 'captum:Lime'; nearest: 'n_samples'"):
        method("Lime", n_sample=3)


def test_counts_below_one_are_refused() -> None:
    with pytest.raises(ConfigError, match="captum:Occlusion: window must be at least 1; got 0"):
        method("Occlusion", window=0)


def test_without_captum_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "captum.attr", None)
    with pytest.raises(ExtraError, match=r"captum:Lime needs Captum: pip install 'diffmask\[captum\]'"):
        method("Lime").fit(LinearTask(ROWS))


@pytest.mark.parametrize("name", ["Lime", "KernelShap", "ShapleyValueSampling", "GradientShap"])
def test_global_generators_and_the_environment_are_left_as_found(name: str) -> None:
    # In a fresh process: scikit-learn, which draws numbers and sets variables when imported, is loaded on first use.
    code = f"""
import os, random, numpy, torch
from diffmask.core.config import parse
from support.linear import LinearTask
task = LinearTask([[1, 2, 3], [3, 1]])
explainer = parse("method", {{"name": "captum:{name}"}}, "test").fit(task)
def found(): return random.getstate(), dict(os.environ), str(numpy.random.get_state()), torch.get_rng_state().tolist()
before = found()
explainer(task.data["test"])
assert before == found()
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)
