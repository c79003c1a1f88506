"""Ranks and their correlation against SciPy, probabilities against all ways to break the ties."""

from itertools import permutations

import pytest
import torch
from scipy.stats import rankdata, spearmanr

from diffmask.metrics.ranks import mid_ranks, rank_correlation, top_k_probability, top_overlap
from diffmask.report.payload import disagreement

FIRST = torch.tensor([[0.3, 0.3, 0.9, -1.0, 5.0], [1.0, 2.0, 3.0, 4.0, 0.0]])
SECOND = torch.tensor([[0.1, 0.7, 0.7, -2.0, 0.0], [4.0, 3.0, 2.0, 1.0, 9.0]])
MASKABLE = torch.tensor([[True, True, True, True, False]] * 2)


def test_ranks_equal_scipy() -> None:
    for row, scores in zip(mid_ranks(FIRST, MASKABLE), FIRST, strict=True):
        assert row[:4].tolist() == rankdata(-scores[:4]).tolist()
        assert row[4] == 0


def test_the_correlation_equals_scipy_and_the_report() -> None:
    correlation = rank_correlation(FIRST, SECOND, MASKABLE)
    for row in range(2):
        first, second = FIRST[row, :4].tolist(), SECOND[row, :4].tolist()
        assert correlation[row].item() == pytest.approx(spearmanr(first, second).statistic, abs=1e-6)
        assert disagreement([first, second]) == pytest.approx(1 - correlation[row].item(), abs=1e-3)
    assert correlation[1].item() == pytest.approx(-1.0, abs=1e-6)


def test_constant_scores_agree_only_with_constant_scores() -> None:
    flat = torch.ones(2, 5)
    assert rank_correlation(flat, flat, MASKABLE).tolist() == [1.0, 1.0]
    assert rank_correlation(flat, FIRST, MASKABLE).tolist() == [0.0, 0.0]


def test_the_top_k_probability_is_the_mean_over_all_ways_to_break_ties() -> None:
    scores = [2.0, 1.0, 1.0, 1.0, 0.0]
    ways = [way for way in permutations(range(5)) if sorted(scores, reverse=True) == [scores[i] for i in way]]
    for count in (1, 2, 3, 5):
        expected = [sum(token in way[:count] for way in ways) / len(ways) for token in range(5)]
        found = top_k_probability(torch.tensor([scores]), torch.ones(1, 5).bool(), torch.tensor([float(count)]))
        assert found[0].tolist() == pytest.approx(expected)


def test_the_overlap_is_that_of_the_highest_fifth() -> None:
    maskable = torch.ones(1, 10, dtype=torch.bool)
    up = torch.arange(10.0)[None]
    half = up.clone()
    half[0, 8] = -1.0
    assert [top_overlap(up, other, maskable).item() for other in (up, -up, half)] == [1.0, 0.0, 0.5]
