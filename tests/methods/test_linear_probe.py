"""Which way a row leans is read off its states, as far as they tell."""

import torch

from diffmask.core.distributions import class_probabilities
from diffmask.core.explainer import ForwardTrace, iter_traces
from diffmask.methods.diffmask.linear_probe import LinearProbe, fit_linear_probes
from diffmask.tasks.toy import CountingTask


def leaning_of(task: CountingTask, rows: int) -> LinearProbe:
    return fit_linear_probes(list(iter_traces(task, task.data["train"][:rows])), ["hidden"])["hidden"]


def test_a_leaning_foretells_the_answer_to_other_rows(toy_task: CountingTask) -> None:
    clean = ForwardTrace.of(toy_task, toy_task.data["test"])
    wanted = class_probabilities(clean.answer)
    found = leaning_of(toy_task, 500)(clean.states["hidden"], clean.rows.present)
    blind = (wanted - wanted.mean(dim=0)).square().mean()
    assert (found - wanted).square().mean() < 0.8 * blind
    assert found.abs().max() <= 1


def test_one_row_is_enough_to_build_one(toy_task: CountingTask) -> None:
    assert torch.isfinite(leaning_of(toy_task, 1).weight).all()
