"""Metrics of explanations."""
