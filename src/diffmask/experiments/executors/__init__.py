"""Executors: serial, processes, dask, slurm."""
