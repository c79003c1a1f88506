"""The benchmark of methods on one task."""
