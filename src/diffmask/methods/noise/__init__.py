"""Guan et al. 2019: the largest noise each token tolerates, and the paper's drop-in `Interpreter`."""
