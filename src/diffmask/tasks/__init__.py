"""Adapters, one a file: each flattens a kind of task into rows."""
