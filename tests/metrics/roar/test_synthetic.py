"""The published synthetic experiment: where each curve falls."""

from diffmask.metrics.roar.synthetic import falls_after, synthetic_curves


def test_recursive_roar_finds_the_four_features_and_roar_needs_ten() -> None:
    curves = synthetic_curves(4000)
    assert {name: falls_after(scores) for name, scores in curves.items()} == {
        "roar": 10,
        "recursive roar": 4,
        "truth": 4,
        "worst": 14,
    }
    # Two features with part of the signal are left of the worst order: 79.4 % were published.
    assert abs(curves["worst"][14] - 0.794) < 0.03
