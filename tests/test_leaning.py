"""Which way a row leans is read off its states, as far as they tell."""

import torch

from diffmask.core.distributions import tendency
from diffmask.core.explainer import CleanPass, clean_passes
from diffmask.methods.diffmask.linear_probe import Leaning, read_leanings
from diffmask.tasks.toy import CountingTask


def leaning_of(task: CountingTask, rows: int) -> Leaning:
    return read_leanings(list(clean_passes(task, task.data["train"][:rows])), ["hidden"])["hidden"]


def test_a_leaning_foretells_the_answer_to_other_rows(toy_task: CountingTask) -> None:
    clean = CleanPass.over(toy_task, toy_task.data["test"])
    wanted = tendency(clean.answer)
    found = leaning_of(toy_task, 500)(clean.states["hidden"], clean.rows.present)
    blind = (wanted - wanted.mean(dim=0)).square().mean()
    assert (found - wanted).square().mean() < 0.8 * blind
    assert found.abs().max() <= 1


def test_one_row_is_enough_to_build_one(toy_task: CountingTask) -> None:
    assert torch.isfinite(leaning_of(toy_task, 1).weight).all()
