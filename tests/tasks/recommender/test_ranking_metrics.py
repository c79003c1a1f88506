"""MIND's ranking metrics against arithmetic done by hand."""

import math

import pytest

from diffmask.tasks.recommender.ranking_metrics import auc, mrr, ndcg, ranking_metrics

SCORES = [0.1, 0.9, 0.5, 0.7]
CLICKS = [True, False, True, False]


def test_auc_counts_pairs_in_the_right_order() -> None:
    assert auc(SCORES, CLICKS) == 0  # both clicked ones are below both others
    assert auc([1.0, 0.0], [True, False]) == 1
    assert auc([2.0, 2.0], [True, False]) == 0.5
    assert auc([3.0, 2.0, 1.0, 0.0], [True, False, True, False]) == 3 / 4


def test_mrr_is_the_mean_over_all_clicks() -> None:
    # Order by score: 0.9 no, 0.7 no, 0.5 click (rank 3), 0.1 click (rank 4).
    assert mrr(SCORES, CLICKS) == pytest.approx((1 / 3 + 1 / 4) / 2)


def test_ndcg_divides_by_the_best_order() -> None:
    gained = 1 / math.log2(4) + 1 / math.log2(5)
    best = 1 + 1 / math.log2(3)
    assert ndcg(SCORES, CLICKS, 5) == pytest.approx(gained / best)
    assert ndcg(SCORES, CLICKS, 3) == pytest.approx((1 / math.log2(4)) / best)
    many = [float(score) for score in range(12, 0, -1)]
    assert ndcg(many, [False] * 7 + [True] + [False] * 4, 5) == 0
    assert ndcg(many, [False] * 7 + [True] + [False] * 4, 10) == pytest.approx(1 / math.log2(9))


def test_metrics_are_means_over_impressions_with_a_choice() -> None:
    result = ranking_metrics([SCORES, [2.0, 1.0], [1.0, 2.0]], [CLICKS, [True, False], [True, True]])
    assert result.impressions == 2
    assert result.auc == 0.5 and result.accuracy == 0.5
    assert result.mrr == pytest.approx((7 / 24 + 1) / 2)
    assert math.isnan(ranking_metrics([[1.0]], [[True]]).auc)
