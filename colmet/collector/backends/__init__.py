"""Outputs: one file and one line each."""

NAMES = {
    "elasticsearch": "colmet.collector.backends.elasticsearch:ElasticsearchOutput",
    "hdf5": "colmet.collector.backends.hdf5:Hdf5Output",
    "stdout": "colmet.collector.backends.stdout:StdoutOutput",
}
