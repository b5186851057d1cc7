"""Outputs: one file and one line each."""

NAMES = {
    "hdf5": "colmet.collector.backends.hdf5:Hdf5Output",
    "stdout": "colmet.collector.backends.stdout:StdoutOutput",
}
