"""Mutation testing of the core: `python -m mutants`, or `make mutants`."""
