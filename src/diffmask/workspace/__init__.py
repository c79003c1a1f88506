"""Workspaces: make artefacts on demand and find them again."""
