"""A linear probe predicts the model's prediction from the states of a site."""

import torch

from diffmask.core.distributions import class_probabilities
from diffmask.core.explainer import ForwardTrace, iter_traces
from diffmask.methods.diffmask.linear_probe import LinearProbe, fit_linear_probes
from diffmask.tasks.toy import CountingTask


def fit_probe(task: CountingTask, rows: int) -> LinearProbe:
    return fit_linear_probes(list(iter_traces(task, task.data["train"][:rows])), ["hidden"])["hidden"]


def test_a_probe_predicts_the_class_probabilities_of_held_out_rows(toy_task: CountingTask) -> None:
    trace = ForwardTrace.of(toy_task, toy_task.data["test"])
    targets = class_probabilities(trace.answer)
    predicted = fit_probe(toy_task, 500)(trace.states["hidden"], trace.rows.present)
    variance = (targets - targets.mean(dim=0)).square().mean()
    assert (predicted - targets).square().mean() < 0.8 * variance
    assert predicted.abs().max() <= 1


def test_one_row_is_enough_to_fit_a_probe(toy_task: CountingTask) -> None:
    assert torch.isfinite(fit_probe(toy_task, 1).weight).all()
