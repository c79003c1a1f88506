"""Readers of data sets and tables."""
