"""Batches, distributions, hooks, tasks, explainers, training and the artefact store."""
