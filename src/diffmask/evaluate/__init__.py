"""Evaluations, one a file."""
