"""The daemon of the compute nodes: finds jobs, measures them, sends."""

import os

# numpy's linear algebra, which nothing here uses, would start a thread for each CPU as soon as it is imported: before
# any rights are given up, which each thread does for itself.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
