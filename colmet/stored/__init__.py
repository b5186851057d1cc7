"""Stored samples of jobs and nodes, read from HDF5 files or a database."""
