"""Loaders and generators of the tasks' data."""
