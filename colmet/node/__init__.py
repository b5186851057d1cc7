"""The daemon of the compute nodes: finds jobs, measures them, sends the samples."""

import os

# numpy's linear algebra, unused here, would start a thread for each CPU at its import, with all rights: rights are
# given up later, and thread by thread.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
