"""Adapters that turn a model and its data into a `Task`."""
