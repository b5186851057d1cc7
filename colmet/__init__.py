"""Colmet: what every job on an HPC cluster uses, measured on its nodes."""

__version__ = "1.0.0"
