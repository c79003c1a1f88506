"""Gradient, input x gradient and integrated gradients: by hand, and against Captum on a transformer."""

from typing import Any, Literal

import pytest
import torch
from captum.attr import InputXGradient as CaptumInputXGradient
from captum.attr import IntegratedGradients as CaptumIntegratedGradients
from captum.attr import Saliency
from torch import Tensor

from diffmask.core.baseline_states import Baseline, baseline_state
from diffmask.core.batch import Batch
from diffmask.core.distributions import Quantity, predicted_outcome, target_score
from diffmask.core.task import Task
from diffmask.errors import ConfigError, SiteError, TaskError
from diffmask.methods.gradients import Gradient, InputXGradient, IntegratedGradients, IntegratedGradientsExplainer
from support.linear import VALUES, VECTORS, WEIGHTS, LinearTask
from support.transformer import TransformerTask

ROWS = [[1, 2, 3], [3, 1]]


@pytest.fixture(scope="module")
def linear() -> LinearTask:
    return LinearTask(ROWS)


@pytest.fixture(scope="module")
def transformer() -> TransformerTask:
    return TransformerTask()


def test_the_gradient_of_log_odds_is_the_weight_vector(linear: LinearTask) -> None:
    batch = linear.data["test"]
    euclidean = Gradient(quantity="log-odds").fit(linear)(batch, 1).scores
    absolute = Gradient(quantity="log-odds", norm="l1").fit(linear)(batch, 1).scores
    torch.testing.assert_close(euclidean, 5**0.5 * batch.present)
    torch.testing.assert_close(absolute, 3.0 * batch.present)


def test_the_gradient_of_the_log_probability_shrinks_by_the_probability_of_the_other_answer(linear: LinearTask) -> None:
    batch = linear.data["test"]
    # Logits 1 - 2 + 4 = 3 and 4 + 1 = 5; d log sigmoid(x) = sigmoid(-x).
    other = torch.sigmoid(torch.tensor([[-3.0], [-5.0]]))
    torch.testing.assert_close(Gradient().fit(linear)(batch, 1).scores, 5**0.5 * other * batch.present)


def test_the_one_hot_form_is_the_norm_over_the_whole_vocabulary(linear: LinearTask) -> None:
    batch = linear.data["test"]
    plain = torch.tensor(VALUES).norm()
    scores = Gradient(quantity="log-odds", one_hot=True).fit(linear)(batch, 1).scores
    torch.testing.assert_close(scores, plain * batch.present)


def test_the_one_hot_form_equals_a_dense_one_on_a_transformer(transformer: TransformerTask) -> None:
    batch = transformer.data["test"][:6].trim()
    scores = Gradient(one_hot=True).fit(transformer)(batch).scores
    steep = reference_gradient(transformer, batch, "embedding", "log-probability")
    dense = (steep @ transformer.model.get_parameter("embedding.weight").T).norm(dim=-1)
    torch.testing.assert_close(scores, dense * batch.maskable)


def test_the_one_hot_form_is_refused_where_there_is_no_embedding(transformer: TransformerTask) -> None:
    with pytest.raises(TaskError, match=r"needs the output of an nn\.Embedding; site 'block 1' is the input of Block"):
        Gradient(one_hot=True, site="block 1").fit(transformer)
    with pytest.raises(ConfigError, match="L2 norm only"):
        Gradient(one_hot=True, norm="l1")


def test_input_times_gradient_of_a_sum_is_the_contribution(linear: LinearTask) -> None:
    batch = linear.data["test"]
    signed = InputXGradient(signed=True).fit(linear)(batch, 1).scores
    torch.testing.assert_close(signed, torch.tensor([[1.0, -2.0, 4.0], [4.0, 1.0, 0.0]]))
    torch.testing.assert_close(InputXGradient().fit(linear)(batch, 1).scores, signed.abs())
    torch.testing.assert_close(InputXGradient(signed=True).fit(linear)(batch, 0).scores, -signed)


@pytest.mark.parametrize(
    ("baseline", "vector"), [("zero", [0.0, 0.0]), ("mask", VECTORS[4]), ("pad", VECTORS[0]), ("mean", [1.2, -0.2])]
)
def test_integrated_gradient_of_a_linear_model_is_its_distance_from_the_baseline(
    linear: LinearTask, baseline: Baseline, vector: list[float]
) -> None:
    batch = linear.data["test"]
    worth = torch.tensor(WEIGHTS) @ torch.tensor(vector)
    scores = IntegratedGradients(baseline=baseline, signed=True, n_steps=3).fit(linear)(batch, 1).scores
    torch.testing.assert_close(scores, (torch.tensor(VALUES)[batch.tokens] - worth) * batch.present)


@pytest.mark.parametrize(("path", "share"), [(None, 0.5), ("ends", 0.5), ("right", 0.51), ("middle", 0.5)])
def test_the_published_variant_shrinks_a_linear_model_by_the_mean_place_on_the_path(
    linear: LinearTask, path: Literal["ends", "right", "middle"] | None, share: float
) -> None:
    batch = linear.data["test"]
    method = IntegratedGradients(as_published=True, path=path, n_steps=50, signed=True)
    torch.testing.assert_close(method.fit(linear)(batch, 1).scores, share * torch.tensor(VALUES)[batch.tokens])


@pytest.mark.parametrize("baseline", ["zero", "mask", "pad", "mean"])
@pytest.mark.parametrize("site", ["embedding", "block 0", "block 1", "output"])
def test_integrated_gradient_is_complete_at_64_steps(
    transformer: TransformerTask, site: str, baseline: Baseline
) -> None:
    if baseline == "zero" and site.startswith("block"):
        pytest.skip("a norm of states near zero has no slope worth integrating")
    explainer = IntegratedGradients(site=site, baseline=baseline).fit(transformer)
    assert isinstance(explainer, IntegratedGradientsExplainer)
    explainer(transformer.data["test"])
    assert explainer.completeness_error < 0.01
    assert explainer.diagnostics[site] == {"completeness_error": explainer.completeness_error, "problems": {}}


def test_scores_that_do_not_add_up_are_reported(transformer: TransformerTask, caplog: pytest.LogCaptureFixture) -> None:
    explainer = IntegratedGradients(n_steps=1).fit(transformer)
    explainer(transformer.data["test"][:8])
    assert "raise n_steps" in explainer.diagnostics["embedding"]["problems"]["completeness"]
    assert "raise n_steps" in caplog.text


def test_the_sum_of_signed_scores_is_the_change_of_the_log_odds(transformer: TransformerTask) -> None:
    batch = transformer.data["test"][:10].trim()
    target = predicted_outcome(transformer.predict(batch))
    state = baseline_state(transformer, "embedding", "mask")
    # Before they are set to zero, special tokens have scores as well: the path is that of the whole text.
    scores = IntegratedGradients(signed=True, baseline="mask").fit(transformer).explain(batch, target).scores
    end = target_score(transformer.predict(batch), target, "log-odds")
    begin = target_score(
        transformer.predict(batch, {"embedding": lambda own: state.expand_as(own)}), target, "log-odds"
    )
    torch.testing.assert_close(scores.sum(dim=1), end - begin, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("site", ["embedding", "block 1"])
def test_gradient_agrees_with_captum(transformer: TransformerTask, site: str) -> None:
    batch = transformer.data["test"][:12].trim()
    f, state, rows = captum_view(transformer, batch, site, "log-probability")
    with pytest.warns(UserWarning, match="require gradients"):
        theirs = Saliency(f).attribute(state, additional_forward_args=(rows,)).norm(dim=-1)
    ours = Gradient(site=site).fit(transformer)(batch).scores
    torch.testing.assert_close(ours, theirs * batch.maskable, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("site", ["embedding", "block 1"])
def test_input_times_gradient_agrees_with_captum(transformer: TransformerTask, site: str) -> None:
    batch = transformer.data["test"][:12].trim()
    f, state, rows = captum_view(transformer, batch, site, "log-odds")
    theirs = CaptumInputXGradient(f).attribute(state.requires_grad_(), additional_forward_args=(rows,)).sum(dim=-1)
    ours = InputXGradient(site=site, signed=True).fit(transformer)(batch).scores
    torch.testing.assert_close(ours, theirs.detach() * batch.maskable, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("baseline", ["zero", "mask"])
def test_integrated_gradient_agrees_with_captum(transformer: TransformerTask, baseline: Baseline) -> None:
    batch = transformer.data["test"][:12].trim()
    f, state, rows = captum_view(transformer, batch, "embedding", "log-odds")
    start = torch.where(batch.present[..., None], baseline_state(transformer, "embedding", baseline), state)
    options: dict[str, Any] = {"n_steps": 100, "method": "riemann_middle", "additional_forward_args": (rows,)}
    theirs = CaptumIntegratedGradients(f).attribute(state, baselines=start, **options).sum(dim=-1)
    method = IntegratedGradients(n_steps=100, baseline=baseline, signed=True, internal_batch_size=64)
    ours = method.fit(transformer)(batch).scores
    torch.testing.assert_close(ours, theirs * batch.maskable, rtol=1e-4, atol=1e-4)


def test_a_site_that_is_not_there_is_refused_with_the_nearest(transformer: TransformerTask) -> None:
    for method in (Gradient(site="blok 0"), InputXGradient(site="blok 0"), IntegratedGradients(site="blok 0")):
        with pytest.raises(SiteError, match="nearest: 'block 0'"):
            method.fit(transformer)


def test_steps_must_be_positive() -> None:
    with pytest.raises(ConfigError, match="n_steps and internal_batch_size must be at least 1"):
        IntegratedGradients(n_steps=0)


def captum_view(task: Task, batch: Batch, site: str, quantity: Quantity) -> tuple[Any, Tensor, Tensor]:
    """A function of the site's states alone, those states, and the rows that copies come from."""
    answer, states = task.trace(batch)
    target = predicted_outcome(answer)

    def f(state: Tensor, rows: Tensor) -> Tensor:
        return target_score(task.predict(batch[rows], {site: lambda _: state}), target[rows], quantity)

    return f, states[site].clone(), torch.arange(len(batch))


def reference_gradient(task: Task, batch: Batch, site: str, quantity: Quantity) -> Tensor:
    f, state, rows = captum_view(task, batch, site, quantity)
    (found,) = torch.autograd.grad(f(state.requires_grad_(), rows).sum(), state)
    return found
