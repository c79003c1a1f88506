"""The self-test of metrics: known amounts of noise, and which metrics rank them rightly."""

from pathlib import Path

import torch

from diffmask.methods.leave_one_out import LeaveOneOut
from diffmask.metrics.faithfulness import Comprehensiveness
from diffmask.metrics.self_test import Degraded, MetricReliability, describe, self_test, shuffle_part
from support.linear import LinearTask, batch_of
from support.workspaces import workspace_of


def rows() -> list[list[int]]:
    source = torch.Generator().manual_seed(0)
    return torch.randint(1, 5, (40, 12), generator=source).tolist()


def test_only_the_chosen_scores_are_exchanged_within_their_row() -> None:
    batch = batch_of([[1, 2, 3, 4], [1, 2, 0, 0]])
    batch.maskable[1, 2:] = False
    scores = torch.tensor([[1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 0.0, 0.0]])
    chosen, keys = torch.tensor([True, False, True, True]), torch.tensor([0.9, 0.1, 0.5, 0.2])
    # Of the first row tokens 0, 2, 3 are chosen; by key their order is 3, 2, 0. The second row has one chosen token.
    assert shuffle_part(scores, batch, chosen, keys).tolist() == [[4.0, 2.0, 3.0, 1.0], [5.0, 6.0, 0.0, 0.0]]


def test_no_noise_is_the_method_itself_and_all_of_it_a_permutation(tmp_path: Path) -> None:
    task = LinearTask(rows())
    batch = task.data["test"]
    plain = LeaveOneOut().fit(task)(batch).scores
    assert torch.equal(Degraded(base=LeaveOneOut(), shuffled=0.0).fit(task)(batch).scores, plain)
    noisy = Degraded(base=LeaveOneOut(), shuffled=1.0).fit(task)(batch).scores
    assert not torch.equal(noisy, plain)
    assert torch.equal(noisy.sort(dim=1).values, plain.sort(dim=1).values)


def test_comprehensiveness_orders_degraded_explanations_of_a_sum(tmp_path: Path) -> None:
    (found, *_) = self_test(workspace_of(LinearTask(rows()), tmp_path), [Comprehensiveness()])
    assert found.metric == "comprehensiveness" and len(found.values) == 6
    assert found.values[0] > found.values[-1] and found.correlation > 0.8


def test_the_verdict_names_metrics_that_cannot_be_relied_on() -> None:
    tested = [
        MetricReliability(metric="a", title="Good one", values=(1.0, 0.0), correlation=1.0),
        MetricReliability(metric="b", title="Bad one", values=(0.0, 1.0), correlation=-0.5),
    ]
    assert [one.is_reliable for one in tested] == [True, False]
    assert "rely on Good one (1.00); do not rely on Bad one" in describe(tested)
