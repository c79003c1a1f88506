"""Verified sets of every layer hold, and shrink from the first layer to the last."""

import torch
from torch import Tensor
from torch.distributions import Bernoulli, Distribution

from diffmask.core.batch import Batch
from diffmask.core.verification.layers import VerifiedLayers, verify_inputs, verify_states
from diffmask.core.verification.masks import TextUnits, verify
from diffmask.methods.baselines import Random
from support.lookup import LookupTask, either

TOKENS = 5
UNITS = [TextUnits.of_row(0, [[column] for column in range(TOKENS)])]
ALL = frozenset(range(TOKENS))
NEEDED = {
    "embedding": [{0, 1, 2}],
    "block1": [{1, 2}, {0, 4}],
    "output": [{2}],
}
"""By layer, the sets of tokens each of which is sufficient there."""
SCORES = torch.tensor([[[5.0, 4.0, 3.0, 2.0, 1.0], [4.0, 5.0, 2.0, 1.0, 3.0], [1.0, 2.0, 5.0, 3.0, 4.0]]])


def masked(batch: Batch, kept: Tensor, layer: str) -> Distribution:
    """Say yes where a sufficient set of the layer is kept."""
    sets = [set(row.nonzero().flatten().tolist()) for row in kept]
    yes = [any(needed <= some for needed in NEEDED[layer]) for some in sets]
    return Bernoulli(logits=torch.tensor([2.0 if one else -2.0 for one in yes]))


def sets_of(found: VerifiedLayers) -> list[list[int]]:
    return [sorted(kept) for kept in found.units[0]]


def test_states_of_each_layer_keep_what_the_next_keeps_and_as_few_others_as_possible() -> None:
    task = LookupTask(TOKENS, {ALL: 2.0})
    batch = task.data["test"]
    found = verify_states(masked, batch, Bernoulli(logits=torch.tensor([2.0])), SCORES, tuple(NEEDED), UNITS, [0.1] * 3)
    # At block1, 2 is required because the output keeps it, and 1 completes it; 0 and 4 would be sufficient, too.
    assert sets_of(found) == [[0, 1, 2], [1, 2], [2]]
    assert found.same_prediction.all()
    assert bool((found.divergence <= 0.1).all())


def inputs(table: dict[frozenset[int], float], probability: Tensor) -> VerifiedLayers:
    task = LookupTask(TOKENS, table, default=-2.0)
    batch, explainer = task.data["test"], Random().fit(task)
    answer = task.predict(batch)

    def masked_inputs(rows: Batch, kept: Tensor) -> Distribution:
        return explainer.predict_kept(rows, kept, None)

    last = verify(masked_inputs, batch, answer, probability[:, -1], UNITS, 0.1)
    return verify_inputs(masked_inputs, batch, answer, probability, ("a", "b", "c"), UNITS, last, [0.1] * 3)


PROBABILITY = torch.tensor([[[0.9, 0.9, 0.9, 0.6, 0.1], [0.9, 0.9, 0.6, 0.1, 0.1], [0.9, 0.8, 0.1, 0.1, 0.1]]])


def test_inputs_are_kept_as_long_as_a_layer_predicts_that_they_are_needed() -> None:
    found = inputs(dict.fromkeys(either(TOKENS, (0, 1)), 2.0), PROBABILITY)
    assert sets_of(found) == [[0, 1, 2, 3], [0, 1, 2], [0, 1]]
    assert found.divergence.tolist() == [[0.0, 0.0, 0.0]]


def test_a_layer_whose_prediction_breaks_drops_nothing_more_than_the_layer_before() -> None:
    table = dict.fromkeys(either(TOKENS, (0, 1)), 2.0)
    del table[frozenset({0, 1, 2})]
    assert sets_of(inputs(table, PROBABILITY)) == [[0, 1, 2, 3], [0, 1, 2, 3], [0, 1]]
    del table[frozenset({0, 1, 2, 3})]
    assert sets_of(inputs(table, PROBABILITY)) == [[0, 1, 2, 3, 4], [0, 1, 2, 3, 4], [0, 1]]
