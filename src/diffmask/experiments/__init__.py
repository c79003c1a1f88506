"""Experiments: their nodes and who runs them."""
