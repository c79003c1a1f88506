"""Engines: the same graph on this process, on this machine's cores, on a dask cluster or on Slurm."""
