"""Colmet: what every job on an HPC cluster uses, measured on its nodes."""

import os

__version__ = "1.0.0rc1"
# The linear algebra of numpy, and numexpr of PyTables, would start a thread for each CPU when they are imported.
# Nothing here computes with them: a command starts faster, and no thread of the agent has rights that it gives up.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("NUMEXPR_NUM_THREADS", "1")
