"""Verification of single explanations: search for sets of units that keep the answer, measured on the model."""
