"""Amortised attribution: scores from one forward pass (Jethani et al. 2022)."""
