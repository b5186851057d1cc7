"""Readings of NVIDIA GPUs, and their allocation to jobs."""
