"""F-Fidelity masks a part of the right tokens within its distribution, and orders a good above a bad explanation."""

from pathlib import Path

import pytest
import torch

from diffmask.errors import ConfigError
from diffmask.metrics.f_fidelity import FFidelity, RandomMaskFineTuning
from diffmask.tasks.classification import TextClassification
from support.tiny_models import tiny_model, word_pieces
from support.workspaces import Written, workspace_of

GOOD = ["the film is good and the plot is fun", "the film is bad and the plot is dull"] * 8
ROWS = [(text, number % 2) for number, text in enumerate(GOOD)]


def task() -> TextClassification:
    return TextClassification(tiny_model("bert", 2), word_pieces(), train=ROWS, test=ROWS[:6])


def test_masks_are_candidates_and_never_more_than_the_fine_tuning_masked() -> None:
    metric = FFidelity(part=0.5, max_masked=0.3, samples=4)
    maskable = torch.ones(2, 10, dtype=torch.bool)
    candidates = torch.zeros(2, 10, dtype=torch.bool)
    candidates[0, :8] = candidates[1, 2:4] = True
    masks = metric._masks(maskable, candidates, seed=0)
    assert masks.shape == (8, 10) and not (masks & ~candidates.repeat(4, 1)).any()
    # Half of 8 candidates is 4, but 30 % of 10 tokens are 3; half of 2 is 1.
    assert masks.sum(dim=1).tolist() == [3, 1] * 4
    assert len({tuple(row) for row in masks[::2].tolist()}) > 1


def test_training_rows_are_masked_up_to_the_largest_share() -> None:
    changed = task()
    RandomMaskFineTuning(max_masked=0.3, steps=4, batch_size=8, learning_rate=1e-4).apply(changed, 0)
    batch = changed.data["train"]
    share = batch.tokens.eq(int(changed.mask_token or -1)).sum() / batch.maskable.sum()
    assert len(batch) == 32 and 0.05 < share < 0.3


def test_both_numbers_have_a_value_per_text_and_a_curve(tmp_path: Path) -> None:
    workspace = workspace_of(task(), tmp_path)
    metric = FFidelity(sizes=(0.2, 0.5), samples=2, steps=2, batch_size=4)
    scores = Written(scores=tuple(float(place) for place in range(20)))
    records = list(metric.run(scores, workspace))
    means = {record.metric: record for record in records if record.at is None}
    assert set(means) == {"f_fidelity_plus", "f_fidelity_minus"}
    assert all(len(record.per_row) == 6 for record in means.values())
    assert sorted(record.at for record in records if record.at is not None) == [0.2, 0.2, 0.5, 0.5]
    again = list(metric.run(scores, workspace))
    assert [record.value for record in again] == [record.value for record in records]


def test_shares_out_of_bounds_are_refused() -> None:
    with pytest.raises(ConfigError, match="f-fidelity: max_masked must be above 0 and at most 1"):
        FFidelity(max_masked=0.0)
