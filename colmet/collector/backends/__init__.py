"""Outputs: one module and one line of `NAMES` each."""

NAMES = {
    "elasticsearch": "colmet.collector.backends.elasticsearch.output:ElasticsearchOutput",
    "hdf5": "colmet.collector.backends.hdf5.output:Hdf5Output",
    "stdout": "colmet.collector.backends.stdout:StdoutOutput",
    "archive": "colmet.collector.backends.archive:ArchiveOutput",
}
