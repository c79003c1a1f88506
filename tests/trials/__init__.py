"""Trials of trust: threads, faults, batches, killed commands and changed jobs. `make trials` runs all of them."""
